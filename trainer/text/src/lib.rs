//! Tokenizers and chat templates of Hugging Face model folders.
//!
//! ```text
//!  tokenizer.json ──────────────────────────────▶ encode, decode
//!  tokenizer_config.json ───────────────────────▶ special tokens that are added to a text
//!  chat_template.jinja | tokenizer_config.json ─▶ ChatTemplate ─▶ encode_prompt
//!  generation_config.json | config.json ────────▶ stop tokens
//! ```
//!
//! The coordinator tokenizes prompts with it, the embedded engine serves text with it. Must not
//! depend on the date, the machine or anything outside the folder: a prompt has the same tokens in
//! every attempt.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod chat_template;
mod continuation;
mod demonstration;
mod detokenizer;
mod error;
mod folder;
mod post_processor;
mod tool_calls;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rljob_crds::data::PromptFormat;
use serde::Serialize;
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

pub use continuation::{Message, MessageContent, TextPart};
pub use demonstration::{ASSISTANT, DemonstratedTurn};
pub use detokenizer::{Detokenizer, end_before};
pub use error::TextError;
pub use tool_calls::{ParsedCompletion, ToolCall, ToolCallError, ToolCallFormat};
pub use tools::{FlatTool, Tool, Tools};

use chat_template::ChatTemplate;

/// How a prompt becomes tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptStyle {
    pub format: PromptFormat,
    /// Arguments of the chat template.
    pub arguments: Map<String, Value>,
}

/// A tokenizer with its chat template. Cheap to clone.
#[derive(Clone)]
pub struct TextTokenizer {
    inner: Arc<Inner>,
    /// Tools that the chat template describes.
    tools: Tools,
}

struct Inner {
    folder: PathBuf,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    stop_token_ids: Vec<i64>,
    eos_token_id: Option<i64>,
    /// Special tokens that the tokenizer adds before a text.
    prefix: Vec<i64>,
}

impl std::fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextTokenizer").field("folder", &self.inner.folder).finish_non_exhaustive()
    }
}

impl TextTokenizer {
    /// Reads `tokenizer.json` (required), `tokenizer_config.json`, `chat_template.jinja`,
    /// `generation_config.json` and `config.json` of a model folder.
    pub fn open(model_dir: &Path) -> Result<Self, TextError> {
        let path = model_dir.join("tokenizer.json");
        let text = folder::read(&path, folder::MAX_TOKENIZER)?;
        let failed = |error: tokenizers::Error| TextError::Tokenizer {
            path: path.clone(),
            message: error.to_string(),
        };
        let mut tokenizer =
            post_processor::caught(|| text.parse::<Tokenizer>().map_err(failed))
                .map_err(|message| TextError::Tokenizer { path: path.clone(), message })??;
        // Truncation set in the file would shorten prompts without an error.
        tokenizer.with_truncation(None).map_err(failed)?;
        tokenizer.with_padding(None);

        let config = folder::TokenizerConfig::read(model_dir)?;
        if let Some(added) = config.added {
            post_processor::replace(&mut tokenizer, added, &config.special_tokens)
                .map_err(failed)?;
        }
        let stop_token_ids = folder::stop_token_ids(model_dir)?;
        let token_id = |token: &String| tokenizer.token_to_id(token).map(i64::from);
        let tokenizer_eos = config.special_tokens.get("eos_token").and_then(token_id);
        let stop_token_ids = if stop_token_ids.is_empty() {
            tokenizer_eos.into_iter().collect()
        } else {
            stop_token_ids
        };
        let eos_token_id = tokenizer_eos
            .filter(|id| stop_token_ids.contains(id))
            .or_else(|| stop_token_ids.first().copied());
        let template = match config.chat_template {
            None => None,
            Some(source) => Some(
                ChatTemplate::new(&source, config.special_tokens)
                    .map_err(|source| template_error(model_dir, source))?,
            ),
        };
        let prefix = post_processor::prefix(&tokenizer).map_err(failed)?;
        Ok(Self {
            tools: Tools::default(),
            inner: Arc::new(Inner {
                folder: model_dir.to_owned(),
                tokenizer,
                template,
                stop_token_ids,
                eos_token_id,
                prefix,
            }),
        })
    }

    /// The same tokenizer with tools that the chat template describes.
    #[must_use]
    pub fn with_tools(&self, tools: Tools) -> Self {
        Self { inner: Arc::clone(&self.inner), tools }
    }

    /// Tools that the chat template describes.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Tokenizes a prompt. `Chat` renders the system turn, `text` as the user's turn and the start
    /// of the assistant's turn. `Text` puts before `text` what the tokenizer adds there, such as
    /// the beginning-of-sequence token; it has no system turn.
    pub fn encode_prompt(
        &self,
        system: Option<&str>,
        text: &str,
        style: &PromptStyle,
    ) -> Result<Vec<i64>, TextError> {
        match style.format {
            PromptFormat::Text => Ok([self.inner.prefix.clone(), self.encode(text)?].concat()),
            PromptFormat::Chat => {
                let turns = system.map(|system| turn("system", system)).into_iter();
                let turns: Vec<_> = turns.chain([turn("user", text)]).collect();
                self.encode(&self.render_messages(&turns, &style.arguments)?)
            }
        }
    }

    /// Renders one user turn and the start of the assistant's turn.
    pub fn render_chat(&self, user: &str) -> Result<String, TextError> {
        self.render_messages(&[turn("user", user)], &Map::new())
    }

    /// Renders a conversation and the start of the assistant's turn. A message is a map with `role`
    /// and `content`; `variables` are template variables such as `enable_thinking`.
    pub fn render_messages(
        &self,
        messages: &[impl Serialize],
        variables: &impl Serialize,
    ) -> Result<String, TextError> {
        self.template()?
            .render(messages, &self.tools, variables)
            .map_err(|source| template_error(&self.inner.folder, source))
    }

    fn template(&self) -> Result<&ChatTemplate, TextError> {
        let Inner { template, folder, .. } = &*self.inner;
        template.as_ref().ok_or_else(|| TextError::NoChatTemplate { folder: folder.clone() })
    }

    /// Checks that the chat template uses these arguments.
    pub fn check_arguments(&self, arguments: &Map<String, Value>) -> Result<(), TextError> {
        let folder = &self.inner.folder;
        let Some(template) = self.inner.template.as_ref().filter(|_| !arguments.is_empty()) else {
            return Ok(());
        };
        let unused = template.unused(arguments.keys());
        match unused.map_err(|source| template_error(folder, source))? {
            None => Ok(()),
            Some(name) => {
                Err(TextError::UnusedArgument { folder: folder.clone(), name: name.clone() })
            }
        }
    }

    /// Checks that the chat template describes tools.
    ///
    /// # Errors
    /// There is no template, or it does not use the variable `tools`.
    pub fn check_tools(&self) -> Result<(), TextError> {
        let tools = "tools".to_owned();
        let unused = self.template()?.unused(std::iter::once(&tools));
        let folder = &self.inner.folder;
        match unused.map_err(|source| template_error(folder, source))? {
            None => Ok(()),
            Some(_) => Err(TextError::NoTools { folder: folder.clone() }),
        }
    }

    /// Checks that the tokenizer has the special tokens that the chat template prints, by name
    /// (`bos_token`) or as text (`<|im_start|>`). Without them prompts would silently differ from
    /// the model's training format.
    pub fn check_chat_template(&self) -> Result<(), TextError> {
        let (folder, template) = (&self.inner.folder, self.template()?);
        if let [name, ..] =
            template.missing_tokens().map_err(|source| template_error(folder, source))?.as_slice()
        {
            return Err(TextError::TokenNotSet { folder: folder.clone(), name });
        }
        let text = self.render_chat("x")?;
        let unknown =
            literal_tokens(&text).find(|token| self.inner.tokenizer.token_to_id(token).is_none());
        unknown.map_or(Ok(()), |token| {
            Err(TextError::NotInVocabulary { folder: folder.clone(), token: token.to_owned() })
        })
    }

    /// Tokenizes a text without adding special tokens. Special tokens in the text are recognized.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, TextError> {
        self.encode_as(text, false)
    }

    /// Tokenizes a text with the special tokens that the tokenizer adds, the default of
    /// transformers.
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<i64>, TextError> {
        self.encode_as(text, true)
    }

    fn encode_as(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i64>, TextError> {
        let failed = |error: tokenizers::Error| TextError::Encode {
            bytes: text.len(),
            message: error.to_string(),
        };
        let encode = || self.inner.tokenizer.encode_fast(text, add_special_tokens);
        let encoding = post_processor::caught(encode)
            .map_err(|message| TextError::Backtracking { bytes: text.len(), message })?
            .map_err(failed)?;
        Ok(encoding.get_ids().iter().map(|&id| i64::from(id)).collect())
    }

    /// Decodes tokens without special tokens.
    pub fn decode(&self, ids: &[i64]) -> Result<String, TextError> {
        self.decode_as(ids, true)
    }

    /// Decodes tokens with or without special tokens.
    pub fn decode_as(&self, ids: &[i64], skip_special_tokens: bool) -> Result<String, TextError> {
        let ids: Vec<u32> = ids
            .iter()
            .map(|&id| u32::try_from(id).map_err(|_| TextError::NotATokenId(id)))
            .collect::<Result<_, _>>()?;
        let failed = |error: tokenizers::Error| TextError::Decode {
            tokens: ids.len(),
            message: error.to_string(),
        };
        post_processor::caught(|| self.inner.tokenizer.decode(&ids, skip_special_tokens))
            .map_err(|message| TextError::Decode { tokens: ids.len(), message })?
            .map_err(failed)
    }

    /// Tokens that end a completion: `eos_token_id` of `generation_config.json`, else of
    /// `config.json`, else of the tokenizer.
    pub fn stop_token_ids(&self) -> &[i64] {
        &self.inner.stop_token_ids
    }

    /// The token that ends a demonstration: the tokenizer's end-of-sequence token if it is one of
    /// [`Self::stop_token_ids`], else the first of these.
    pub fn eos_token_id(&self) -> Option<i64> {
        self.inner.eos_token_id
    }

    /// The largest token id, added tokens included; `None` for an empty vocabulary. The model's
    /// vocabulary may be larger (padding), never smaller.
    pub fn largest_token_id(&self) -> Option<i64> {
        self.inner.tokenizer.get_vocab(true).into_values().max().map(i64::from)
    }
}

fn turn<'t>(role: &'static str, content: &'t str) -> BTreeMap<&'static str, &'t str> {
    BTreeMap::from([("role", role), ("content", content)])
}

/// Substrings with the form of a special token: `<|…|>` without white space.
fn literal_tokens(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("<|").filter_map(|(start, _)| {
        let rest = text.get(start..)?;
        let length = rest.get(2..)?.find("|>")?.saturating_add(4);
        let token = rest.get(..length)?;
        let is_nested = token.strip_prefix("<|")?.contains("<|");
        (!is_nested && !token.contains(char::is_whitespace)).then_some(token)
    })
}

fn template_error(folder: &Path, source: minijinja::Error) -> TextError {
    TextError::Template { folder: folder.to_owned(), source }
}

#[cfg(test)]
mod tests;
