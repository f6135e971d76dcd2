//! Number of steps, batching and numerics.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Number of steps, batching and numerics.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingSpec {
    /// Steps to run; each consumes one batch. Exactly one of `steps` and `epochs` is required,
    /// except by `evaluation`, which has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub steps: u32,
    /// Passes over the training data: the run has the least number of steps whose batches have at
    /// least `epochs` times as many rows as the data, without the rows that its filters drop. A
    /// pair is a row, and a mixture has the rows of all its parts. Rows that
    /// `rollout.dynamicSampling` or `dataset.train.curriculum` replace do not count.
    /// `status.progress.totalSteps` is the number of steps, once the data is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub epochs: Option<u32>,
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
    /// compute type and the whole gradients in FP32. Without effect with one learner. `Hybrid`
    /// divides the model over the learners of each trainer pod only: pods exchange gradients once
    /// for each update, and no weights. Default Full on CPUs and with `deterministic`; on GPUs
    /// `Gradients` if an estimate of the memory allows it with all activations that the learner is
    /// to keep.
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

impl TrainingSpec {
    /// Number of steps, unless it depends on the data.
    pub fn known_steps(&self) -> Option<u32> {
        self.epochs.is_none().then_some(self.steps)
    }
}

/// Steps of `epochs` passes over `rows` rows, in batches of `batch_size` of them; at least 1.
pub fn steps_of_epochs(epochs: u32, rows: u64, batch_size: u32) -> u64 {
    rows.saturating_mul(epochs.into()).div_ceil(u64::from(batch_size.max(1))).max(1)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(steps: &u32) -> bool {
    *steps == 0
}

impl Default for TrainingSpec {
    /// The settings of an evaluation: no steps.
    fn default() -> Self {
        Self {
            steps: 0,
            epochs: None,
            minibatches: one(),
            max_tokens_per_micro_batch: max_tokens_per_micro_batch(),
            activations: None,
            sharding: None,
            precision: None,
            seed: seed(),
            deterministic: false,
        }
    }
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
/// only the input of each layer and computes a third more. `Selective` computes only the outputs of
/// norms again, a tenth of the activations. Default Keep on CPUs; on GPUs, an estimate of the
/// memory decides for each layer.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// All activations.
    Keep,
    /// All but the outputs of norms, which the backward pass recomputes.
    Selective,
    /// Input of each layer; the backward pass recomputes the rest.
    Recompute,
}

/// Parts of the model that learners divide among themselves while they train a step. Master weights
/// and optimizer states are always divided: with `Hybrid` over the learners of a trainer pod, else
/// over all. Default Full on CPUs and with `deterministic`; on GPUs `Gradients`, which is faster,
/// if an estimate of the memory allows it.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Weights and gradients, in every micro-batch (FSDP, ZeRO-3).
    Full,
    /// Gradients, once all micro-batches of an update have added theirs (ZeRO-2).
    Gradients,
    /// Weights and gradients, in every micro-batch, over the learners of a trainer pod. Each pod
    /// has a replica of the model; gradients are summed over the pods once for each update (HSDP).
    Hybrid,
}

/// Compute type of forward and backward passes.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floating point.
    FP32,
    /// bfloat16.
    BF16,
}

#[cfg(test)]
mod tests {
    use super::steps_of_epochs;

    #[test]
    fn the_batches_of_all_steps_have_at_least_the_rows_of_all_epochs() {
        assert_eq!(steps_of_epochs(1, 100, 25), 4);
        assert_eq!(steps_of_epochs(1, 101, 25), 5);
        assert_eq!(steps_of_epochs(3, 101, 25), 13, "epochs continue within a batch");
        assert_eq!(steps_of_epochs(1, 3, 64), 1);
        assert_eq!(steps_of_epochs(2, u64::MAX, 1), u64::MAX);
    }
}
