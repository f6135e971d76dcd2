//! Parts that training and evaluation data share: sources, prompts and their CEL rules.

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::model::main_branch;
use crate::storage::SecretKeyReference;

/// CEL rules of training and evaluation data.
pub(super) const SELECTORS_OF_PATH: &str =
    "has(self.path) || !has(self.split) && !has(self.subset)";
pub(super) const SELECTORS_OF_PATH_MESSAGE: &str =
    "split and subset select files of path; huggingFace has its own split and config";

pub(super) const WHOLE_PAIR: &str = "has(self.chosen) == has(self.rejected)";
pub(super) const WHOLE_PAIR_MESSAGE: &str = "set chosen and rejected together";

pub(super) const ONE_PROMPT: &str = "has(self.prompt) != has(self.conversation)";
pub(super) const ONE_PROMPT_MESSAGE: &str = "set exactly one of prompt and conversation";

pub(super) const AT_MOST_ONE_PROMPT: &str =
    "!has(self.conversation) || !has(self.prompt) && !has(self.system) && !has(self.tools)";
pub(super) const AT_MOST_ONE_PROMPT_MESSAGE: &str =
    "prompt, system and tools have no use beside conversation; remove them";

pub(super) const WHOLE_CONVERSATION: &str = "!has(self.conversation) || \
    self.format == 'Chat' && !has(self.system) && !has(self.tools) && !has(self.completion)";
pub(super) const WHOLE_CONVERSATION_MESSAGE: &str =
    "conversation has all messages; system, tools, completion and format Text belong to prompt";

pub(super) const CHAT_ONLY: &str = "self.format == 'Chat' || \
    !has(self.system) && !has(self.tools) && !has(self.chatTemplateArguments)";
pub(super) const CHAT_ONLY_MESSAGE: &str =
    "system, tools and chatTemplateArguments belong to the chat template; format Text has none";

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
    /// Configuration (subset). Default that of the dataset's README.md.
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

/// Fields of a row with a conversation, in the format of OpenAI's API and of datasets of TRL and
/// transformers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConversationSpec {
    /// Field with the messages: a list of `{"role": text, "content": text}`; messages of the
    /// assistant may have `tool_calls`. Default `messages`.
    #[serde(default = "messages")]
    #[schemars(length(min = 1, max = 256))]
    pub messages: String,
    /// Field with the tools that the chat template describes, as a list or its JSON text:
    /// `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}`. With
    /// `rollout.workflow.tools`, every row needs it, with names of tools of the workflow, or such
    /// objects. Default the tools of the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub tools: Option<String>,
}

/// Prompt or conversation of a part of the data: its own one, or that of `default`.
pub(super) fn prompt_of_part(
    own: (Option<&str>, Option<&ConversationSpec>),
    default: (&str, Option<&ConversationSpec>),
) -> (String, Option<ConversationSpec>) {
    match own {
        (None, None) => (default.0.to_owned(), default.1.cloned()),
        (prompt, conversation) => (prompt.unwrap_or_default().to_owned(), conversation.cloned()),
    }
}

/// List of a part of the data, or that of `default` if its own one is empty.
pub(super) fn own_or(own: &[String], default: &[String]) -> Vec<String> {
    if own.is_empty() { default } else { own }.to_vec()
}

fn messages() -> String {
    "messages".to_owned()
}

/// Values are free; rules see a change of the named arguments.
pub(super) fn chat_template_arguments(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {"enable_thinking": {
            "type": "boolean",
            "description": "Argument of several model families.",
        }},
        "x-kubernetes-preserve-unknown-fields": true,
    })
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

/// Schema of a list of fields that rewards receive.
pub(super) fn reward_fields(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": 256},
        "maxItems": 32,
        "x-kubernetes-list-type": "set",
    })
}

/// Schema of a list of reward names.
pub(super) fn reward_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": 63},
        "maxItems": 16,
        "x-kubernetes-list-type": "set",
    })
}
