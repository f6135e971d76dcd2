//! The learner of a trainer pod: model, sharding, the algorithm's arithmetic, optimizer,
//! checkpoints, weight publication.
//!
//! ```text
//!  rljob-learner      startup ──▶ learner (the loop)
//!                        train        step ──▶ micro_batch, algorithm/, model/, fsdp, optimizer, schedule
//!                        publish      publish/             checkpoint   checkpoint/
//!                     beside it: ranks (the other learners), coordinator_client, parent
//! ```
//! Read in this order: [`learner`], [`step`], [`fsdp`], [`optimizer`], [`model`], [`checkpoint`],
//! [`publish`]. The supervisor is a program of its own beside this library
//! (`bin/rljob-supervisor`).

pub mod background;
pub mod checkpoint;
pub mod coordinator_client;
pub mod fsdp;
pub mod heartbeat;
pub mod learner;
pub mod model;
pub mod models;
pub mod objective;
pub mod optimizer;
pub mod parent;
pub mod publish;
pub mod ranks;
pub mod schedule;
pub mod startup;
pub mod step;
pub mod trainer;

use std::error::Error;

/// Sends the program's log to standard error; `RUST_LOG` selects, `info` is the default.
pub fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}

/// An error and its causes in one line.
fn error_line(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}
