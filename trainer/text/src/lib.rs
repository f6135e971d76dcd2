//! Text to tokens and back, as the model's own Hugging Face folder says: its tokenizer, its chat
//! template, its end-of-sequence tokens.
//!
//! ```text
//!  tokenizer.json ──────────────────────────────▶ encode, decode
//!  chat_template.jinja | tokenizer_config.json ─▶ ChatTemplate ─▶ encode_prompt
//!  generation_config.json | config.json ────────▶ stop tokens
//! ```
//!
//! The coordinator makes prompts with it, the embedded engine serves text with it. It must not
//! depend on the day, the machine or anything outside the folder: a prompt is the same tokens in
//! every attempt.

mod chat_template;
mod folder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rljob_crds::data::PromptFormat;
use serde::Serialize;
use tokenizers::Tokenizer;

use chat_template::ChatTemplate;

/// A tokenizer with its chat template. Clones share one.
#[derive(Clone)]
pub struct TextTokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    stop_token_ids: Vec<i64>,
    eos_token_id: Option<i64>,
}

/// A model folder whose tokenizer cannot be used, or text that it cannot take.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the folder cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the folder is not the JSON it should be.
    #[error("failed to parse {}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// `tokenizer.json` is not one that the library understands.
    #[error("failed to load the tokenizer {}: {message}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The chat template is not valid Jinja, or refused the message.
    #[error("failed to apply the chat template of {}", folder.display())]
    Template {
        /// The model folder.
        folder: PathBuf,
        /// Why.
        source: minijinja::Error,
    },
    /// Prompts of format `Chat` need a template.
    #[error("{} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); set the dataset's format to Text", folder.display())]
    NoChatTemplate {
        /// The model folder.
        folder: PathBuf,
    },
    /// The template prints a special token that is not set.
    #[error("the chat template of {} prints {name}, which tokenizer_config.json there does not set", folder.display())]
    TokenNotSet {
        /// The model folder.
        folder: PathBuf,
        /// `bos_token` or another.
        name: &'static str,
    },
    /// The template prints a special token that the tokenizer does not know.
    #[error("the chat template of {} prints {token}, which is no token of tokenizer.json there: is the template another model's?", folder.display())]
    NotInVocabulary {
        /// The model folder.
        folder: PathBuf,
        /// The token.
        token: String,
    },
    /// The tokenizer failed on a text.
    #[error("failed to encode a text of {bytes} bytes: {message}")]
    Encode {
        /// Its length.
        bytes: usize,
        /// Why.
        message: String,
    },
    /// The tokenizer failed on token ids.
    #[error("failed to decode {tokens} tokens: {message}")]
    Decode {
        /// How many.
        tokens: usize,
        /// Why.
        message: String,
    },
    /// Token ids are not negative and below 2³².
    #[error("{0} is not a token id")]
    NotATokenId(i64),
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
        let text = folder::read(&path)?;
        let failed = |error: tokenizers::Error| TextError::Tokenizer {
            path: path.clone(),
            message: error.to_string(),
        };
        let mut tokenizer = text.parse::<Tokenizer>().map_err(failed)?;
        // The file may ask for truncation and padding, which are a caller's choice and would cut
        // prompts in silence.
        tokenizer.with_truncation(None).map_err(failed)?;
        tokenizer.with_padding(None);

        let config = folder::TokenizerConfig::read(model_dir)?;
        let stop_token_ids = folder::stop_token_ids(model_dir)?;
        let token_id = |token: &String| tokenizer.token_to_id(token).map(i64::from);
        let own_eos = config.special_tokens.get("eos_token").and_then(token_id);
        let stop_token_ids =
            if stop_token_ids.is_empty() { own_eos.into_iter().collect() } else { stop_token_ids };
        let eos_token_id = own_eos
            .filter(|id| stop_token_ids.contains(id))
            .or_else(|| stop_token_ids.first().copied());
        let template = match config.chat_template {
            None => None,
            Some(source) => Some(
                ChatTemplate::new(&source, config.special_tokens)
                    .map_err(|source| template_error(model_dir, source))?,
            ),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                folder: model_dir.to_owned(),
                tokenizer,
                template,
                stop_token_ids,
                eos_token_id,
            }),
        })
    }

    /// Tokens of a prompt: `Chat` makes `text` the user's turn and opens the assistant's; `Text`
    /// takes it as it is, without special tokens.
    pub fn encode_prompt(&self, text: &str, format: PromptFormat) -> Result<Vec<i64>, TextError> {
        match format {
            PromptFormat::Text => self.encode(text),
            PromptFormat::Chat => self.encode(&self.render_chat(text)?),
        }
    }

    /// The chat template's text for one user's turn, up to where the assistant's answer begins.
    pub fn render_chat(&self, user: &str) -> Result<String, TextError> {
        let message = BTreeMap::from([("role", "user"), ("content", user)]);
        self.render_messages(&[message], &BTreeMap::<String, String>::new())
    }

    /// The chat template's text for a conversation, up to where the assistant's answer begins. A
    /// message is a map with `role` and `content`; `variables` are the template's own, such as
    /// `enable_thinking`.
    pub fn render_messages(
        &self,
        messages: &[impl Serialize],
        variables: &BTreeMap<String, impl Serialize>,
    ) -> Result<String, TextError> {
        let folder = &self.inner.folder;
        let template = self
            .inner
            .template
            .as_ref()
            .ok_or_else(|| TextError::NoChatTemplate { folder: folder.clone() })?;
        template.render(messages, variables).map_err(|source| template_error(folder, source))
    }

    /// Checks that the tokenizer has what the chat template needs: the special tokens that it
    /// prints, by name (`bos_token`) or written out (`<|im_start|>`). Without them prompts would be
    /// silently others than the model was trained on.
    pub fn check_chat_template(&self) -> Result<(), TextError> {
        let folder = &self.inner.folder;
        let template = self
            .inner
            .template
            .as_ref()
            .ok_or_else(|| TextError::NoChatTemplate { folder: folder.clone() })?;
        if let [name, ..] =
            template.missing_tokens().map_err(|source| template_error(folder, source))?.as_slice()
        {
            return Err(TextError::TokenNotSet { folder: folder.clone(), name });
        }
        let text = self.render_chat("x")?;
        let unknown =
            written_tokens(&text).find(|token| self.inner.tokenizer.token_to_id(token).is_none());
        unknown.map_or(Ok(()), |token| {
            Err(TextError::NotInVocabulary { folder: folder.clone(), token: token.to_owned() })
        })
    }

    /// Tokens of a text; none are added in front or behind. Special tokens written out in it are
    /// recognised.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, TextError> {
        self.encode_as(text, false)
    }

    /// Tokens of a text with those that the tokenizer's own template adds in front and behind, as
    /// transformers encodes a text by default.
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<i64>, TextError> {
        self.encode_as(text, true)
    }

    fn encode_as(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i64>, TextError> {
        let failed = |error: tokenizers::Error| TextError::Encode {
            bytes: text.len(),
            message: error.to_string(),
        };
        let encoding =
            self.inner.tokenizer.encode_fast(text, add_special_tokens).map_err(failed)?;
        Ok(encoding.get_ids().iter().map(|&id| i64::from(id)).collect())
    }

    /// Text of tokens, special ones skipped.
    pub fn decode(&self, ids: &[i64]) -> Result<String, TextError> {
        self.decode_as(ids, true)
    }

    /// Text of tokens, with or without special ones.
    pub fn decode_as(&self, ids: &[i64], skip_special_tokens: bool) -> Result<String, TextError> {
        let ids: Vec<u32> = ids
            .iter()
            .map(|&id| u32::try_from(id).map_err(|_| TextError::NotATokenId(id)))
            .collect::<Result<_, _>>()?;
        let failed = |error: tokenizers::Error| TextError::Decode {
            tokens: ids.len(),
            message: error.to_string(),
        };
        self.inner.tokenizer.decode(&ids, skip_special_tokens).map_err(failed)
    }

    /// Tokens that end a completion: `eos_token_id` of `generation_config.json`, else of
    /// `config.json`, else the tokenizer's own.
    pub fn stop_token_ids(&self) -> &[i64] {
        &self.inner.stop_token_ids
    }

    /// The token that ends a text to learn: the tokenizer's own end-of-sequence token if it is one
    /// of [`Self::stop_token_ids`], else the first of these.
    pub fn eos_token_id(&self) -> Option<i64> {
        self.inner.eos_token_id
    }

    /// The largest token id, added tokens included; none of an empty vocabulary. The model's
    /// vocabulary may be larger (padding), never smaller.
    pub fn largest_token_id(&self) -> Option<i64> {
        self.inner.tokenizer.get_vocab(true).into_values().max().map(i64::from)
    }
}

/// What looks like a special token in a text: `<|…|>` without white space.
fn written_tokens(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("<|").filter_map(|(start, _)| {
        let length = text[start + 2..].find("|>")? + 4;
        let token = &text[start..start + length];
        (!token[2..].contains("<|") && !token.contains(char::is_whitespace)).then_some(token)
    })
}

fn template_error(folder: &Path, source: minijinja::Error) -> TextError {
    TextError::Template { folder: folder.to_owned(), source }
}

#[cfg(test)]
mod tests;
