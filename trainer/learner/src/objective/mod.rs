//! Training objectives: per-token losses and their derivatives with respect to the policy's
//! log-probabilities. Pure arithmetic; sums over ranks are passed in.
//!
//! ```text
//!  samples of the step ─▶ advantages   advantage and weight of every sample
//!  signals             ─▶ the trainer computes the log-probabilities that the objective names
//!  streams             ─▶ prepare      per-token advantages and weights over whole sequences
//!                      ─▶ loss         loss and derivative per token, by chunk or micro-batch
//! ```
//! An objective is a file with its [`Objective`], an arm of [`new`], its settings in `rljob-crds`
//! and its tests. [`behavior`], [`gae`], [`kl`], [`normalization`] and [`pairs`] are terms of
//! objectives.
//!
//! Shape suffix N: the trained tokens of a micro-batch, or of a chunk of it. Formulas and golden
//! values are AReaL's (github.com/areal-project/AReaL, `areal/utils/functional`) unless a paper is
//! cited.

pub mod advantages;
pub mod behavior;
pub mod deferred;
pub mod distillation;
pub mod dpo;
pub mod gae;
pub mod grpo;
pub mod interface;
pub mod kl;
mod kl_controller;
pub mod normalization;
pub mod off_policy_distillation;
pub mod orpo;
pub mod pairs;
pub mod ppo;
pub mod reward_model;
pub mod second_moment;
pub mod sft;
pub mod statistics;
pub mod streams;
mod value_normalizer;

use rljob_crds::algorithm::{Algorithm, RolloutSpec};

pub use advantages::StepAdvantages;
pub use deferred::Deferred;
pub use interface::{
    Objective, PrepareError, Signal, StateError, SumError, SumOverRanks, TokenLoss,
};
pub use statistics::{Statistic, Statistics};
pub use streams::TokenStreams;

/// The objective of an algorithm.
pub fn new(algorithm: Algorithm<'_>, rollout: &RolloutSpec) -> Box<dyn Objective> {
    match algorithm {
        Algorithm::Grpo(spec) => Box::new(grpo::Grpo::new(spec, rollout)),
        Algorithm::Ppo(spec) => Box::new(ppo::Ppo::new(spec, rollout)),
        // An evaluation has no learners.
        Algorithm::Sft(_) | Algorithm::Evaluation(_) => Box::new(sft::Sft),
        Algorithm::Dpo(spec) => Box::new(dpo::Dpo::new(spec)),
        Algorithm::Orpo(spec) => Box::new(orpo::Orpo::new(spec)),
        Algorithm::Distillation(spec) => match &spec.off_policy {
            Some(own) => Box::new(off_policy_distillation::OffPolicyDistillation::new(own)),
            None => Box::new(distillation::Distillation::new(spec, rollout)),
        },
        Algorithm::RewardModel(_) => Box::new(reward_model::RewardModel),
    }
}
