//! The coordinator of a run: data, rollouts, rewards, journal, batches, weight sync and evaluation.
//! It must not depend on Kubernetes or libtorch.
//!
//! ```text
//!   process ─▶ claim, opening, server (learner and operator API), scheduler   wiring, tasks
//!                 │
//!   core          ▼    pure state machine: which work is due, which instruction follows
//!   ───────────────────────────────────────────────────────────────────────────────────
//!   data ─▶ rollout ─▶ reward ─▶ journal ─▶ batches ─▶ learner API
//!              │ engines            ▲
//!              │                    │ RunHandle (state), Recorder (metrics, events)
//!   sync ──────┤ weight sync        │
//!   evaluation ┘ ───────────────────┘
//!   ───────────────────────────────────────────────────────────────────────────────────
//!   tracking      copies of metrics for TensorBoard and MLflow, of traces for OpenTelemetry
//!   persistence   journal, fence, mirror, copies, identity, checkpoints, exports, restore
//! ```
//!
//! `rollback` returns a run that is not active to a checkpoint; `claim` calls it for
//! `spec.rollbackTo`.
//!
//! Imports point down or to the left. Only `server`, `scheduler`, `opening` and `process` see the
//! whole [`coordinator::Coordinator`]; other modules receive the handles that they use.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

pub mod batches;
pub mod check;
mod claim;
pub mod clock;
pub mod coordinator;
pub mod core;
pub mod data;
pub mod engines;
pub mod evaluation;
pub mod files;
pub mod inference;
pub mod input;
mod jinja;
pub mod learner_memory;
mod model_config;
pub mod opening;
pub mod pack;
pub mod peers;
pub mod persistence;
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod reward;
pub mod reward_check;
pub mod rollback;
pub mod rollout;
pub mod run_handle;
pub mod scheduler;
pub mod server;
pub mod sync;
pub mod teacher;
pub mod telemetry;
pub mod timeline;
pub mod tokens;
pub mod tracking;
pub mod verification;
pub mod work_error;
pub mod workflow;

pub use rljob_text as text;

pub(crate) use rljob_protocol::error_line;
