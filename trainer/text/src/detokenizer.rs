//! Incremental detokenization, as in SGLang: a token may be part of a character, and its text may
//! depend on preceding tokens. A few preceding tokens (at first of the prompt) are decoded with the
//! new ones and their text is removed.
//!
//! Tokens such as `<0x0A>` are single bytes, and a run of them is text only if all of its bytes
//! are: a run that has not ended has no settled text, which SGLang's has.

use std::ops::Range;

use crate::{TextError, TextTokenizer};

/// Prompt tokens decoded before the first completion token.
const NEIGHBOURS: usize = 5;

/// Replacement character for bytes that do not form a character yet.
const INCOMPLETE: char = '\u{FFFD}';

/// Text of a partial completion.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    skip_special_tokens: bool,
    /// Number of prompt tokens in `ids`.
    neighbours: usize,
    /// Last prompt tokens, then the completion.
    ids: Vec<i64>,
    /// Start of decoding, and end of the tokens whose text is final.
    start: usize,
    settled: usize,
    text: String,
    /// Text that the next token may change.
    unsettled: String,
}

impl Detokenizer {
    /// Starts with no text, after `prompt`.
    pub fn new(prompt: &[i64], skip_special_tokens: bool) -> Self {
        let neighbours = prompt.get(prompt.len().saturating_sub(NEIGHBOURS)..);
        let ids = neighbours.unwrap_or_default().to_vec();
        Self {
            skip_special_tokens,
            neighbours: ids.len(),
            settled: ids.len(),
            ids,
            start: 0,
            text: String::new(),
            unsettled: String::new(),
        }
    }

    /// Appends tokens of the completion.
    pub fn push(&mut self, tokenizer: &TextTokenizer, tokens: &[i64]) -> Result<(), TextError> {
        self.ids.extend(tokens);
        let new = self.new_text(tokenizer)?;
        if !new.is_empty() && !new.ends_with(INCOMPLETE) && !self.ends_with_byte(tokenizer) {
            self.text.push_str(&new);
            self.unsettled.clear();
            (self.start, self.settled) = (self.settled, self.ids.len());
        } else {
            self.unsettled = new;
        }
        Ok(())
    }

    fn new_text(&self, tokenizer: &TextTokenizer) -> Result<String, TextError> {
        let decode = |range: Range<usize>| {
            let ids = self.ids.get(range).unwrap_or_default();
            tokenizer.decode_as(ids, self.skip_special_tokens)
        };
        let all = decode(self.start..self.ids.len())?;
        let before = decode(self.start..self.settled)?;
        Ok(all.chars().skip(before.chars().count()).collect())
    }

    /// Whether the last token with text is a byte.
    fn ends_with_byte(&self, tokenizer: &TextTokenizer) -> bool {
        let new = self.ids.get(self.settled..).unwrap_or_default().iter().rev();
        let mut texts = new.filter_map(|id| tokenizer.token(*id, self.skip_special_tokens));
        texts.next().is_some_and(|text| text.len() == 6 && text.starts_with("<0x"))
    }

    /// Text that no later token changes, and its number of tokens.
    pub fn settled(&self) -> (&str, usize) {
        (&self.text, self.settled.saturating_sub(self.neighbours))
    }

    /// Final text; up to the last space if a character is incomplete.
    pub fn so_far(&self) -> String {
        let end = self.unsettled.rfind([' ', '\n']);
        let printable = end.and_then(|end| self.unsettled.get(..=end)).unwrap_or_default();
        format!("{}{printable}", self.text)
    }

    /// Final and pending text.
    pub fn whole(&self) -> String {
        format!("{}{}", self.text, self.unsettled)
    }
}

impl TextTokenizer {
    /// The token as in the vocabulary; `None` if it is unknown or skipped.
    fn token(&self, id: i64, skip_special_tokens: bool) -> Option<String> {
        let token = self.inner.tokenizer.id_to_token(u32::try_from(id).ok()?)?;
        let added = self.inner.tokenizer.get_added_vocabulary();
        (!skip_special_tokens || !added.is_special_token(&token)).then_some(token)
    }
}

/// End of the text after `from` that is before all of the strings, whatever follows the text.
pub fn end_before<'s>(text: &str, from: usize, strings: impl Iterator<Item = &'s str>) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    let start = |string: &'s str| {
        let shortest = rest.len().saturating_sub(string.len().saturating_sub(1));
        let begins = |start: &usize| rest.get(*start..).is_some_and(|end| string.starts_with(end));
        rest.find(string).or_else(|| (shortest..rest.len()).find(begins))
    };
    from.saturating_add(strings.filter_map(start).min().unwrap_or(rest.len()))
}

#[cfg(test)]
mod tests;
