//! Dashboard of runs: a page with curves, engines, samples and evaluations, and the JSON that it
//! reads. It must not write to a run.
//!
//! ```text
//!  metrics.jsonl, evaluations.jsonl ─▶ records ─▶ overview ┐
//!  samples.jsonl, evaluation-samples.jsonl ─▶ samples ─────┴▶ run ─▶ routes   live page
//!                                                               └──▶ document report.html
//! ```
//!
//! The page is one HTML document without external assets (`page/`). It gets JSON by HTTP from the
//! routes; in a report, the responses that it needs are embedded. Memory does not grow with the
//! length of a run, except for 24 bytes for each step with samples.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod document;
mod overview;
pub mod records;
mod report;
mod routes;
mod run;
mod samples;

pub use overview::{AcceptedChanges, RunInfo};
pub use report::report;
pub use routes::{MAX_RUNS, Source, router};
pub use run::RunFiles;
