//! Training objectives: per-token losses and their derivatives with respect to the policy's
//! log-probabilities. Pure arithmetic; sums over ranks are passed in.
//!
//! ```text
//!  samples of the step ──▶ advantages   advantage and weight of every sample
//!  signals             ──▶ the trainer computes the log-probabilities that the objective names
//!  streams             ──▶ prepare      per-token advantages and weights over whole sequences
//!                      ──▶ loss         loss and derivative per token, by chunk or micro-batch
//! ```
//! An objective is a file with its [`Objective`], an arm of [`new`], its settings in `rljob-crds`
//! and its tests. [`behavior`], [`kl`] and [`normalization`] are terms that objectives share.
//!
//! Shape suffix N: the trained tokens of a micro-batch, or of a chunk of it. Formulas and golden
//! values are AReaL's (github.com/areal-project/AReaL, `areal/utils/functional`) unless a paper is
//! cited.

pub mod advantages;
pub mod behavior;
pub mod grpo;
pub mod interface;
pub mod kl;
pub mod normalization;
pub mod second_moment;
pub mod sft;
pub mod statistics;
pub mod streams;

use rljob_crds::algorithm::{Algorithm, RolloutSpec};
use rljob_crds::grpo::GrpoSpec;

pub use advantages::StepAdvantages;
pub use interface::{Objective, Signal, SumError, SumOverRanks, TokenLoss};
pub use statistics::{Statistic, Statistics};
pub use streams::TokenStreams;

/// The objective of an algorithm.
pub fn new(algorithm: Algorithm<'_>, rollout: &RolloutSpec) -> Box<dyn Objective> {
    match algorithm {
        Algorithm::Grpo(spec) => {
            let behavior_weight = spec.effective_behavior_weight(rollout);
            let spec = GrpoSpec { behavior_weight, ..spec.clone() };
            Box::new(grpo::Grpo { spec, rollout: rollout.clone() })
        }
        Algorithm::Sft(_) => Box::new(sft::Sft),
    }
}
