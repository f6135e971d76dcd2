//! Requests of learners to the coordinator: rank 0 gets instructions and broadcasts them to the
//! other ranks; every rank gets its part of a batch.
//!
//! ```text
//! GET  /v1/instructions?attempt=A&step=S   rank 0, S = steps done; held up to 20 s → Instruction
//! GET  /v1/batches/{step}?attempt=A&rank=R&world=W            → batch.rs, as safetensors
//! POST /v1/steps/{step}          StepReport        rank 0, after the optimizer step
//! GET  /v1/validations/{step}?attempt=A&rank=R&world=W        → the validation data as a batch
//! POST /v1/validations/{step}    ValidationReport  rank 0
//! POST /v1/checkpoints/{step}    CheckpointReport  rank 0, once the manifest is written
//! POST /v1/weights               WeightsReady      a sender, when its staging copy is ready
//! POST /v1/memory                MemoryReport      rank 0 on GPUs, before it loads models
//! ```
//! Each request has the attempt of the learner. An older attempt gets 409, and the learner exits.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::metrics::{EvaluationMetrics, PAIR_ACCURACY, PAIR_MARGIN, PERPLEXITY};
use crate::probe::WeightProbe;
use crate::status::StepMetrics;
use crate::trace::LearnerSpan;
use crate::version::Version;

/// Next action of the learner group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Instruction {
    /// No action yet; the learner repeats the request.
    Wait,
    /// Get batch `step` (completed steps + 1) and train on it.
    Train {
        /// Number of the step.
        step: u32,
        /// Steps of the run, if they depend on the data. Since protocol version 3.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_steps: Option<u32>,
    },
    /// Get the validation data, compute its loss and post [`ValidationReport`]. Only for algorithms
    /// that learn from completions of the data.
    Validate {
        /// Completed steps.
        step: u32,
    },
    /// Write the weights as a Hugging Face folder (without tokenizer) to `path`, then post
    /// [`WeightsReady::Disk`].
    PublishToDisk {
        /// Version of the weights, for the engines.
        version: Version,
        /// Absolute path of a folder that does not exist.
        path: PathBuf,
    },
    /// Stage the weights; each sender posts [`WeightsReady::Distributed`] and broadcasts to its
    /// engines.
    PublishByBroadcast {
        /// Version of the weights.
        version: Version,
        /// One group per engine.
        transfers: Vec<Transfer>,
    },
    /// Write a checkpoint of the completed steps in the background and post [`CheckpointReport`].
    Checkpoint {
        /// Version of the checkpoint.
        version: Version,
        /// Absolute path of a folder that does not exist.
        path: PathBuf,
    },
    /// Export the model with its tokenizer to `path` in the background, then post
    /// [`WeightsReady::Disk`] with this version. A repeated instruction waits for the export and
    /// posts again.
    Export {
        /// Version of the weights.
        version: Version,
        /// Absolute path of the folder, which is replaced if it exists.
        path: PathBuf,
    },
    /// Wait for the checkpoint in progress and exit with code 0.
    Exit,
}

impl Instruction {
    /// Training of `step` in a run whose number of steps is in the spec.
    pub fn train(step: u32) -> Self {
        Self::Train { step, total_steps: None }
    }
}

/// A broadcast to one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transfer {
    /// The engine's name.
    pub engine: String,
    /// Learner rank that sends. It is rank 0 of the group and hosts the store.
    pub sender: u32,
    /// Name of the process group, unique for this attempt and engine process.
    pub group: String,
    /// 1 + number of ranks of the engine.
    pub world_size: u32,
    /// Whether sender and engine are in the group already, from an earlier broadcast in buckets of
    /// this attempt.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kept: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Weights that are ready for engines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum WeightsReady {
    /// Complete folder.
    Disk {
        /// Attempt of the learner.
        attempt: u32,
        /// Version of the weights.
        version: Version,
        /// Path of the folder.
        path: PathBuf,
    },
    /// The sender hosts a TCPStore and will broadcast `tensors` in this order, group by group.
    Distributed {
        /// Attempt of the learner.
        attempt: u32,
        /// Version of the weights.
        version: Version,
        /// Rank of the sender.
        rank: u32,
        /// Address of its TCPStore.
        store_address: String,
        /// Port of its TCPStore.
        store_port: u16,
        /// Tensors in the order of the broadcast.
        tensors: Vec<TensorInfo>,
        /// Number of tensors of each bucket, in order. A bucket is one broadcast of the bytes of
        /// its tensors, and the process group is kept for later publications. Empty: one
        /// broadcast for each tensor, after which the sender leaves the group.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        buckets: Vec<u32>,
        /// Elements that engines must hold afterwards. Since protocol version 3.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        probes: Vec<WeightProbe>,
    },
}

/// Name, data type and shape of a tensor, in SGLang's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TensorInfo {
    /// Hugging Face name.
    pub name: String,
    /// `float32` or `bfloat16`.
    pub dtype: String,
    /// Dimensions.
    pub shape: Vec<i64>,
}

/// Report of a completed step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepReport {
    /// Attempt of the learner.
    pub attempt: u32,
    /// Metrics of the learners; `reward`, `completion_tokens`, `rollout_seconds`,
    /// `sync_seconds` and `tokens_per_second` are added by the coordinator.
    pub metrics: StepMetrics,
    /// What rank 0 has done since its last report. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<LearnerSpan>,
}

impl StepReport {
    /// The part that a peer of this protocol version can read.
    #[must_use]
    pub fn for_peer(self, protocol: u32) -> Self {
        let spans = if protocol < 3 { Vec::new() } else { self.spans };
        Self { attempt: self.attempt, metrics: self.metrics.for_peer(protocol), spans }
    }
}

/// Report of a validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ValidationReport {
    /// Attempt of the learner.
    pub attempt: u32,
    /// Loss of the objective: of `sft`, the mean negative log-likelihood per token in nats; of
    /// pairs, the mean of their losses; of off-policy distillation, the mean divergence per token.
    /// `f64::MAX` if it is not finite.
    pub loss: f64,
    /// Number of tokens of the completions.
    pub tokens: u64,
    /// Number of sequences.
    pub sequences: u32,
    /// Duration in seconds.
    pub seconds: f64,
    /// Share of pairs whose chosen completion has the higher reward; only of pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Mean reward of chosen completions minus that of rejected ones; only of pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// Whether the loss is a divergence, which has no perplexity. Since protocol version 3.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_divergence: bool,
}

impl ValidationReport {
    /// Adds the measurements to an evaluation.
    #[must_use]
    pub fn added_to(&self, metrics: EvaluationMetrics) -> EvaluationMetrics {
        let mut metrics = metrics.with_loss(self.loss, self.tokens, self.seconds);
        // The loss of pairs is not that of a token.
        let has_perplexity = self.accuracy.is_none() && !self.is_divergence;
        let perplexity = has_perplexity.then(|| self.loss.exp());
        metrics.scalars.set_option(PERPLEXITY, perplexity.filter(|value| value.is_finite()));
        metrics.scalars.set_option(PAIR_ACCURACY, self.accuracy);
        metrics.scalars.set_option(PAIR_MARGIN, self.margin);
        metrics
    }
}

/// Report of a complete checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointReport {
    /// Attempt of the learner.
    pub attempt: u32,
    /// Version of the checkpoint.
    pub version: Version,
    /// Absolute path of its folder.
    pub path: PathBuf,
}
