//! Training data.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::curriculum::CurriculumSpec;
use super::mixture::{MixturePart, PassRateFilter};
use super::source::{
    CHAT_ONLY, CHAT_ONLY_MESSAGE, ConversationSpec, HubDatasetSource, ONE_PROMPT,
    ONE_PROMPT_MESSAGE, PromptFormat, SELECTORS_OF_PATH, SELECTORS_OF_PATH_MESSAGE,
    WHOLE_CONVERSATION, WHOLE_CONVERSATION_MESSAGE, WHOLE_PAIR, WHOLE_PAIR_MESSAGE,
    chat_template_arguments, own_or, prompt_of_part, reward_fields, reward_names,
};
use crate::union::{Union, exactly_one};

/// Training rows and their prompts. Exactly one of `path`, `huggingFace` and `mixture`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
#[x_kube(
    validation = Rule::new(SELECTORS_OF_PATH).message(SELECTORS_OF_PATH_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(ONE_PROMPT).message(ONE_PROMPT_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(WHOLE_CONVERSATION).message(WHOLE_CONVERSATION_MESSAGE)
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
    /// Several sources, from which prompts are drawn by weights in an order that depends on
    /// `training.seed` alone. The other fields here are the defaults of the parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub mixture: Vec<MixturePart>,
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
    /// Shortest prompt in tokens, chat template included. Shorter rows are dropped and listed in
    /// `dropped-rows.jsonl`. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub min_prompt_tokens: Option<u32>,
    /// Longest prompt in tokens, chat template included, or longest conversation that `sft` learns.
    /// Longer rows are dropped and listed in `dropped-rows.jsonl`. Default: a prompt that exceeds
    /// the context of the model is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<u32>,
    /// Longest prompt and given completion together in tokens; of pairs, with the longer
    /// completion. Longer rows are dropped, as by `maxPromptTokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: Option<u32>,
    /// Drops rows that are too easy or too hard, by a pass rate that was measured before training.
    /// Default all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_rate: Option<PassRateFilter>,
    /// Skips rows for some epochs that the policy solved too often or too rarely, by the pass rate
    /// that is measured in training. Default no row is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curriculum: Option<CurriculumSpec>,
    /// Jinja template of the prompt over the fields of a row, for example `{{question}}`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 65536))]
    pub prompt: String,
    /// Conversation of a row in place of `prompt` and `system`, for format Chat. `sft` learns the
    /// messages of the assistant, and no others; messages after the last of these have no effect.
    /// Other algorithms continue the conversation, whose last message is not the assistant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationSpec>,
    /// Jinja template of the system turn over the fields of a row, for format Chat. Default no
    /// system turn; some chat templates then write their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub system: Option<String>,
    /// Field with the tools of a row for `prompt`, as `conversation.tools`, for format Chat.
    /// Default the tools of `rollout.workflow.tools`, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub tools: Option<String>,
    /// Arguments of the chat template besides the messages, for example `enable_thinking: false`.
    /// A name that the template does not use is an error. Default none.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "chat_template_arguments")]
    pub chat_template_arguments: Map<String, Value>,
    /// Field with the reference answer; a list or an object is its JSON text. `reward_model.answer`
    /// is a field of the object `reward_model`, here and wherever a field of a row is named.
    /// `math`, `exactMatch` and `code` rewards need it, the latter as tests; `http`, `command` and
    /// `python` rewards receive it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub answer: Option<String>,
    /// Names of the entries of `spec.rewards` that score completions of these rows. Default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_names")]
    pub rewards: Vec<String>,
    /// Fields of a row that `http`, `command` and `python` rewards receive as `fields`, by these
    /// names. The fields of a row have at most 1 MiB as JSON. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_fields")]
    pub reward_fields: Vec<String>,
    /// Jinja template of the text to learn, for example `{{answer}}`. Required by `sft` without
    /// `conversation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub completion: Option<String>,
    /// Jinja template of the preferred completion of a pair, for example `{{chosen}}`. Required by
    /// `dpo`, `orpo` and `rewardModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub chosen: Option<String>,
    /// Jinja template of the other completion of a pair, for example `{{rejected}}`. Required by
    /// `dpo`, `orpo` and `rewardModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub rejected: Option<String>,
    /// `Chat` renders the prompt as the user turn of the chat template. `Text` uses the prompt
    /// unchanged, after the beginning-of-sequence token if the tokenizer adds one. Default Chat.
    #[serde(default)]
    pub format: PromptFormat,
}

impl Union for TrainDataset {
    const MEMBERS: &'static [&'static str] = &["path", "huggingFace", "mixture"];
}

/// Rows of one source, with all of their settings.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainPart {
    /// Name; none without `mixture`.
    pub name: Option<String>,
    /// Field of its object in the spec.
    pub field: String,
    /// Weight in the mixture.
    pub weight: f64,
    /// Settings of the part, without `mixture`.
    pub data: TrainDataset,
}

impl TrainDataset {
    /// The parts of the mixture, each with the fields that it does not set from here; without
    /// `mixture`, these data as the only one. None of an absent dataset.
    pub fn parts(&self) -> Vec<TrainPart> {
        let field = "spec.dataset.train".to_owned();
        if self.is_absent() {
            return Vec::new();
        }
        if self.mixture.is_empty() {
            return vec![TrainPart { name: None, field, weight: 1.0, data: self.clone() }];
        }
        let part = |(index, own): (usize, &MixturePart)| TrainPart {
            name: Some(own.name.clone()),
            field: format!("{field}.mixture[{index}]"),
            weight: own.weight,
            data: self.of_part(own),
        };
        self.mixture.iter().enumerate().map(part).collect()
    }

    /// The source of a part, with its settings or those of these data.
    fn of_part(&self, own: &MixturePart) -> Self {
        let text = |own: &Option<String>, default: &Option<String>| {
            own.as_ref().or(default.as_ref()).cloned()
        };
        let (prompt, conversation) = prompt_of_part(
            (own.prompt.as_deref(), own.conversation.as_ref()),
            (&self.prompt, self.conversation.as_ref()),
        );
        // A conversation has the messages of all roles.
        let of_prompt = |own: &Option<String>, default: &Option<String>| {
            text(own, default).filter(|_| conversation.is_none())
        };
        let system = of_prompt(&own.system, &self.system);
        let tools = of_prompt(&own.tools, &self.tools);
        let completion = of_prompt(&own.completion, &self.completion);
        Self {
            path: own.path.clone(),
            hugging_face: own.hugging_face.clone(),
            mixture: Vec::new(),
            split: own.split.clone(),
            subset: own.subset.clone(),
            min_prompt_tokens: own.min_prompt_tokens.or(self.min_prompt_tokens),
            max_prompt_tokens: own.max_prompt_tokens.or(self.max_prompt_tokens),
            max_tokens: own.max_tokens.or(self.max_tokens),
            pass_rate: own.pass_rate.as_ref().or(self.pass_rate.as_ref()).cloned(),
            curriculum: own.curriculum.as_ref().or(self.curriculum.as_ref()).cloned(),
            prompt,
            conversation,
            system,
            tools,
            chat_template_arguments: self.chat_template_arguments.clone(),
            answer: text(&own.answer, &self.answer),
            rewards: own_or(&own.rewards, &self.rewards),
            reward_fields: own_or(&own.reward_fields, &self.reward_fields),
            completion,
            chosen: text(&own.chosen, &self.chosen),
            rejected: text(&own.rejected, &self.rejected),
            format: self.format,
        }
    }

    /// Field of a row with its tools.
    pub fn tools_field(&self) -> Option<&str> {
        let conversation = self.conversation.as_ref().and_then(|own| own.tools.as_deref());
        conversation.or(self.tools.as_deref())
    }

    /// Whether the spec has no training data: a prompt is never empty.
    pub fn is_absent(&self) -> bool {
        self.prompt.is_empty() && self.conversation.is_none()
    }
}
