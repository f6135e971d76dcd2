//! The inference engines: an HTTP client for each, what each is good for, and which one takes the next request.
//!
//! ```text
//!  desired ─▶ slots (pure table) ◀─ monitor: GET /model_info every second
//!                │ lease(version): the least loaded engine that holds exactly these weights
//!                ▼
//!             client ─▶ POST /generate ─▶ validate ─▶ Completion
//! ```
//!
//! It must not know steps, rewards or the journal.

pub mod client;
pub mod fleet;
pub mod slots;
pub mod validate;

pub use client::{EngineClient, EngineError};
pub use fleet::{Fleet, Lease};
