//! Training and evaluation data.

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::main_branch;
use crate::storage::SecretKeyReference;

/// CEL rules of training and evaluation data.
const ONE_SOURCE: &str = "[has(self.path), has(self.huggingFace)].filter(x, x).size() == 1";
const SELECTORS_OF_PATH: &str = "!has(self.huggingFace) || !has(self.split) && !has(self.subset)";
const SELECTORS_OF_PATH_MESSAGE: &str =
    "split and subset select files of path; huggingFace has its own split and config";

const WHOLE_PAIR: &str = "has(self.chosen) == has(self.rejected)";
const WHOLE_PAIR_MESSAGE: &str = "set chosen and rejected together";

const CHAT_ONLY: &str = "self.format == 'Chat' || !has(self.system) && \
                         !has(self.chatTemplateArguments)";
const CHAT_ONLY_MESSAGE: &str =
    "system and chatTemplateArguments belong to the chat template; format Text has none";

/// Training and evaluation data.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// Training data. Required, except by `algorithm.evaluation`, which has none.
    #[serde(default, skip_serializing_if = "TrainDataset::is_absent")]
    pub train: TrainDataset,
    /// Evaluation data: accuracy, scored by the rewards of training, or the loss of `sft` or of
    /// pairs. Default no evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationDataset>,
    /// Largest share of rows that may have a reference answer that a reward cannot compare with
    /// anything, for example a sentence where a formula is expected. Such rows are dropped, counted
    /// and listed in `dropped-rows.jsonl` of the run; beyond this share, of the training or of the
    /// evaluation rows, the run fails at its start. Default 0.05.
    #[serde(default = "max_unusable_share")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_unusable_share: f64,
}

fn max_unusable_share() -> f64 {
    0.05
}

/// Dataset repository of the Hugging Face Hub.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HubDatasetSource {
    /// Repository, for example `openai/gsm8k`.
    #[schemars(
        length(min = 1, max = 193),
        regex(pattern = "^[A-Za-z0-9][-A-Za-z0-9._]*(/[A-Za-z0-9][-A-Za-z0-9._]*)?$")
    )]
    pub repo: String,
    /// Configuration (subset) of the dataset. Default the one that its README.md marks as default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub config: Option<String>,
    /// Split of the dataset. Default `train` for training and `test` for evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub split: Option<String>,
    /// Branch, tag or commit. The run resolves it once, at its start. Default `main`.
    #[serde(default = "main_branch")]
    #[schemars(length(min = 1, max = 255), regex(pattern = "^[A-Za-z0-9][-A-Za-z0-9._/]*$"))]
    pub revision: String,
    /// Access token for private and gated repositories. Default no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
}

/// Training rows and their prompts. Exactly one of `path` and `huggingFace`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new(ONE_SOURCE).message("set exactly one of path and huggingFace")
)]
#[x_kube(
    validation = Rule::new(SELECTORS_OF_PATH).message(SELECTORS_OF_PATH_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(CHAT_ONLY).message(CHAT_ONLY_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(WHOLE_PAIR).message(WHOLE_PAIR_MESSAGE)
)]
pub struct TrainDataset {
    /// A `.jsonl` file (one object per line), a `.parquet` file, or a Hugging Face dataset folder
    /// of such files. `rljob run` resolves a relative path against the job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Dataset repository of the Hugging Face Hub. The run downloads it once and keeps the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HubDatasetSource>,
    /// Split of a dataset folder, by its README.md or file names; not for a single file. Default
    /// `train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub split: Option<String>,
    /// Subset (configuration) of a dataset folder whose README.md lists several. Default the one
    /// that is marked as default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub subset: Option<String>,
    /// Longest prompt in tokens, chat template included. Longer rows are dropped and counted in the
    /// log. Default: a prompt that exceeds the context of the model is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<u32>,
    /// Jinja template of the prompt over the fields of a row, for example `{{question}}`.
    #[schemars(length(min = 1, max = 65536))]
    pub prompt: String,
    /// Jinja template of the system turn over the fields of a row, for format Chat. Default no
    /// system turn; some chat templates then write their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub system: Option<String>,
    /// Arguments of the chat template besides the messages, for example `enable_thinking: false`.
    /// A name that the template does not use is an error. Default none.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "chat_template_arguments")]
    pub chat_template_arguments: Map<String, Value>,
    /// Field with the reference answer; a list or an object is its JSON text. `math`, `exactMatch`
    /// and `code` rewards need it, the latter as tests; `http`, `command` and `python` rewards
    /// receive it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub answer: Option<String>,
    /// Jinja template of the text to learn, for example `{{answer}}`. Required by `sft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub completion: Option<String>,
    /// Jinja template of the preferred completion of a pair, for example `{{chosen}}`. Required by
    /// `dpo` and `rewardModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub chosen: Option<String>,
    /// Jinja template of the other completion of a pair, for example `{{rejected}}`. Required by
    /// `dpo` and `rewardModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub rejected: Option<String>,
    /// `Chat` renders the prompt as the user turn of the chat template. `Text` uses the prompt
    /// unchanged, after the beginning-of-sequence token if the tokenizer adds one. Default Chat.
    #[serde(default)]
    pub format: PromptFormat,
}

impl TrainDataset {
    /// Whether the spec has no training data: a prompt is never empty.
    pub fn is_absent(&self) -> bool {
        self.prompt.is_empty()
    }
}

/// Evaluation rows. Exactly one of `path` and `huggingFace`. With `answer`, an evaluation measures
/// accuracy: each prompt is completed greedily once, and `samples` times at `temperature`. With
/// `completion`, `sft` measures the loss: the mean negative log-likelihood of the completion
/// tokens. With `chosen` and `rejected`, algorithms that learn from pairs measure their loss, the
/// share of pairs that they order correctly and the margin.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.answer) || has(self.completion) || has(self.chosen)")
        .message("set answer, which the reward compares with, completion, whose loss sft \
                 measures, or chosen and rejected, whose loss dpo and rewardModel measure")
)]
#[x_kube(
    validation = Rule::new(ONE_SOURCE).message("set exactly one of path and huggingFace")
)]
#[x_kube(
    validation = Rule::new(SELECTORS_OF_PATH).message(SELECTORS_OF_PATH_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(CHAT_ONLY).message(CHAT_ONLY_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(WHOLE_PAIR).message(WHOLE_PAIR_MESSAGE)
)]
pub struct EvaluationDataset {
    /// A `.jsonl` file (one object per line), a `.parquet` file, or a Hugging Face dataset folder
    /// of such files. `rljob run` resolves a relative path against the job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Dataset repository of the Hugging Face Hub. The run downloads it once and keeps the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HubDatasetSource>,
    /// Split of a dataset folder, by its README.md or file names; not for a single file. Default
    /// `test`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub split: Option<String>,
    /// Subset (configuration) of a dataset folder whose README.md lists several. Default the one
    /// that is marked as default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub subset: Option<String>,
    /// Longest prompt in tokens, chat template included. Longer rows are dropped and counted in the
    /// log. Default: a prompt that exceeds the context of the model is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<u32>,
    /// Jinja template of the prompt over the fields of a row.
    #[schemars(length(min = 1, max = 65536))]
    pub prompt: String,
    /// Jinja template of the system turn over the fields of a row, for format Chat. Default no
    /// system turn; some chat templates then write their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub system: Option<String>,
    /// Arguments of the chat template besides the messages, for example `enable_thinking: false`.
    /// A name that the template does not use is an error. Default none.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "chat_template_arguments")]
    pub chat_template_arguments: Map<String, Value>,
    /// Field with the reference answer that rewards compare with. Required by `grpo`. Default: no
    /// accuracy is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub answer: Option<String>,
    /// Field with the category of a row, for example its subject: results are also reported by
    /// category. At most 100 different values. Default no categories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub category: Option<String>,
    /// Jinja template of the text whose loss `sft` measures, for example `{{answer}}`. Default: no
    /// loss is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub completion: Option<String>,
    /// Jinja template of the preferred completion of a pair, for example `{{chosen}}`. Default: no
    /// loss of pairs is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub chosen: Option<String>,
    /// Jinja template of the other completion of a pair, for example `{{rejected}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub rejected: Option<String>,
    /// `Chat` or `Text`, as for training data. Default Chat.
    #[serde(default)]
    pub format: PromptFormat,
    /// Steps between evaluations. The run also evaluates before the first and after the last step.
    /// Default 10.
    #[serde(default = "evaluation_every_steps")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub every_steps: u32,
    /// Number of prompts, drawn from all rows without replacement by `sampleSeed`. Every evaluation
    /// of the run uses the same ones. Default all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub limit: Option<u32>,
    /// Seed of the sample of `limit` prompts. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub sample_seed: u32,
    /// Sampled completions per prompt, in addition to the greedy one. pass@k (unbiased estimator of
    /// Chen et al., arXiv 2107.03374) and maj@k are computed from them for k = 1, 2, 4, …. Default
    /// 1.
    #[serde(default = "evaluation_samples")]
    #[schemars(range(min = 1, max = 1024))]
    pub samples: u32,
    /// Temperature of the sampled completions. Default `rollout.temperature`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.01, max = 10.0))]
    pub temperature: Option<f64>,
    /// Nucleus of the sampled completions: the most probable tokens that together have this
    /// probability. Default 1, all tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.01, max = 1.0))]
    pub top_p: Option<f64>,
    /// Maximum length of a completion in tokens. Default `rollout.maxNewTokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_new_tokens: Option<u32>,
    /// Smallest reward of a correct completion, for pass@k. Default 1.
    #[serde(default = "correct_reward")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub correct_reward: f64,
}

/// Values are free; rules see a change of the named arguments.
fn chat_template_arguments(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {"enable_thinking": {
            "type": "boolean",
            "description": "Argument of several model families.",
        }},
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

fn evaluation_samples() -> u32 {
    1
}

fn correct_reward() -> f64 {
    1.0
}

fn evaluation_every_steps() -> u32 {
    10
}

/// Conversion of a rendered prompt to tokens.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum PromptFormat {
    /// User turn of the chat template.
    #[default]
    Chat,
    /// Text after the beginning-of-sequence token, if the tokenizer adds one.
    Text,
}
