//! Algorithms: the union of their settings, which are in a file each with their capabilities.

use std::ops::Deref;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

pub mod capabilities;
pub mod distillation;
pub mod dpo;
pub mod evaluation;
pub mod grpo;
pub mod orpo;
pub mod ppo;
pub mod reward_model;
pub mod sft;
pub mod teacher;

pub use capabilities::{Capabilities, DataKind, FrozenModel, ModelRole, Signal};
use distillation::DistillationSpec;
use dpo::DpoSpec;
use evaluation::EvaluationSpec;
use grpo::GrpoSpec;
use orpo::OrpoSpec;
use ppo::PpoSpec;
use reward_model::RewardModelSpec;
use sft::SftSpec;
use teacher::TeacherSource;

pub use crate::optimizer::{OptimizerSpec, Schedule};
pub use crate::rollout::{RolloutSpec, Truncated};
pub use crate::training::{Activations, Precision, Sharding, TrainingSpec};
use crate::union::{Union, exactly_one};

/// Algorithm. Exactly one of `grpo`, `ppo`, `sft`, `dpo`, `orpo`, `rewardModel`, `distillation` and
/// `evaluation`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct AlgorithmSpec {
    /// Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300) with DAPO's
    /// asymmetric clip and token-level loss (arXiv 2503.14476).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpo: Option<GrpoSpec>,
    /// Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347) with a critic, a model
    /// of the policy's size or a value head on the policy, that learns the value of each token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ppo: Option<PpoSpec>,
    /// Supervised fine-tuning: cross entropy of the completion tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sft: Option<SftSpec>,
    /// Direct Preference Optimization (Rafailov et al. 2023, arXiv 2305.18290): learns from pairs
    /// of a chosen and a rejected completion, without rewards and engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpo: Option<DpoSpec>,
    /// Odds Ratio Preference Optimization (Hong et al. 2024, arXiv 2403.07691): learns the chosen
    /// completions of pairs and prefers them to the rejected ones, without a reference model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orpo: Option<OrpoSpec>,
    /// Reward model (Ouyang et al. 2022, arXiv 2203.02155): a model with a scalar head instead of
    /// that over the vocabulary learns from pairs to score completions, by the Bradley-Terry loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_model: Option<RewardModelSpec>,
    /// Distillation (Agarwal et al. 2024, arXiv 2306.13649): the policy learns the teacher's
    /// log-probabilities of the tokens that it samples, or, with `offPolicy`, the teacher's
    /// distribution at the tokens of given completions; without rewards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distillation: Option<DistillationSpec>,
    /// No training: engines sample the completions of `dataset.evaluation` once with the weights of
    /// `model`, rewards score them, and the run has succeeded. It has no trainer pods and writes no
    /// checkpoints; `dataset.train`, `training.steps` and `restoreFrom` must be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationSpec>,
}

impl Union for AlgorithmSpec {
    const MEMBERS: &'static [&'static str] =
        &["grpo", "ppo", "sft", "dpo", "orpo", "rewardModel", "distillation", "evaluation"];
}

/// Fields of teachers.
const TEACHER_OF_DISTILLATION: &str = "spec.algorithm.distillation.teacher";
const TEACHER_OF_GRPO: &str = "spec.algorithm.grpo.distillation.teacher";

/// The algorithm of a run with its settings. Everything that depends on the kind of algorithm asks
/// for a capability, to which this dereferences, instead of comparing kinds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm<'a> {
    /// Group Relative Policy Optimization.
    Grpo(&'a GrpoSpec),
    /// Proximal Policy Optimization.
    Ppo(&'a PpoSpec),
    /// Supervised fine-tuning.
    Sft(&'a SftSpec),
    /// Direct Preference Optimization.
    Dpo(&'a DpoSpec),
    /// Odds Ratio Preference Optimization.
    Orpo(&'a OrpoSpec),
    /// Reward model.
    RewardModel(&'a RewardModelSpec),
    /// Distillation, on-policy or off-policy.
    Distillation(&'a DistillationSpec),
    /// No training.
    Evaluation(&'a EvaluationSpec),
}

impl AlgorithmSpec {
    /// The algorithm of a valid spec, which sets exactly one; otherwise `None`.
    pub fn resolve(&self) -> Option<Algorithm<'_>> {
        let members = [
            self.grpo.as_ref().map(Algorithm::Grpo),
            self.ppo.as_ref().map(Algorithm::Ppo),
            self.sft.as_ref().map(Algorithm::Sft),
            self.dpo.as_ref().map(Algorithm::Dpo),
            self.orpo.as_ref().map(Algorithm::Orpo),
            self.reward_model.as_ref().map(Algorithm::RewardModel),
            self.distillation.as_ref().map(Algorithm::Distillation),
            self.evaluation.as_ref().map(Algorithm::Evaluation),
        ];
        let mut set = members.into_iter().flatten();
        set.next().filter(|_| set.next().is_none())
    }

    /// What is asked about the algorithm of a valid spec; otherwise `None`.
    pub fn capabilities(&self) -> Option<&(dyn Capabilities + 'static)> {
        self.resolve().map(Algorithm::capabilities)
    }

    /// The teacher with its field, if the algorithm has one.
    pub fn teacher_field(&self) -> Option<(&'static str, TeacherSource<'_>)> {
        let joint = self.grpo.as_ref().and_then(|grpo| grpo.distillation.as_ref());
        let alone = self.distillation.as_ref();
        alone
            .map(|own| (TEACHER_OF_DISTILLATION, own.teacher.source()))
            .or_else(|| joint.map(|own| (TEACHER_OF_GRPO, own.teacher.source())))
    }

    /// The folder of the teacher, to change it, with the field of the teacher.
    pub fn teacher_path_mut(&mut self) -> Option<(&'static str, &mut String)> {
        let joint = self.grpo.as_mut().and_then(|grpo| grpo.distillation.as_mut());
        let alone = self.distillation.as_mut();
        let alone = alone.map(|own| (TEACHER_OF_DISTILLATION, &mut own.teacher.path));
        let (field, path) =
            alone.or_else(|| joint.map(|own| (TEACHER_OF_GRPO, &mut own.teacher.path)))?;
        Some((field, path.as_mut()?))
    }

    /// Whether learners train. Only an evaluation has none.
    pub fn has_learners(&self) -> bool {
        self.evaluation.is_none()
    }

    /// Whether steps train on completions that engines sample.
    pub fn has_rollouts(&self) -> bool {
        self.capabilities().is_some_and(Capabilities::has_rollouts)
    }
}

impl<'a> Algorithm<'a> {
    /// Its capabilities, for as long as the spec lives.
    pub fn capabilities(self) -> &'a (dyn Capabilities + 'static) {
        match self {
            Self::Grpo(own) => own,
            Self::Ppo(own) => own,
            Self::Sft(own) => own,
            Self::Dpo(own) => own,
            Self::Orpo(own) => own,
            Self::RewardModel(own) => own,
            Self::Distillation(own) => own,
            Self::Evaluation(own) => own,
        }
    }
}

impl Deref for Algorithm<'_> {
    type Target = dyn Capabilities;

    fn deref(&self) -> &Self::Target {
        self.capabilities()
    }
}
