//! RLJob API: spec, status, CustomResourceDefinition, and the run configuration of processes.
//!
//! The crate performs no IO and depends on no other member of the workspace, no client and no
//! tensor library, so that any program can read an RLJob.
//!
//! Reading order: [`job`] (the root), [`model`], [`storage`], [`data`], [`algorithm`] with a file
//! for each algorithm, [`training`], [`optimizer`], [`lora`], [`reward`], [`model_reward`],
//! [`program_reward`], [`verifiers`], [`rollout`], [`workflow`], [`agent`], [`weight_sync`],
//! [`checkpoint`], [`roles`], [`topology`], [`trainer_groups`], [`evaluation`], [`template`],
//! [`restore`], [`tracking`], [`service_token`], [`status`], [`run_config`], then [`union`],
//! [`mod@crd`], [`freeze`], [`jinja`] and [`dataflow`].

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]
#![warn(missing_docs)]

pub mod job;
mod rules;

pub mod model;

pub mod storage;

pub mod service_token;

pub mod data;

pub mod algorithm;

pub mod training;

pub mod checkpoint;

pub mod weight_sync;

mod engine_sets;
pub mod evaluation;

pub mod failure_policy;

pub mod gang;

pub mod gpus;
pub mod jinja;

pub mod lora;

pub mod model_reward;
pub mod optimizer;

pub mod program_reward;
pub mod repetition_reward;

pub mod reward;

pub mod rollout;

pub mod workflow;

pub mod agent;

pub mod roles;

pub mod topology;

pub mod trainer_groups;

mod frozen_group;

pub mod template;

pub mod tracking;

mod verifier;
pub mod verifiers;

pub mod restore;
pub mod rollback;

pub mod status;

pub mod names;

pub mod run_config;

/// Pruning of unknown fields.
pub mod prune;

pub mod union;

pub mod crd;
mod enum_values;

pub mod freeze;

pub mod dataflow;

pub use crd::crd;
pub use engine_sets::{EnginePurpose, EngineSet, FixedModel};
pub use job::{RLJob, RLJobSpec};
pub use run_config::{BucketConfig, RunConfig};
pub use status::RLJobStatus;
