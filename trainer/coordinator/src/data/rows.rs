//! Rendered rows: their digests, lengths and tokens.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::data::conversation::Conversation;
use crate::data::error::DataError;
use crate::data::location::RowLocation;
use crate::data::reader::Fields;
use crate::text::{DemonstratedTurn, PromptStyle, TextError, TextTokenizer, Tool, Tools};

/// A rendered row.
#[derive(Clone)]
pub struct Row {
    pub location: RowLocation,
    /// Row number over all files, from 0.
    pub number: u64,
    /// Prompt, or conversation before its completion, as text.
    pub prompt: String,
    pub system: Option<String>,
    /// In place of prompt and system.
    pub conversation: Option<Conversation>,
    /// Tools that the prompt describes; none leaves those of the tokenizer.
    pub tools: Option<Tools>,
    pub completion: Option<String>,
    /// Chosen and rejected completion.
    pub pair: Option<[String; 2]>,
    pub answer: Option<String>,
    /// Whether the answer is the JSON text of a list or an object.
    pub has_structured_answer: bool,
    pub category: Option<String>,
    /// Pass rate, if the rows are filtered by it.
    pub pass_rate: Option<f64>,
    /// Kept fields, if any are kept.
    pub fields: Option<Arc<Fields>>,
    /// Fields that rewards receive, by their names in the spec; `None` without names.
    pub reward_fields: Option<Arc<Fields>>,
    /// Digest of all fields of the row, of evaluation data.
    pub digest: Option<String>,
    /// Chat template included.
    pub prompt_tokens: usize,
    /// Of the longest completion, end-of-sequence token included; 0 without one.
    pub completion_tokens: usize,
}

/// Tokens of a row.
pub struct RowTokens {
    /// Chat template included.
    pub prompt: Vec<i64>,
    /// Target tokens with the end-of-sequence token; `None` without a completion.
    pub completion: Option<Vec<i64>>,
    /// Turns of a demonstration after its first completion.
    pub later_turns: Vec<DemonstratedTurn>,
    /// Chosen and rejected completion, each with the end-of-sequence token; `None` without a pair.
    pub pair: Option<[Vec<i64>; 2]>,
}

impl Row {
    /// The row with a text at the end of its prompt.
    #[must_use]
    pub fn observed(&self, text: &str) -> Self {
        Self {
            prompt: format!("{}{text}", self.prompt),
            conversation: self.conversation.as_ref().map(|given| given.observed(text)),
            ..self.clone()
        }
    }

    /// Adds the row to the digest of its data.
    pub fn digest(&self, digest: &mut Sha256) {
        digest.update(self.number.to_le_bytes());
        let texts = [Some(&self.prompt), self.system.as_ref(), self.completion.as_ref()];
        let pair = self.pair.iter().flatten().map(Some);
        for text in texts.into_iter().chain([self.answer.as_ref()]).chain(pair) {
            // The length tells where a text ends; an absent text differs from an empty one.
            digest.update(text.map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
            digest.update(text.map_or("", String::as_str));
        }
        let tools: Vec<&Tool> = self.tools.iter().flat_map(Tools::iter).collect();
        if let Some(conversation) = &self.conversation {
            digest.update(conversation.json(&tools));
        } else if self.tools.is_some() {
            digest.update(serde_json::to_vec(&tools).unwrap_or_default());
        }
        if let Some(fields) = &self.fields {
            // Maps of JSON are sorted by key.
            digest.update(serde_json::to_vec(fields.as_ref()).unwrap_or_default());
        }
        if let Some(fields) = &self.reward_fields {
            digest.update(b"rewardFields");
            digest.update(serde_json::to_vec(fields.as_ref()).unwrap_or_default());
        }
    }

    /// Tokens that the filters by length compare: of a learned conversation all, otherwise those of
    /// the prompt.
    pub fn filtered_tokens(&self) -> usize {
        let is_learned = self.conversation.as_ref().is_some_and(Conversation::is_learned);
        let completion = if is_learned { self.completion_tokens } else { 0 };
        self.prompt_tokens.saturating_add(completion)
    }

    /// Checks that the prompt fits the context with its completion, or with one token.
    pub fn check_length(&self, context: u32) -> Result<(), DataError> {
        let (location, prompt, completion) =
            (self.location.clone(), self.prompt_tokens, self.completion_tokens.max(1));
        if prompt == 0 {
            return Err(DataError::EmptyPrompt { location });
        }
        if prompt.saturating_add(completion) > context as usize {
            return Err(DataError::TooLong { location, prompt, completion, context });
        }
        Ok(())
    }

    /// Tokenizes the row.
    pub fn tokens(
        &self,
        tokenizer: &TextTokenizer,
        style: &PromptStyle,
    ) -> Result<RowTokens, DataError> {
        let with_tools = self.tools.clone().map(|tools| tokenizer.with_tools(tools));
        self.encode(with_tools.as_ref().unwrap_or(tokenizer), style)
            .map_err(|source| DataError::Tokens { location: self.location.clone(), source })
    }

    fn encode(
        &self,
        tokenizer: &TextTokenizer,
        style: &PromptStyle,
    ) -> Result<RowTokens, TextError> {
        let target = |text: &String| -> Result<Vec<i64>, TextError> {
            let mut tokens = tokenizer.encode(text)?;
            tokens.extend(tokenizer.eos_token_id());
            Ok(tokens)
        };
        let pair = match &self.pair {
            None => None,
            Some([chosen, rejected]) => Some([target(chosen)?, target(rejected)?]),
        };
        let Some(conversation) = &self.conversation else {
            return Ok(RowTokens {
                prompt: tokenizer.encode_prompt(self.system.as_deref(), &self.prompt, style)?,
                completion: self.completion.as_ref().map(target).transpose()?,
                later_turns: Vec::new(),
                pair,
            });
        };
        let mut turns = conversation.turns(tokenizer, style)?.into_iter();
        let (prompt, completion) = match turns.next() {
            Some(first) => (first.given, Some(first.completion)),
            None => (conversation.prompt(tokenizer, style)?, None),
        };
        Ok(RowTokens { prompt, completion, later_turns: turns.collect(), pair })
    }
}

impl RowTokens {
    /// Tokens after the prompt, of the longer one of a pair.
    pub fn completion_len(&self) -> usize {
        completion_len(self.pair.as_ref(), self.completion.as_ref(), &self.later_turns)
    }
}

/// Tokens after a prompt: of the longest given completion, and of later turns.
pub fn completion_len(
    pair: Option<&[Vec<i64>; 2]>,
    completion: Option<&Vec<i64>>,
    later_turns: &[DemonstratedTurn],
) -> usize {
    let longest = pair.into_iter().flatten().chain(completion).map(Vec::len).max().unwrap_or(0);
    let later = later_turns.iter().flat_map(|turn| [&turn.given, &turn.completion]);
    later.map(Vec::len).fold(longest, usize::saturating_add)
}
