//! Requests and responses of SGLang 0.5.12's HTTP API that a run uses, for the coordinator and the
//! embedded engine.
//!
//! Fields have SGLang's names, in snake case. Requests deny unknown fields, so that the embedded
//! engine rejects what it does not implement; SGLang ignores unknown top-level fields. Responses
//! accept unknown fields, because SGLang sends many more.

use serde::{Deserialize, Serialize};

/// The release of SGLang whose API this is.
pub const SGLANG_RELEASE: &str = "0.5.12";

/// `POST /generate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateRequest {
    /// Request id, for `/abort_request` (which matches by prefix).
    pub rid: String,
    /// Token ids of the prompt.
    pub input_ids: Vec<i64>,
    /// Sampling parameters.
    pub sampling_params: SamplingParams,
    /// Return log-probabilities of the sampled tokens.
    pub return_logprob: bool,
    /// Respond with server-sent events. Each has the whole output so far; with
    /// `--incremental-streaming-output`, the output since the last one.
    #[serde(default)]
    pub stream: bool,
    /// Requests share cached prefixes only with requests of the same key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_key: Option<String>,
}

/// `POST /generate` for several samples. Each event has the `index` of its sample.
#[derive(Debug, Serialize)]
pub struct GenerateRequests<'a> {
    rid: Vec<&'a str>,
    input_ids: Vec<&'a [i64]>,
    sampling_params: Vec<&'a SamplingParams>,
    return_logprob: bool,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_key: Option<&'a str>,
}

impl<'a> GenerateRequests<'a> {
    /// Joins requests with the same `extra_key`, that stream log-probabilities.
    pub fn new(requests: &[&'a GenerateRequest]) -> Self {
        Self {
            rid: requests.iter().map(|request| request.rid.as_str()).collect(),
            input_ids: requests.iter().map(|request| request.input_ids.as_slice()).collect(),
            sampling_params: requests.iter().map(|request| &request.sampling_params).collect(),
            return_logprob: true,
            stream: true,
            extra_key: requests.first().and_then(|request| request.extra_key.as_deref()),
        }
    }
}

/// Sampling parameters. Fields at SGLang's default values may be absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingParams {
    /// Maximum length of the completion in tokens.
    pub max_new_tokens: u32,
    /// Temperature; below 1e-6, sampling is greedy.
    pub temperature: f64,
    /// Only 1, the whole distribution.
    pub top_p: f64,
    /// Only −1, the whole vocabulary.
    pub top_k: i64,
    /// Minimum number of tokens before a stop token.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_new_tokens: u32,
    /// Strings that end the completion. The output includes the tokens of the string; the text ends
    /// before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Tokens that end the completion. The output includes the token.
    pub stop_token_ids: Vec<i64>,
    /// Ignore the model's end-of-sequence token. In SGLang, true also disables `stop_token_ids`.
    pub ignore_eos: bool,
    /// Remove special tokens from the text.
    pub skip_special_tokens: bool,
    /// Seed of this sample; SGLang reads it only in its deterministic mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_seed: Option<u64>,
    /// Tokens between two events of a stream, by default as the engine was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_interval: Option<u32>,
}

/// Response of `/generate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateResponse {
    /// Decoded text; empty from an engine without a tokenizer.
    #[serde(default)]
    pub text: String,
    /// Sampled token ids, including the stop token.
    pub output_ids: Vec<i64>,
    /// Metadata.
    pub meta_info: MetaInfo,
}

/// Metadata of a completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetaInfo {
    /// Request id.
    pub id: String,
    /// Finish reason; absent while streaming.
    pub finish_reason: Option<FinishReason>,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Number of sampled tokens.
    pub completion_tokens: u32,
    /// Number of prompt tokens in the prefix cache.
    #[serde(default)]
    pub cached_tokens: u32,
    /// Version of the engine's weights at the end of the request.
    pub weight_version: String,
    /// `[log-probability, token id, null]` of each sampled token.
    #[serde(default)]
    pub output_token_logprobs: Vec<(f64, i64, Option<String>)>,
    /// Seconds from the arrival of the request to its end.
    #[serde(default)]
    pub e2e_latency: f64,
}

/// Finish reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop token (its id) or string.
    Stop {
        /// Matched token id or string.
        matched: serde_json::Value,
    },
    /// `max_new_tokens` reached.
    Length {
        /// Value of `max_new_tokens`.
        length: u32,
    },
    /// Aborted; the response has the tokens sampled so far.
    Abort {
        /// Error message.
        message: String,
    },
}

/// `POST /classify`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassifyRequest {
    /// Text, which the server encodes.
    pub text: String,
}

/// Response of `/classify` to one text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classified {
    /// One number for each label of the classifier.
    pub embedding: Vec<f64>,
}

/// `GET /model_info`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Folder of the weights. Changes with `/update_weights_from_disk`.
    pub model_path: String,
    /// False of a classifier.
    pub is_generation: bool,
    /// Version of the weights; `default` before the first update.
    pub weight_version: String,
}

/// `GET /server_info`. SGLang adds all its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Release of SGLang whose API the engine has.
    pub version: String,
    /// Whether an event of a stream has the output since the last one, instead of all.
    #[serde(default)]
    pub incremental_streaming_output: bool,
    /// State of each data-parallel scheduler.
    #[serde(default)]
    pub internal_states: Vec<InternalState>,
}

/// State of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InternalState {
    /// Most requests that the scheduler decodes together.
    #[serde(default, rename = "effective_max_running_requests_per_dp")]
    pub max_running_requests: Option<u32>,
}

/// `POST /pause_generation`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseGeneration {
    /// `abort` ends requests in flight with the tokens sampled so far; `retract` returns them to
    /// the queue; `in_place` keeps them.
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
    /// Abort all requests.
    #[serde(default)]
    pub abort_all: bool,
}

/// `POST /update_weights_from_disk`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateWeightsFromDisk {
    /// Hugging Face folder.
    pub model_path: String,
    /// New version of the weights. Always send it: without it, SGLang keeps the old version, and
    /// the embedded engine reports `default`.
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
    /// Address of the sender's TCPStore.
    pub master_address: String,
    /// Port of the TCPStore.
    pub master_port: u16,
    /// Rank of the engine's first process.
    pub rank_offset: u32,
    /// Number of ranks of the group.
    pub world_size: u32,
    /// Name of the group, unique for this server process.
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
    /// Name of the group.
    pub group_name: String,
    /// Drop the KV cache; the server must be idle.
    #[serde(default = "yes")]
    pub flush_cache: bool,
    /// New version of the weights, sent with the last bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_version: Option<String>,
    /// `None`: one broadcast for each tensor. [`FLATTENED_BUCKET`]: one broadcast of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_format: Option<String>,
}

/// Format of an update that is one broadcast of bytes: those of each tensor, in order.
pub const FLATTENED_BUCKET: &str = "flattened_bucket";

/// `POST /destroy_weights_update_group`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestroyWeightsUpdateGroup {
    /// Name of the group.
    pub group_name: String,
}

/// Response of the weight routes. A failure has HTTP status 400.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsAnswer {
    /// Whether the request succeeded.
    pub success: bool,
    /// Result or error message.
    pub message: String,
}

/// `GET /get_weights_by_name?name=…&truncate_size=…` responds with a list of floats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetWeightsByName {
    /// Hugging Face name.
    pub name: String,
    /// Number of returned entries.
    #[serde(default = "truncate_size")]
    pub truncate_size: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
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

/// Error body of SGLang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Error.
    pub error: ErrorMessage,
}

/// Error in the error body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorMessage {
    /// Error message.
    pub message: String,
}
