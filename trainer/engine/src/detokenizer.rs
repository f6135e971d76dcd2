//! Text of a completion while its tokens come, as SGLang's detokenizer makes it: a token may be
//! part of a character, and its text may depend on its neighbours, so a few tokens before the new
//! ones (the prompt's last, at first) are decoded with them and cut off again.

use rljob_text::{TextError, TextTokenizer};

/// Tokens of the prompt that are decoded before the first of the completion.
const NEIGHBOURS: usize = 5;

/// What a decoder writes for bytes that are no character yet.
const INCOMPLETE: char = '\u{FFFD}';

/// The text so far.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    skip_special_tokens: bool,
    /// The neighbours and the completion.
    ids: Vec<i64>,
    /// Where decoding starts, and up to where the text is settled.
    start: usize,
    settled: usize,
    text: String,
    /// Text that the next token may change.
    unsettled: String,
}

impl Detokenizer {
    /// No text yet, after `prompt`.
    pub fn new(prompt: &[i64], skip_special_tokens: bool) -> Self {
        let ids = prompt[prompt.len().saturating_sub(NEIGHBOURS)..].to_vec();
        Self {
            skip_special_tokens,
            settled: ids.len(),
            ids,
            start: 0,
            text: String::new(),
            unsettled: String::new(),
        }
    }

    /// Adds tokens.
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
        let all = tokenizer.decode_as(&self.ids[self.start..], self.skip_special_tokens)?;
        let before =
            tokenizer.decode_as(&self.ids[self.start..self.settled], self.skip_special_tokens)?;
        Ok(all.chars().skip(before.chars().count()).collect())
    }

    /// The text that will not change: up to the last space, if a character is incomplete.
    pub fn so_far(&self) -> String {
        let printable = self.unsettled.rfind([' ', '\n']).map_or("", |end| &self.unsettled[..=end]);
        format!("{}{printable}", self.text)
    }

    /// The whole text.
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
    fn the_text_is_the_same_token_by_token_and_never_shows_half_a_character() {
        let tokenizer = TextTokenizer::open(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat"),
        )
        .unwrap();
        let text = " a number — bitte: 漢字, é! 🙂 end";
        let tokens = tokenizer.encode(text).unwrap();
        let prompt = tokenizer.encode("Answer with").unwrap();
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
