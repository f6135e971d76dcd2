//! Parts of a mixture of training data, and the filter by pass rate.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::curriculum::CurriculumSpec;
use super::source::{
    AT_MOST_ONE_PROMPT, AT_MOST_ONE_PROMPT_MESSAGE, ConversationSpec, HubDatasetSource,
    SELECTORS_OF_PATH, SELECTORS_OF_PATH_MESSAGE, reward_fields, reward_names,
};
use crate::union::{Union, exactly_one};

/// A part of a mixture. Exactly one of `path` and `huggingFace`. Every other field that it does not
/// set, except the weight, is that of `dataset.train`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
#[x_kube(
    validation = Rule::new(SELECTORS_OF_PATH).message(SELECTORS_OF_PATH_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(AT_MOST_ONE_PROMPT).message(AT_MOST_ONE_PROMPT_MESSAGE)
)]
pub struct MixturePart {
    /// Name of the part, unique in the list. Metrics report its share as `mixture/<name>`.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-_.A-Za-z0-9]*)$"))]
    pub name: String,
    /// Share of the prompts, relative to the sum of all weights. Of 1,000 successive prompts, the
    /// part has exactly its share, rounded, and at least one. Default 1.
    #[serde(default = "weight")]
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    pub weight: f64,
    /// File or dataset folder, as in `dataset.train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Dataset repository of the Hugging Face Hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HubDatasetSource>,
    /// Split of a dataset folder. Default `train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub split: Option<String>,
    /// Subset (configuration) of a dataset folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub subset: Option<String>,
    /// Shortest prompt in tokens, chat template included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub min_prompt_tokens: Option<u32>,
    /// Longest prompt in tokens, chat template included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<u32>,
    /// Longest prompt and given completion together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: Option<u32>,
    /// Rows by a measured pass rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_rate: Option<PassRateFilter>,
    /// Rows to skip by their pass rate in training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curriculum: Option<CurriculumSpec>,
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
    /// Field with the reference answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub answer: Option<String>,
    /// Names of the entries of `spec.rewards` that score completions of the part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_names")]
    pub rewards: Vec<String>,
    /// Fields of a row that rewards receive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_fields")]
    pub reward_fields: Vec<String>,
    /// Jinja template of the text to learn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub completion: Option<String>,
    /// Jinja template of the preferred completion of a pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub chosen: Option<String>,
    /// Jinja template of the other completion of a pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub rejected: Option<String>,
}

impl Union for MixturePart {
    const MEMBERS: &'static [&'static str] = &["path", "huggingFace"];
}

fn weight() -> f64 {
    1.0
}

/// Rows whose pass rate, measured before training, is within bounds.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.min <= self.max").message("min must be at most max")
)]
pub struct PassRateFilter {
    /// Field of a row with its pass rate, a number from 0 to 1: the share of a model's completions
    /// that were correct.
    #[schemars(length(min = 1, max = 256))]
    pub field: String,
    /// Smallest pass rate. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min: f64,
    /// Largest pass rate. Default 1.
    #[serde(default = "max_pass_rate")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max: f64,
}

fn max_pass_rate() -> f64 {
    1.0
}
