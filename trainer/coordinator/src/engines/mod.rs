//! Inference engines: HTTP client, health monitoring and routing.
//!
//! ```text
//!  desired ─▶ slots (pure table) ◀─ monitor: GET /model_info every second
//!                │ queue ─▶ lease(weights): the least loaded engine with matching weights
//!                ▼
//!        completions ─▶ POST /generate ─▶ events ─▶ output ─▶ validate ─▶ part of a completion
//! ```
//!
//! Must not depend on steps, rewards or the journal.

pub mod client;
mod completions;
pub mod connection;
pub mod error;
pub mod fixed;
pub mod fleet;
pub mod live;
pub mod output;
mod progress;
pub mod queue;
pub mod received;
pub mod reservations;
pub mod slot;
pub mod slots;
pub mod stream;
pub mod streams;
pub mod suitability;
mod transport;
pub mod validate;
pub mod weights;

pub use client::EngineClient;
pub use error::EngineError;
pub use fixed::FixedFleets;
pub use fleet::{Fleet, check_epoch};
pub use queue::{Place, Wanted};
pub use reservations::Lease;
pub use weights::Weights;
