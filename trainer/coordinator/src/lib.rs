//! The coordinator of a run: data, rollouts, rewards, the journal, batches, weight-sync orders and
//! evaluation. It knows no Kubernetes and no libtorch.

pub mod batches;
pub mod checkpoints;
pub mod clock;
pub mod coordinator;
pub mod copies;
pub mod core;
pub mod data;
pub mod driver;
pub mod engines;
pub mod evaluation;
pub mod exports;
pub mod fence;
pub mod files;
pub mod identity;
pub mod input;
pub mod journal;
pub mod mirror;
pub mod pack;
pub mod process;
pub mod restore;
pub mod reward;
pub mod rollout;
pub mod server;
pub mod store;
pub mod sync;
pub mod telemetry;
pub mod tokens;

pub use rljob_text as text;

/// An error and its causes on one line.
pub fn error_line(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
