//! Types that cross a process boundary between coordinator, operator, supervisors, learners and
//! engines. Unknown fields are errors.
//!
//! ```text
//!  operator ── PUT /v1/desired, GET /v1/status ──▶ coordinator          desired, status
//!  supervisor ── POST /v1/supervisors/NAME ──────▶ coordinator          supervisor (its answer is the order)
//!  learner ── GET /v1/instructions ──────────────▶ coordinator          learner
//!          ── GET /v1/batches/STEP ──────────────▶                      batch
//!          ── POST /v1/steps, checkpoints, weights ▶                    learner
//!  learner ── files of a checkpoint ─────────────▶ coordinator, learner checkpoint
//!  coordinator ── SGLang's HTTP ─────────────────▶ engines              sglang, answer
//! ```

#![warn(missing_docs)]

pub mod version;

pub mod desired;

pub mod status;

pub mod supervisor;

pub mod learner;

pub mod batch;

pub mod checkpoint;

pub mod sglang;

pub mod answer;
