//! Algorithms and their capabilities.

use std::borrow::Cow;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::distillation::{DistillationSpec, TeacherServer, TeacherSpec};
use crate::dpo::DpoSpec;
use crate::grpo::GrpoSpec;
pub use crate::optimizer::{OptimizerSpec, Schedule};
use crate::ppo::PpoSpec;
use crate::reward_model::RewardModelSpec;
pub use crate::rollout::{RolloutSpec, Truncated};
pub use crate::training::{Activations, Precision, Sharding, TrainingSpec};
use crate::union::{Union, exactly_one};

/// Algorithm. Exactly one of `grpo`, `ppo`, `sft`, `dpo`, `rewardModel`, `distillation` and
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
        &["grpo", "ppo", "sft", "dpo", "rewardModel", "distillation", "evaluation"];
}

/// The algorithm of a run with its settings. Everything that depends on the kind of algorithm asks
/// for a capability here instead of comparing kinds.
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
    /// Reward model.
    RewardModel(&'a RewardModelSpec),
    /// Distillation, on-policy or off-policy.
    Distillation(&'a DistillationSpec),
    /// No training.
    Evaluation(&'a EvaluationSpec),
}

/// Rows that an algorithm trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// Prompts; completions are sampled from the policy.
    Prompts,
    /// Prompts with the completions to learn.
    Demonstrations,
    /// Prompts with a chosen and a rejected completion.
    Pairs,
    /// No rows: nothing is trained.
    None,
}

/// A model that learners hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelRole {
    /// The model that is trained and exported; a reward model of `rewardModel`.
    Policy,
    /// The policy before training, for a KL penalty and for `dpo`; the teacher, if there is one.
    Reference,
    /// A value model that is trained beside the policy, or the policy's value head.
    Critic,
}

impl AlgorithmSpec {
    /// The algorithm of a valid spec, which sets exactly one; otherwise `None`.
    pub fn resolve(&self) -> Option<Algorithm<'_>> {
        let members = [
            self.grpo.as_ref().map(Algorithm::Grpo),
            self.ppo.as_ref().map(Algorithm::Ppo),
            self.sft.as_ref().map(Algorithm::Sft),
            self.dpo.as_ref().map(Algorithm::Dpo),
            self.reward_model.as_ref().map(Algorithm::RewardModel),
            self.distillation.as_ref().map(Algorithm::Distillation),
            self.evaluation.as_ref().map(Algorithm::Evaluation),
        ];
        let mut set = members.into_iter().flatten();
        set.next().filter(|_| set.next().is_none())
    }

    /// Whether learners train. Only an evaluation has none.
    pub fn has_learners(&self) -> bool {
        self.evaluation.is_none()
    }

    /// Whether steps train on completions that engines sample.
    pub fn has_rollouts(&self) -> bool {
        self.resolve().is_some_and(Algorithm::has_rollouts)
    }
}

impl<'a> Algorithm<'a> {
    /// Name of the field of `spec.algorithm`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpo(_) => "grpo",
            Self::Ppo(_) => "ppo",
            Self::Sft(_) => "sft",
            Self::Dpo(_) => "dpo",
            Self::RewardModel(_) => "rewardModel",
            Self::Distillation(_) => "distillation",
            Self::Evaluation(_) => "evaluation",
        }
    }

    /// Rows that a step trains on.
    pub fn data(self) -> DataKind {
        match self {
            Self::Distillation(DistillationSpec { off_policy: Some(_), .. }) | Self::Sft(_) => {
                DataKind::Demonstrations
            }
            Self::Grpo(_) | Self::Ppo(_) | Self::Distillation(_) => DataKind::Prompts,
            Self::Dpo(_) | Self::RewardModel(_) => DataKind::Pairs,
            Self::Evaluation(_) => DataKind::None,
        }
    }

    /// Whether steps train on completions that engines sample.
    pub fn has_rollouts(self) -> bool {
        self.data() == DataKind::Prompts
    }

    /// Whether the run cannot do without rewards.
    pub fn needs_reward(self) -> bool {
        match self {
            Self::Grpo(_) | Self::Ppo(_) | Self::Evaluation(_) => true,
            Self::Sft(_) | Self::Dpo(_) | Self::RewardModel(_) | Self::Distillation(_) => false,
        }
    }

    /// Whether the trained model has a scalar head, so that it scores sequences and cannot sample.
    pub fn trains_scores(self) -> bool {
        matches!(self, Self::RewardModel(_))
    }

    /// Folder of the teacher, which takes the place of the reference model.
    pub fn teacher(self) -> Option<&'a str> {
        self.teacher_spec()?.path.as_deref()
    }

    /// Server of the teacher, whose log-probabilities take the place of the reference model.
    pub fn teacher_server(self) -> Option<&'a TeacherServer> {
        self.teacher_spec()?.server.as_ref()
    }

    /// The teacher, in a folder or served.
    pub fn teacher_spec(self) -> Option<&'a TeacherSpec> {
        match self {
            Self::Distillation(own) => Some(&own.teacher),
            Self::Grpo(own) => own.distillation.as_ref().map(|joint| &joint.teacher),
            _ => None,
        }
    }

    /// Models that learners hold, the policy first.
    pub fn model_roles(self) -> Vec<ModelRole> {
        let has_teacher = self.teacher().is_some();
        let (has_reference, critic) = match self {
            Self::Grpo(grpo) => (grpo.kl_coefficient > 0.0 || has_teacher, None),
            Self::Ppo(ppo) => (ppo.kl_coefficient > 0.0, Some(ModelRole::Critic)),
            Self::Sft(_) | Self::RewardModel(_) => (false, None),
            Self::Dpo(_) => (true, None),
            Self::Distillation(_) => (has_teacher, None),
            Self::Evaluation(_) => return Vec::new(),
        };
        let reference = has_reference.then_some(ModelRole::Reference);
        std::iter::once(ModelRole::Policy).chain(reference).chain(critic).collect()
    }

    /// Samples of one prompt in a step; two of a pair.
    pub fn group_size(self) -> u32 {
        match self {
            Self::Grpo(grpo) => grpo.group_size,
            Self::Ppo(ppo) => ppo.group_size,
            Self::Distillation(distillation) => distillation.group_size,
            Self::Sft(_) | Self::Evaluation(_) => 1,
            Self::Dpo(_) | Self::RewardModel(_) => 2,
        }
    }

    /// Prompts, demonstrations or pairs of a step.
    pub fn batch_size(self, rollout: &RolloutSpec) -> u32 {
        match self {
            Self::Distillation(DistillationSpec { off_policy: Some(own), .. }) => own.batch_size,
            Self::Grpo(_) | Self::Ppo(_) | Self::Distillation(_) => rollout.batch_size,
            Self::Sft(sft) => sft.batch_size,
            Self::Dpo(dpo) => dpo.batch_size,
            Self::RewardModel(model) => model.batch_size,
            Self::Evaluation(_) => 0,
        }
    }

    /// Settings of rewards and of the policy's loss, of an algorithm that learns from
    /// completions of the policy.
    pub fn policy(self) -> Option<Cow<'a, GrpoSpec>> {
        match self {
            Self::Grpo(grpo) => Some(Cow::Borrowed(grpo)),
            Self::Ppo(ppo) => Some(Cow::Owned(ppo.policy())),
            Self::Distillation(own) if own.off_policy.is_none() => Some(Cow::Owned(own.policy())),
            Self::Distillation(_)
            | Self::Sft(_)
            | Self::Dpo(_)
            | Self::RewardModel(_)
            | Self::Evaluation(_) => None,
        }
    }

    /// Divisor of the logits that learners compute: that of the sampler, or of off-policy
    /// distillation; 1 of other algorithms without rollouts.
    pub fn temperature(self, rollout: &RolloutSpec) -> f64 {
        match self {
            Self::Distillation(DistillationSpec { off_policy: Some(own), .. }) => own.temperature,
            _ if self.has_rollouts() => rollout.temperature,
            _ => 1.0,
        }
    }

    /// Whether the critic is a value head on the policy.
    pub fn has_value_head(self) -> bool {
        matches!(self, Self::Ppo(PpoSpec { value_head: Some(_), .. }))
    }

    /// Whether the critic predicts normalized values.
    pub fn normalizes_values(self) -> bool {
        matches!(self, Self::Ppo(PpoSpec { value_normalization: Some(_), .. }))
    }

    /// Optimizer of the critic, if the algorithm trains one.
    pub fn critic_optimizer(self, policy: &OptimizerSpec) -> Option<OptimizerSpec> {
        match self {
            Self::Ppo(ppo) => Some(ppo.critic_optimizer(policy)),
            Self::Grpo(_)
            | Self::Sft(_)
            | Self::Dpo(_)
            | Self::RewardModel(_)
            | Self::Distillation(_)
            | Self::Evaluation(_) => None,
        }
    }
}

/// Settings of `sft`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SftSpec {
    /// Sequences per step. Default 64.
    #[serde(default = "sft_batch_size")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch_size: u32,
}

fn sft_batch_size() -> u32 {
    64
}

/// Settings of `evaluation`: none. What is evaluated is in `dataset.evaluation`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSpec {}
