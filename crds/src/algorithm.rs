//! Algorithm, optimizer, number of steps, batching and numerics.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::grpo::GrpoSpec;
pub use crate::rollout::{RolloutSpec, Truncated};

/// Algorithm. Exactly one of `grpo` and `sft`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("[has(self.grpo), has(self.sft)].filter(x, x).size() == 1")
        .message("set exactly one of grpo and sft")
)]
pub struct AlgorithmSpec {
    /// Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300) with DAPO's
    /// asymmetric clip and token-level loss (arXiv 2503.14476).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpo: Option<GrpoSpec>,
    /// Supervised fine-tuning: cross entropy of the completion tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sft: Option<SftSpec>,
}

/// The algorithm of a run with its settings. Everything that depends on the kind of algorithm asks
/// for a capability here instead of comparing kinds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm<'a> {
    /// Group Relative Policy Optimization.
    Grpo(&'a GrpoSpec),
    /// Supervised fine-tuning.
    Sft(&'a SftSpec),
}

/// Rows that an algorithm trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// Prompts; completions are sampled from the policy.
    Prompts,
    /// Prompts with the completions to learn.
    Demonstrations,
}

/// A model that learners hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelRole {
    /// The model that is trained and exported.
    Policy,
    /// The policy before training, for a KL penalty.
    Reference,
    /// A value model that is trained beside the policy.
    Critic,
    /// A model that scores completions.
    Reward,
}

impl AlgorithmSpec {
    /// The algorithm of a valid spec, which sets exactly one; otherwise `None`.
    pub fn resolve(&self) -> Option<Algorithm<'_>> {
        match (&self.grpo, &self.sft) {
            (Some(grpo), None) => Some(Algorithm::Grpo(grpo)),
            (None, Some(sft)) => Some(Algorithm::Sft(sft)),
            _ => None,
        }
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
            Self::Sft(_) => "sft",
        }
    }

    /// Rows that a step trains on.
    pub fn data(self) -> DataKind {
        match self {
            Self::Grpo(_) => DataKind::Prompts,
            Self::Sft(_) => DataKind::Demonstrations,
        }
    }

    /// Whether steps train on completions that engines sample.
    pub fn has_rollouts(self) -> bool {
        self.data() == DataKind::Prompts
    }

    /// Whether training samples are scored.
    pub fn needs_reward(self) -> bool {
        match self {
            Self::Grpo(_) => true,
            Self::Sft(_) => false,
        }
    }

    /// Models that learners hold, the policy first.
    pub fn model_roles(self) -> Vec<ModelRole> {
        match self {
            Self::Grpo(grpo) if grpo.kl_coefficient > 0.0 => {
                vec![ModelRole::Policy, ModelRole::Reference]
            }
            Self::Grpo(_) | Self::Sft(_) => vec![ModelRole::Policy],
        }
    }

    /// Samples of one prompt in a step.
    pub fn group_size(self) -> u32 {
        match self {
            Self::Grpo(grpo) => grpo.group_size,
            Self::Sft(_) => 1,
        }
    }

    /// Prompts or demonstrations of a step.
    pub fn batch_size(self, rollout: &RolloutSpec) -> u32 {
        match self {
            Self::Grpo(_) => rollout.batch_size,
            Self::Sft(sft) => sft.batch_size,
        }
    }

    /// Settings of `grpo`.
    pub fn grpo(self) -> Option<&'a GrpoSpec> {
        match self {
            Self::Grpo(grpo) => Some(grpo),
            Self::Sft(_) => None,
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

/// AdamW (Loshchilov and Hutter, arXiv 1711.05101) and its learning-rate schedule.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OptimizerSpec {
    /// Learning rate after warm-up. Default 1e-6.
    #[serde(default = "learning_rate")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub learning_rate: f64,
    /// Steps over which the learning rate rises linearly from 0. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub warmup_steps: u32,
    /// Learning-rate schedule after warm-up. Default Constant.
    #[serde(default)]
    pub schedule: Schedule,
    /// Fraction of learningRate at which Linear and Cosine end. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub minimum_learning_rate: f64,
    /// Decoupled weight decay. Default 0.01.
    #[serde(default = "weight_decay")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub weight_decay: f64,
    /// Decay of the first moment. Default 0.9.
    #[serde(default = "beta1")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta1: f64,
    /// Decay of the second moment. Default 0.999.
    #[serde(default = "beta2")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta2: f64,
    /// Added to the denominator. Default 1e-8.
    #[serde(default = "epsilon")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon: f64,
    /// Maximum L2 norm of the gradient of all parameters; 0 disables clipping. Default 1.
    #[serde(default = "gradient_clipping")]
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub gradient_clipping: f64,
    /// Keeps the two moments of learners on GPUs in pinned memory of the host, 8 bytes for each
    /// parameter of a rank, which count against the memory limit of the trainer. The update then
    /// moves them over PCIe: about a second for each 4 billion parameters of a rank. Default
    /// false.
    #[serde(default)]
    pub offload: bool,
}

fn learning_rate() -> f64 {
    1e-6
}

fn weight_decay() -> f64 {
    0.01
}

fn beta1() -> f64 {
    0.9
}

fn beta2() -> f64 {
    0.999
}

fn epsilon() -> f64 {
    1e-8
}

fn gradient_clipping() -> f64 {
    1.0
}

impl Default for OptimizerSpec {
    fn default() -> Self {
        Self {
            learning_rate: learning_rate(),
            warmup_steps: 0,
            schedule: Schedule::default(),
            minimum_learning_rate: 0.0,
            weight_decay: weight_decay(),
            beta1: beta1(),
            beta2: beta2(),
            epsilon: epsilon(),
            gradient_clipping: gradient_clipping(),
            offload: false,
        }
    }
}

/// Learning-rate schedule after warm-up.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum Schedule {
    /// Constant learning rate.
    #[default]
    Constant,
    /// Linear decay. The rate would reach its minimum one step after the last.
    Linear,
    /// Half-cosine decay. The rate would reach its minimum one step after the last.
    Cosine,
}

/// Number of steps, batching and numerics.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingSpec {
    /// Steps to run; each consumes one batch.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub steps: u32,
    /// Optimizer updates per step. The groups of a batch are split into this many equal parts.
    /// Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub minibatches: u32,
    /// Tokens per forward and backward pass of a rank. A longer sequence is alone in its
    /// micro-batch. On CPUs, a prompt that samples share counts once. Default 16384.
    #[serde(default = "max_tokens_per_micro_batch")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens_per_micro_batch: u32,
    /// Activations that a forward pass keeps for the backward pass. Default Keep on CPUs, and from
    /// an estimate of the memory on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<Activations>,
    /// Parts of the model that learners divide among themselves while they train a step. `Full`
    /// needs the least memory. `Gradients` gathers the weights once and sums the gradients once for
    /// each update instead of each micro-batch; a learner then holds the whole weights in the
    /// compute type and the whole gradients in FP32. Without effect with one learner. Default Full
    /// on CPUs; on GPUs `Gradients` if an estimate of the memory allows it, with all activations
    /// that the learner is to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Sharding>,
    /// Compute type of forward and backward passes and of engines; master weights and optimizer
    /// states are always FP32. Default BF16 if engines or trainers have GPUs, else FP32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Seed of the data order, of sampling and of random weights. Default 1.
    #[serde(default = "seed")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_u64))]
    pub seed: u64,
    /// Bit-identical results after crashes, by fixed shapes in the engines and a seed per sample.
    /// Slower. Default false.
    #[serde(default)]
    pub deterministic: bool,
}

fn one() -> u32 {
    1
}

fn max_tokens_per_micro_batch() -> u32 {
    16384
}

fn seed() -> u64 {
    1
}

/// Activations that a forward pass keeps for the backward pass. `Keep` is faster. `Recompute` keeps
/// only the input of each layer and computes a third more. Default Keep on CPUs; on GPUs as many
/// layers keep theirs as an estimate of the memory allows.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// All activations.
    Keep,
    /// Input of each layer; the backward pass recomputes the rest.
    Recompute,
}

/// Parts of the model that learners divide among themselves while they train a step. Master weights
/// and optimizer states are always divided.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Weights and gradients, in every micro-batch (FSDP, ZeRO-3).
    Full,
    /// Gradients, once all micro-batches of an update have added theirs (ZeRO-2).
    Gradients,
}

/// Compute type of forward and backward passes.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floating point.
    FP32,
    /// bfloat16.
    BF16,
}
