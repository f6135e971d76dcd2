//! Suites of an evaluation.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::source::{
    AT_MOST_ONE_PROMPT, AT_MOST_ONE_PROMPT_MESSAGE, ConversationSpec, HubDatasetSource,
    PromptFormat, SELECTORS_OF_PATH, SELECTORS_OF_PATH_MESSAGE, chat_template_arguments,
    reward_fields, reward_names,
};
use crate::union::{Union, exactly_one};

/// A suite. Exactly one of `path` and `huggingFace`. Every other field that it does not set is that
/// of `dataset.evaluation`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
#[x_kube(
    validation = Rule::new(SELECTORS_OF_PATH).message(SELECTORS_OF_PATH_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(AT_MOST_ONE_PROMPT).message(AT_MOST_ONE_PROMPT_MESSAGE)
)]
pub struct EvaluationSuite {
    /// Name of the suite, unique in the list. Results and metrics have it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-_.A-Za-z0-9]*)$"))]
    pub name: String,
    /// File or dataset folder, as in `dataset.evaluation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Dataset repository of the Hugging Face Hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HubDatasetSource>,
    /// Split of a dataset folder. Default `test`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub split: Option<String>,
    /// Subset (configuration) of a dataset folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub subset: Option<String>,
    /// Longest prompt in tokens, chat template included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<u32>,
    /// Jinja template of the prompt over the fields of a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub prompt: Option<String>,
    /// Conversation of a row in place of a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationSpec>,
    /// Jinja template of the system turn, for format Chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub system: Option<String>,
    /// Field with the tools of a row for `prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub tools: Option<String>,
    /// Arguments of the chat template besides the messages.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "chat_template_arguments")]
    pub chat_template_arguments: Map<String, Value>,
    /// Field with the reference answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub answer: Option<String>,
    /// Names of the entries of `spec.rewards` that score completions of the suite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_names")]
    pub rewards: Vec<String>,
    /// Fields of a row that rewards receive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_fields")]
    pub reward_fields: Vec<String>,
    /// Field with the category of a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub category: Option<String>,
    /// `Chat` or `Text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<PromptFormat>,
    /// Steps between evaluations of the suite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub every_steps: Option<u32>,
    /// Number of prompts, drawn from all rows by `sampleSeed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub limit: Option<u32>,
    /// Seed of the sample of `limit` prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub sample_seed: Option<u32>,
    /// Sampled completions per prompt, in addition to the greedy one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub samples: Option<u32>,
    /// Temperature of the sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.01, max = 10.0))]
    pub temperature: Option<f64>,
    /// Nucleus of the sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.01, max = 1.0))]
    pub top_p: Option<f64>,
    /// Maximum length of a completion in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_new_tokens: Option<u32>,
    /// Smallest reward of a correct completion, for pass@k.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub correct_reward: Option<f64>,
}

impl Union for EvaluationSuite {
    const MEMBERS: &'static [&'static str] = &["path", "huggingFace"];
}
