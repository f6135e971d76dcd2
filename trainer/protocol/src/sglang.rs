//! The part of SGLang 0.5.12's HTTP interface that a run uses: what the coordinator sends, and what
//! the embedded engine serves and answers.
//!
//! Fields are SGLang's own, in snake case. What the embedded engine does not act on must not be
//! sent to it: requests deny unknown fields (SGLang itself ignores an unknown top-level field).
//! Answers do not, since SGLang sends many more.

use serde::{Deserialize, Serialize};

/// `POST /generate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateRequest {
    /// Request id, for `/abort_request` (which matches by prefix).
    pub rid: String,
    /// The prompt's token ids.
    pub input_ids: Vec<i64>,
    /// How to sample.
    pub sampling_params: SamplingParams,
    /// Return log-probabilities of the sampled tokens.
    pub return_logprob: bool,
    /// Answer as server-sent events, cumulative.
    #[serde(default)]
    pub stream: bool,
}

/// How to sample. Every field is sent explicitly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingParams {
    /// Longest completion in tokens.
    pub max_new_tokens: u32,
    /// Below 1e-6: greedy.
    pub temperature: f64,
    /// Only 1: the whole distribution.
    pub top_p: f64,
    /// Only −1: the whole vocabulary.
    pub top_k: i64,
    /// Tokens that end the completion; the one that did is in the output.
    pub stop_token_ids: Vec<i64>,
    /// Continue past the model's own end-of-sequence token. (In SGLang, true also disables
    /// `stop_token_ids`.)
    pub ignore_eos: bool,
    /// Keep special tokens in the text.
    pub skip_special_tokens: bool,
    /// Seed of this sample; SGLang reads it only in its deterministic mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_seed: Option<u64>,
}

/// Answer of `/generate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateResponse {
    /// Decoded text; empty from an engine without a tokenizer.
    #[serde(default)]
    pub text: String,
    /// Sampled token ids, the stop token included.
    pub output_ids: Vec<i64>,
    /// The rest.
    pub meta_info: MetaInfo,
}

/// Part of a generate answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetaInfo {
    /// Request id.
    pub id: String,
    /// Why it ended; null while streaming.
    pub finish_reason: Option<FinishReason>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens sampled.
    pub completion_tokens: u32,
    /// Prompt tokens found in the cache.
    #[serde(default)]
    pub cached_tokens: u32,
    /// The engine's weights at the END of the request.
    pub weight_version: String,
    /// `[log-probability, token id, null]` of each sampled token.
    #[serde(default)]
    pub output_token_logprobs: Vec<(f64, i64, Option<String>)>,
    /// Seconds from arrival to end.
    #[serde(default)]
    pub e2e_latency: f64,
}

/// Why a completion ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop token (its id) or string.
    Stop {
        /// What matched.
        matched: serde_json::Value,
    },
    /// `max_new_tokens` reached.
    Length {
        /// That many.
        length: u32,
    },
    /// Aborted; partial tokens are in the answer.
    Abort {
        /// What happened.
        message: String,
    },
}

/// `GET /model_info`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Folder of the weights; follows `/update_weights_from_disk`.
    pub model_path: String,
    /// Always true here.
    pub is_generation: bool,
    /// `default` until an update says otherwise.
    pub weight_version: String,
}

/// `POST /pause_generation`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseGeneration {
    /// `abort`: requests in flight are answered at once with what they have. `retract`: they go
    /// back to the queue. `in_place`: they stay in place.
    pub mode: String,
}

/// `POST /continue_generation`; a body (`{}`) is required.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct ContinueGeneration {}

/// `POST /abort_request`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AbortRequest {
    /// Request id, matched by prefix.
    #[serde(default)]
    pub rid: String,
    /// End all.
    #[serde(default)]
    pub abort_all: bool,
}

/// `POST /update_weights_from_disk`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateWeightsFromDisk {
    /// A Hugging Face folder.
    pub model_path: String,
    /// The version to stamp; always send it. Without one SGLang keeps the old version and the
    /// embedded engine says `default`.
    #[serde(default = "default_version")]
    pub weight_version: String,
    /// Drop the KV cache; the server must be idle.
    #[serde(default = "yes")]
    pub flush_cache: bool,
}

/// `POST /init_weights_update_group`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitWeightsUpdateGroup {
    /// Where the sender's TCPStore is.
    pub master_address: String,
    /// Its port.
    pub master_port: u16,
    /// Rank of the engine's first process.
    pub rank_offset: u32,
    /// Ranks in the group.
    pub world_size: u32,
    /// The group's name, unused in this server process.
    pub group_name: String,
    /// `gloo` or `nccl`.
    pub backend: String,
}

/// `POST /update_weights_from_distributed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateWeightsFromDistributed {
    /// Hugging Face names, in the order of the broadcasts.
    pub names: Vec<String>,
    /// `float32` or `bfloat16`.
    pub dtypes: Vec<String>,
    /// Dimensions.
    pub shapes: Vec<Vec<i64>>,
    /// The group.
    pub group_name: String,
    /// Drop the KV cache; the server must be idle.
    #[serde(default = "yes")]
    pub flush_cache: bool,
    /// The version to stamp, with the last bucket.
    #[serde(default = "default_version")]
    pub weight_version: String,
}

/// `POST /destroy_weights_update_group`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestroyWeightsUpdateGroup {
    /// The group.
    pub group_name: String,
}

/// Answer of the weight routes; a failure has HTTP status 400.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsAnswer {
    /// Whether it worked.
    pub success: bool,
    /// What happened.
    pub message: String,
}

/// `GET /get_weights_by_name?name=…&truncate_size=…` answers a list of floats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetWeightsByName {
    /// Hugging Face name.
    pub name: String,
    /// Entries returned.
    #[serde(default = "truncate_size")]
    pub truncate_size: usize,
}

fn default_version() -> String {
    "default".to_owned()
}

fn yes() -> bool {
    true
}

fn truncate_size() -> usize {
    100
}

/// SGLang's error body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorMessage,
}

/// Part of SGLang's error body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorMessage {
    /// What went wrong.
    pub message: String,
}
