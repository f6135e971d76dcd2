//! Rewards of a reward model, which a server or engines of the job serve.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::roles::InferenceSpec;
use crate::storage::SecretKeyReference;
use crate::verifier::{concurrency, max_outage_seconds, retries, timeout_seconds};

/// Settings of the `model` reward: the output of a sequence classifier with one label, such as the
/// export of a job with `algorithm.rewardModel`, for the last token of `text`. Exactly one of `url`
/// and `engines` serves it, on the route `/classify` of SGLang.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.url) != has(self.engines)")
        .message("set exactly one of url and engines")
)]
#[x_kube(
    validation = Rule::new("has(self.path) == has(self.engines)")
        .message("set path and engines together: path is the folder of the model that the engines \
                 serve")
)]
#[x_kube(
    validation = Rule::new("!has(self.engines) || self.engines.replicas >= 1")
        .message("engines.replicas must be at least 1")
)]
#[x_kube(
    validation = Rule::new("!has(self.engines) || !has(self.tokenSecretRef)")
        .message("tokenSecretRef is of a server at url: engines of the job have keys of the job; \
                 remove it")
)]
pub struct ModelReward {
    /// URL of a server that the job does not start, without `/classify`: SGLang or `rljob-engine`
    /// with `--is-embedding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ ]"))]
    pub url: Option<String>,
    /// Engines of the job that serve the model in `path`, with the fields of `inference`, of which
    /// nothing is inherited: `sglang`, `embedded` or GPUs in `resources.limits` must be set if
    /// `inference` runs SGLang. Their weights never change. Calls go to the engine with the least
    /// load, and are repeated on another one if it is lost. One reward of a job has engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<Box<InferenceSpec>>,
    /// Folder of the model of `engines`, on a volume that their pods mount: that of a classifier of
    /// the family Llama, Qwen2 or Qwen3 for `embedded`. `rljob run` resolves relative paths against
    /// the job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Key of a Secret with a token, which requests to `url` carry as `Authorization: Bearer
    /// TOKEN`. Read for every request; `rljob run` reads the file `NAME/KEY` in the folder
    /// `RLJOB_SECRETS`. `http://` is not encrypted. Default no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
    /// Jinja template of the text to score over `prompt` and `completion`, both without chat
    /// template. The tokenizer of the reward model encodes it, so that it contains what the reward
    /// model was trained on: its chat format, and the end-of-sequence token as text.
    #[schemars(length(min = 1, max = 16_384))]
    pub text: String,
    /// Seconds per try. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries, after growing waits of at most 30 s. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Concurrent requests, to all engines together. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
    /// Seconds for which sampling waits for a server that is down: it cannot be reached, no engine
    /// is ready, or it fails for 16 completions in a row. Meanwhile, Ready has reason
    /// RewardUnavailable. Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

impl ModelReward {
    /// The model folder and the engines that serve it, if they are of the job.
    pub fn served(&self) -> Option<(&str, &InferenceSpec)> {
        Some((self.path.as_deref()?, self.engines.as_deref()?))
    }
}
