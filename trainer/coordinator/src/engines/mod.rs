//! Inference engines: HTTP client, health monitoring and routing.
//!
//! ```text
//!  desired ─▶ slots (pure table) ◀─ monitor: GET /model_info every second
//!                │ lease(weights): the least loaded engine with matching weights
//!                ▼
//!             client ─▶ POST /generate ─▶ stream ─▶ validate ─▶ part of a completion
//! ```
//!
//! Must not depend on steps, rewards or the journal.

pub mod client;
pub mod connection;
pub mod fleet;
mod progress;
pub mod slots;
pub mod stream;
pub mod streams;
pub mod validate;
pub mod weights;

pub use client::{EngineClient, EngineError};
pub use fleet::{Fleet, Lease, check_epoch};
pub use weights::Weights;
