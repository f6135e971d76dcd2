//! Types that cross a process boundary between coordinator, operator, supervisors, learners and
//! engines.
//!
//! Processes of different releases talk during every upgrade. Readers ignore unknown fields; each
//! side announces [`PROTOCOL_VERSION`] in the header [`PROTOCOL_HEADER`], and a writer sends what a
//! version introduced only to peers that announced it. Releases before the header speak version 1.
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

/// The protocol version of this release.
///
/// | Version | Introduced |
/// |---|---|
/// | 1 | release 0.1.0; rejects unknown fields |
/// | 2 | the header itself; scalars `reward/<name>` in step and evaluation metrics |
pub const PROTOCOL_VERSION: u32 = 2;

/// HTTP header of requests and responses between processes of a run: the sender's
/// [`PROTOCOL_VERSION`].
pub const PROTOCOL_HEADER: &str = "rljob-protocol";

/// The version that a peer announced by [`PROTOCOL_HEADER`]; 1 without a readable one.
pub fn peer_version(header: Option<&[u8]>) -> u32 {
    header
        .and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok())
        .filter(|version| *version >= 1)
        .unwrap_or(1)
}

pub mod version;

pub mod desired;

pub mod metrics;

pub mod status;

pub mod supervisor;

pub mod learner;

pub mod batch;

pub mod checkpoint;

pub mod sglang;

pub mod answer;
