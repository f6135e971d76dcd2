//! Incremental detokenization, as in SGLang: a token may be part of a character, and its text may
//! depend on preceding tokens. A few preceding tokens (at first of the prompt) are decoded with the
//! new ones and their text is removed.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::ops::Range;

use rljob_text::{TextError, TextTokenizer};

/// Prompt tokens decoded before the first completion token.
const NEIGHBOURS: usize = 5;

/// Replacement character for bytes that do not form a character yet.
const INCOMPLETE: char = '\u{FFFD}';

/// Text of a partial completion.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    skip_special_tokens: bool,
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
            settled: ids.len(),
            ids,
            start: 0,
            text: String::new(),
            unsettled: String::new(),
        }
    }

    pub fn push(&mut self, tokenizer: &TextTokenizer, tokens: &[i64]) -> Result<(), TextError> {
        self.ids.extend(tokens);
        let new = self.new_text(tokenizer)?;
        if !new.is_empty() && !new.ends_with(INCOMPLETE) {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rljob_text::TextTokenizer;

    use super::Detokenizer;

    #[test]
    fn incremental_text_equals_whole_text_and_contains_no_partial_character() {
        let tokenizer = TextTokenizer::open(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat"),
        )
        .unwrap();
        let text = " a number — bitte: 漢字, é! 🙂 end";
        let tokens = tokenizer.encode(text).unwrap();
        let prompt = tokenizer.encode("Generation with").unwrap();
        let mut detokenizer = Detokenizer::new(&prompt, true);
        for token in &tokens {
            detokenizer.push(&tokenizer, &[*token]).unwrap();
            assert!(text.starts_with(&detokenizer.so_far()), "{}", detokenizer.so_far());
        }
        assert_eq!((detokenizer.so_far().as_str(), detokenizer.whole().as_str()), (text, text));
        let mut at_once = Detokenizer::new(&prompt, true);
        at_once.push(&tokenizer, &tokens).unwrap();
        assert_eq!(at_once.whole(), text);
    }
}
