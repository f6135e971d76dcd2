//! Errors of model folders and tokenizers.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is too large: more than {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("failed to parse {}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("failed to load the tokenizer {}: {message}", path.display())]
    Tokenizer { path: PathBuf, message: String },
    /// The chat template is invalid, or it raised an exception.
    #[error("failed to apply the chat template of {}", folder.display())]
    Template { folder: PathBuf, source: minijinja::Error },
    #[error(
        "{} has no chat template (chat_template.jinja, or chat_template in \
         tokenizer_config.json): set the dataset's format to Text",
        folder.display()
    )]
    NoChatTemplate { folder: PathBuf },
    #[error(
        "the chat template of {} prints {name}, which its tokenizer_config.json does not set",
        folder.display()
    )]
    TokenNotSet {
        folder: PathBuf,
        /// Name of a special token such as `bos_token`.
        name: &'static str,
    },
    #[error(
        "the chat template of {} prints {token}, which its tokenizer.json does not contain: \
         is the template from another model?",
        folder.display()
    )]
    NotInVocabulary { folder: PathBuf, token: String },
    #[error(
        "the chat template of {} does not use the argument `{name}`: remove it from \
         chatTemplateArguments",
        folder.display()
    )]
    UnusedArgument { folder: PathBuf, name: String },
    /// A workflow of several turns needs the end of an assistant's turn.
    #[error(
        "the chat template of {} does not print the content of assistant messages: several turns \
         need one that does",
        folder.display()
    )]
    NoAssistantTurn { folder: PathBuf },
    #[error(
        "the chat template of {} does not use the variable `tools`: tools need a template that \
         describes them",
        folder.display()
    )]
    NoTools { folder: PathBuf },
    #[error(
        "the chat template of {} prints tool calls in an unknown format: use a model of the Qwen \
         or Llama families, or set rollout.workflow.tools.format",
        folder.display()
    )]
    NoToolCallFormat { folder: PathBuf },
    /// A demonstration has tool calls.
    #[error(
        "the chat template of {} does not print content and tool calls of an assistant message: \
         demonstrations with both need one that does",
        folder.display()
    )]
    NoCalls { folder: PathBuf },
    /// The regular expressions of the tokenizer need too many steps for this text.
    #[error(
        "the tokenizer gives up on a text of {bytes} bytes: its regular expressions need too many \
         steps ({message})"
    )]
    Backtracking { bytes: usize, message: String },
    #[error("failed to encode a text of {bytes} bytes: {message}")]
    Encode { bytes: usize, message: String },
    #[error("failed to decode {tokens} tokens: {message}")]
    Decode { tokens: usize, message: String },
    /// Token ids are at least 0 and below 2³².
    #[error("invalid token id {0}")]
    NotATokenId(i64),
}
