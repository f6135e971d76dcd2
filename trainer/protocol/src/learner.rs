//! The learners' side of the coordinator: rank 0 asks what to do next and tells the other ranks;
//! every rank fetches its part of a batch.
//!
//! ```text
//! GET  /v1/instructions?attempt=A&step=S   rank 0, S = steps done; held up to 20 s → Instruction
//! GET  /v1/batches/{step}?attempt=A&rank=R&world=W            → batch.rs, as safetensors
//! POST /v1/steps/{step}          StepReport        rank 0, after the optimizer step
//! GET  /v1/validations/{step}?attempt=A&rank=R&world=W        → the validation data as a batch
//! POST /v1/validations/{step}    ValidationReport  rank 0
//! POST /v1/checkpoints/{step}    CheckpointReport  rank 0, once the manifest is written
//! POST /v1/weights               WeightsReady      a sender, when its staging copy is ready
//! ```
//! Each names its attempt; an older one gets 409 and ends the learner.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::status::StepMetrics;
use crate::version::Version;

/// What the learner group is to do next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Instruction {
    /// Nothing yet: ask again.
    Wait,
    /// Fetch batch `step` (= steps done + 1) and train on it.
    Train {
        /// The step to make.
        step: u32,
    },
    /// Fetch the validation data, measure its loss without training on it, then post
    /// [`ValidationReport`]. `sft` only.
    Validate {
        /// Steps done.
        step: u32,
    },
    /// Write the weights as a Hugging Face folder (without tokenizer) to `path`, then post
    /// [`WeightsReady::Disk`].
    PublishToDisk {
        /// Version of the weights, for the engines.
        version: Version,
        /// Absolute folder, not yet existing.
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
    /// Write a checkpoint of the steps done, in the background, then post [`CheckpointReport`].
    Checkpoint {
        /// Its name.
        version: Version,
        /// Absolute folder, not yet existing.
        path: PathBuf,
    },
    /// Write the model with its tokenizer to `path`, in the background, then post
    /// [`WeightsReady::Disk`] with this version; if it is repeated, wait for it and post once more.
    Export {
        /// Version of the weights.
        version: Version,
        /// Absolute folder; replaced if it exists.
        path: PathBuf,
    },
    /// Wait for the checkpoint being written and exit with code 0.
    Exit,
}

/// A broadcast to one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transfer {
    /// The engine's name.
    pub engine: String,
    /// Learner rank that sends to it: it is rank 0 of the group and hosts the store.
    pub sender: u32,
    /// Name of the group, never used before with this engine process.
    pub group: String,
    /// 1 + the engine's ranks.
    pub world_size: u32,
}

/// A sender's staging copy is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum WeightsReady {
    /// A complete folder.
    Disk {
        /// Incarnation.
        attempt: u32,
        /// Version of the weights in it.
        version: Version,
        /// The folder.
        path: PathBuf,
    },
    /// The sender hosts a TCPStore and is about to broadcast `tensors` in this order, in each group
    /// in turn.
    Distributed {
        /// Incarnation.
        attempt: u32,
        /// Version of the weights.
        version: Version,
        /// The sender's rank.
        rank: u32,
        /// Address of the sender's TCPStore.
        store_address: String,
        /// Port of the sender's TCPStore.
        store_port: u16,
        /// What is sent, in order.
        tensors: Vec<TensorInfo>,
    },
}

/// Name, type and shape of a tensor, in SGLang's words.
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

/// A step is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepReport {
    /// Incarnation.
    pub attempt: u32,
    /// The learners' part of the metrics: `reward`, `completion_tokens`, `rollout_seconds`,
    /// `sync_seconds` and `tokens_per_second` are filled in by the coordinator.
    pub metrics: StepMetrics,
}

/// The loss of the validation data is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ValidationReport {
    /// Incarnation.
    pub attempt: u32,
    /// Mean negative log-likelihood per token, in nats; the largest number where it is not finite.
    pub loss: f64,
    /// Tokens that it is the mean over.
    pub tokens: u64,
    /// Sequences that they are in.
    pub sequences: u32,
    /// Seconds it took.
    pub seconds: f64,
}

/// A checkpoint is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointReport {
    /// Incarnation.
    pub attempt: u32,
    /// Its name.
    pub version: Version,
    /// Its folder, absolute.
    pub path: PathBuf,
}
