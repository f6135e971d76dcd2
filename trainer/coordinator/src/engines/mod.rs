//! The inference engines: an HTTP client for each, what each is good for, and which one takes the
//! next request.
//!
//! ```text
//!  desired ─▶ slots (pure table) ◀─ monitor: GET /model_info every second
//!                │ lease(weights): the least loaded engine that holds such weights
//!                ▼
//!             client ─▶ POST /generate ─▶ stream ─▶ validate ─▶ Part of a completion
//! ```
//!
//! It must not know steps, rewards or the journal.

pub mod client;
pub mod connection;
pub mod fleet;
mod progress;
pub mod slots;
pub mod stream;
pub mod validate;
pub mod weights;

pub use client::{EngineClient, EngineError};
pub use fleet::{Fleet, Lease, may_control};
pub use weights::Weights;
