//! Types that cross a process boundary between coordinator, operator, supervisors, learners and
//! engines.
//!
//! Processes of different releases talk during every upgrade. Readers ignore unknown fields; each
//! side announces its version in a header ([`peer`]), and a writer sends what a version introduced
//! only to peers that announced it. A request that a peer cannot serve is rejected with
//! [`ProtocolUnsupported`](peer::ProtocolUnsupported), which reaches the status of the RLJob.
//!
//! ```text
//!  operator ── PUT /v1/desired, GET /v1/status ──▶ coordinator          desired, status
//!  supervisor ── POST /v1/supervisors/NAME ──────▶ coordinator          supervisor; answers Order
//!  learner ── GET /v1/instructions ──────────────▶ coordinator          learner
//!          ── GET /v1/batches/STEP ──────────────▶                      batch, prompts
//!          ── POST /v1/steps, checkpoints, weights ▶                    learner
//!          ── POST /v1/memory ───────────────────▶                      memory
//!          ── /v1/groups/GROUP/… ────────────────▶                      group
//!  learner ── files of a checkpoint ─────────────▶ coordinator, learner checkpoint
//!  coordinator ── SGLang's HTTP ─────────────────▶ engines              sglang, answer
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]
#![warn(missing_docs)]

pub mod peer;

pub mod run_config;

pub mod version;

pub mod desired;

pub mod metrics;

pub mod evaluation;

pub mod status;

pub mod supervisor;

pub mod trace;

pub mod learner;

pub mod probe;

pub mod gpu_fault;

pub mod group;

pub mod memory;

pub mod batch;

pub mod prompts;

pub mod checkpoint;

pub mod classifier;

pub mod sglang;

pub mod answer;

/// An error and its sources on one line, as messages between processes and logs contain it.
pub fn error_line(error: &(dyn std::error::Error + 'static)) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |line, source| {
        // Some libraries repeat their source in their message.
        let cause = source.to_string();
        if line.contains(&cause) { line } else { format!("{line}: {cause}") }
    })
}
