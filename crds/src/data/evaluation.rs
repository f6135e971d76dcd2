//! Evaluation data.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::source::{
    AT_MOST_ONE_PROMPT, AT_MOST_ONE_PROMPT_MESSAGE, CHAT_ONLY, CHAT_ONLY_MESSAGE, ConversationSpec,
    HubDatasetSource, PromptFormat, SELECTORS_OF_PATH, SELECTORS_OF_PATH_MESSAGE,
    WHOLE_CONVERSATION, WHOLE_CONVERSATION_MESSAGE, WHOLE_PAIR, WHOLE_PAIR_MESSAGE,
    chat_template_arguments, own_or, prompt_of_part, reward_fields, reward_names,
};
use super::suite::EvaluationSuite;
use crate::union::{Union, exactly_one};

/// CEL rules of suites.
const MEASURED: &str = "has(self.answer) || has(self.completion) || has(self.chosen) || \
                        has(self.conversation) && !has(self.suites) || \
                        has(self.suites) && self.suites.all(suite, has(suite.answer))";
const PROMPTED: &str = "has(self.prompt) || has(self.conversation) || has(self.suites) && \
                        self.suites.all(suite, has(suite.prompt) || has(suite.conversation))";
const SUITES_OF_ACCURACY: &str = "!has(self.suites) || !has(self.completion) && !has(self.chosen)";

/// Evaluation rows. Exactly one of `path`, `huggingFace` and `suites`. With `answer`, an evaluation
/// measures accuracy: each prompt is completed greedily once, and `samples` times at `temperature`.
/// With `completion`, or with `conversation` and no `answer`, `sft` measures the loss: the mean
/// negative log-likelihood of the tokens that it would learn, and the perplexity. With `chosen` and
/// `rejected`, algorithms that learn from pairs measure their loss, the share of pairs that they
/// order correctly and the margin.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new(MEASURED)
        .message("set answer, which the reward compares with, completion, whose loss sft \
                 measures, or chosen and rejected, whose loss dpo, orpo and rewardModel \
                 measure")
)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
#[x_kube(
    validation = Rule::new(PROMPTED).message("set prompt or conversation, here or in every suite")
)]
#[x_kube(
    validation = Rule::new(AT_MOST_ONE_PROMPT).message(AT_MOST_ONE_PROMPT_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(WHOLE_CONVERSATION).message(WHOLE_CONVERSATION_MESSAGE)
)]
#[x_kube(
    validation = Rule::new(SUITES_OF_ACCURACY)
        .message("suites measure accuracy: completion, chosen and rejected belong to an evaluation \
                 without suites")
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
    /// Named suites, each with separate rows, which are evaluated together. Results are reported
    /// by suite. The other fields here are the defaults of the suites. Default one evaluation
    /// without a name, of the rows of `path` or `huggingFace`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub suites: Vec<EvaluationSuite>,
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
    /// Longest prompt in tokens, chat template included, or longest conversation that `sft` learns.
    /// Longer rows are dropped and listed in `dropped-rows.jsonl`. Default: a prompt that exceeds
    /// the context of the model is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<u32>,
    /// Longest prompt and given completion together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: Option<u32>,
    /// Jinja template of the prompt over the fields of a row. Required unless every suite has one,
    /// or there is `conversation`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 65536))]
    pub prompt: String,
    /// Conversation of a row in place of `prompt` and `system`, for format Chat. With `answer`, the
    /// conversation is continued; its last message is not the assistant's. Without it, `sft`
    /// measures the loss of the assistant's messages.
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
    /// Field with the reference answer that rewards compare with. Required by `grpo`. Default: no
    /// accuracy is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub answer: Option<String>,
    /// Names of the entries of `spec.rewards` that score completions of these rows. Default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_names")]
    pub rewards: Vec<String>,
    /// Fields of a row that rewards receive, as for training data. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "reward_fields")]
    pub reward_fields: Vec<String>,
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

impl Union for EvaluationDataset {
    const MEMBERS: &'static [&'static str] = &["path", "huggingFace", "suites"];
}

/// Rows that are evaluated together, with all of their settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// Name; none of an evaluation without `suites`.
    pub name: Option<String>,
    /// Field of its object in the spec.
    pub field: String,
    /// Settings of the suite, without `suites`.
    pub data: EvaluationDataset,
}

impl EvaluationDataset {
    /// The suites, each with the fields that it does not set from here; without `suites`, these
    /// data as the only one.
    pub fn resolved(&self) -> Vec<Suite> {
        let field = "spec.dataset.evaluation".to_owned();
        if self.suites.is_empty() {
            return vec![Suite { name: None, field, data: self.clone() }];
        }
        let suite = |(index, own): (usize, &EvaluationSuite)| Suite {
            name: Some(own.name.clone()),
            field: format!("{field}.suites[{index}]"),
            data: self.of_suite(own),
        };
        self.suites.iter().enumerate().map(suite).collect()
    }

    /// The source of a suite, with its settings or those of these data.
    fn of_suite(&self, own: &EvaluationSuite) -> Self {
        let arguments = &own.chat_template_arguments;
        let system = own.system.as_ref().or(self.system.as_ref());
        let tools = own.tools.as_ref().or(self.tools.as_ref());
        let (prompt, conversation) = prompt_of_part(
            (own.prompt.as_deref(), own.conversation.as_ref()),
            (&self.prompt, self.conversation.as_ref()),
        );
        Self {
            path: own.path.clone(),
            hugging_face: own.hugging_face.clone(),
            split: own.split.clone(),
            subset: own.subset.clone(),
            suites: Vec::new(),
            max_prompt_tokens: own.max_prompt_tokens.or(self.max_prompt_tokens),
            max_tokens: self.max_tokens,
            prompt,
            system: system.filter(|_| conversation.is_none()).cloned(),
            tools: tools.filter(|_| conversation.is_none()).cloned(),
            conversation,
            chat_template_arguments: if arguments.is_empty() {
                self.chat_template_arguments.clone()
            } else {
                arguments.clone()
            },
            answer: own.answer.as_ref().or(self.answer.as_ref()).cloned(),
            rewards: own_or(&own.rewards, &self.rewards),
            reward_fields: own_or(&own.reward_fields, &self.reward_fields),
            category: own.category.as_ref().or(self.category.as_ref()).cloned(),
            completion: None,
            chosen: None,
            rejected: None,
            format: own.format.unwrap_or(self.format),
            every_steps: own.every_steps.unwrap_or(self.every_steps),
            limit: own.limit.or(self.limit),
            sample_seed: own.sample_seed.unwrap_or(self.sample_seed),
            samples: own.samples.unwrap_or(self.samples),
            temperature: own.temperature.or(self.temperature),
            top_p: own.top_p.or(self.top_p),
            max_new_tokens: own.max_new_tokens.or(self.max_new_tokens),
            correct_reward: own.correct_reward.unwrap_or(self.correct_reward),
        }
    }

    /// Field of a row with its tools.
    pub fn tools_field(&self) -> Option<&str> {
        let conversation = self.conversation.as_ref().and_then(|own| own.tools.as_deref());
        conversation.or(self.tools.as_deref())
    }

    /// Whether learners measure a loss of given completions.
    pub fn measures_loss(&self) -> bool {
        let demonstrates = self.conversation.is_some() && self.suites.is_empty();
        self.completion.is_some() || self.chosen.is_some() || demonstrates && self.answer.is_none()
    }

    /// Whether completions are sampled and scored.
    pub fn measures_accuracy(&self) -> bool {
        self.answer.is_some() || self.suites.iter().any(|suite| suite.answer.is_some())
    }
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
