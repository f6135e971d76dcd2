//! The RLJob API: what a user writes, what the operator answers, and the run configuration that
//! both hand to the job's processes.
//!
//! Nothing here does IO. The crate depends on no other member of the workspace, on no client and on
//! no tensor library, so that anything can read an RLJob.
//!
//! Read in this order: [`job`] (the root), [`data`], [`algorithm`], [`grpo`], [`reward`],
//! [`rollout`], [`roles`], [`status`], [`run_config`], then [`mod@crd`].

#![warn(missing_docs)]

pub mod job;

pub mod data;

pub mod algorithm;

pub mod failure_policy;

pub mod grpo;

pub mod reward;

pub mod rollout;

pub mod roles;

pub mod status;

pub mod names;

pub mod run_config;

pub mod crd;

pub use crd::crd;
pub use job::{RLJob, RLJobSpec};
pub use run_config::{BucketConfig, RunConfig};
pub use status::RLJobStatus;
