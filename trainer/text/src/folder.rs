//! Model folder files besides `tokenizer.json`: special tokens, chat template and stop tokens.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::TextError;

/// Names of special tokens that templates may use.
pub const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub type SpecialTokens = BTreeMap<&'static str, String>;

/// Used fields of `tokenizer_config.json` and `chat_template.jinja`. Both files and all fields are
/// optional.
#[derive(Default)]
pub struct TokenizerConfig {
    /// The tokens of [`SPECIAL_TOKENS`] that are set.
    pub special_tokens: SpecialTokens,
    /// Source of the chat template; `chat_template.jinja` takes precedence, as in transformers.
    pub chat_template: Option<String>,
    /// Tokens that the class of the tokenizer adds; `None` if `tokenizer.json` decides.
    pub added: Option<AddedTokens>,
}

/// Special tokens that a tokenizer adds to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddedTokens {
    pub bos: bool,
    pub eos: bool,
}

/// Tokenizer classes of transformers 4 whose flags replace the post-processor of `tokenizer.json`.
/// transformers 5 ignores the flags; SGLang restores them.
const CLASSES_WITH_FLAGS: [&str; 7] = [
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "CohereTokenizerFast",
];

/// Maximum size of a JSON file or template besides `tokenizer.json`, in bytes.
const MAX_CONFIG: u64 = 16 << 20;

/// Maximum size of `tokenizer.json` in bytes.
pub const MAX_TOKENIZER: u64 = 512 << 20;

#[derive(Deserialize, Default)]
struct RawTokenizerConfig {
    bos_token: Option<SpecialToken>,
    eos_token: Option<SpecialToken>,
    unk_token: Option<SpecialToken>,
    sep_token: Option<SpecialToken>,
    pad_token: Option<SpecialToken>,
    cls_token: Option<SpecialToken>,
    mask_token: Option<SpecialToken>,
    chat_template: Option<RawTemplate>,
    tokenizer_class: Option<String>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
}

impl RawTokenizerConfig {
    fn added(&self) -> Option<AddedTokens> {
        let class = self.tokenizer_class.as_deref()?;
        CLASSES_WITH_FLAGS.contains(&class).then(|| AddedTokens {
            bos: self.add_bos_token.unwrap_or(true),
            eos: self.add_eos_token.unwrap_or(false),
        })
    }
}

/// A special token: its text, or an object with its text and matching rules.
#[derive(Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

impl From<SpecialToken> for String {
    fn from(token: SpecialToken) -> Self {
        match token {
            SpecialToken::Text(text) | SpecialToken::Object { content: text } => text,
        }
    }
}

/// A chat template: its source, or a list of named templates of which `default` is used.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawTemplate {
    Source(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl RawTemplate {
    fn default_source(self) -> Option<String> {
        match self {
            Self::Source(source) => Some(source),
            Self::Named(list) => {
                list.into_iter().find(|named| named.name == "default").map(|named| named.template)
            }
        }
    }
}

impl TokenizerConfig {
    /// Reads both files.
    pub fn read(folder: &Path) -> Result<Self, TextError> {
        let raw: RawTokenizerConfig =
            read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let added = raw.added();
        let chat_template = read_optional(&folder.join("chat_template.jinja"))?
            .or_else(|| raw.chat_template.and_then(RawTemplate::default_source));
        let tokens = [
            raw.bos_token,
            raw.eos_token,
            raw.unk_token,
            raw.sep_token,
            raw.pad_token,
            raw.cls_token,
            raw.mask_token,
        ];
        let special_tokens = SPECIAL_TOKENS
            .into_iter()
            .zip(tokens)
            .filter_map(|(name, token)| Some((name, String::from(token?))))
            .collect();
        Ok(Self { special_tokens, chat_template, added })
    }
}

#[derive(Deserialize, Default)]
struct StopTokens {
    eos_token_id: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(i64),
    Many(Vec<i64>),
}

/// `eos_token_id` of `generation_config.json`, else of `config.json`; empty if both lack it.
pub fn stop_token_ids(folder: &Path) -> Result<Vec<i64>, TextError> {
    for name in ["generation_config.json", "config.json"] {
        let tokens: StopTokens = read_json(&folder.join(name))?.unwrap_or_default();
        match tokens.eos_token_id {
            Some(OneOrMany::One(id)) => return Ok(vec![id]),
            Some(OneOrMany::Many(ids)) if !ids.is_empty() => return Ok(ids),
            Some(OneOrMany::Many(_)) | None => {}
        }
    }
    Ok(Vec::new())
}

/// Reads a text file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<String, TextError> {
    let failed = |source| TextError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(limit.saturating_add(1)).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > limit {
        return Err(TextError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(text)
}

fn read_optional(path: &Path) -> Result<Option<String>, TextError> {
    match read(path, MAX_CONFIG) {
        Ok(text) => Ok(Some(text)),
        Err(TextError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TextError> {
    let Some(text) = read_optional(path)? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|source| TextError::Json { path: path.to_owned(), source })
}
