//! Training data.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::source::{
    CHAT_ONLY, CHAT_ONLY_MESSAGE, HubDatasetSource, ONE_SOURCE, PromptFormat, SELECTORS_OF_PATH,
    SELECTORS_OF_PATH_MESSAGE, WHOLE_PAIR, WHOLE_PAIR_MESSAGE, chat_template_arguments,
    reward_names,
};


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
    /// Names of the entries of `spec.rewards` that score completions of these rows. Default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_names")]
    pub rewards: Vec<String>,
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
