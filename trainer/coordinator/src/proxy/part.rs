//! Parts of a choice that a stream sends one after the other. Pure.

use super::answer::Choice;

/// How much of a choice a stream has.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    has_begun: bool,
    /// Bytes of the text.
    bytes: usize,
    tokens: usize,
    /// Characters of the tokens with log-probabilities.
    characters: usize,
}

/// What a stream does not have of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub choice: Choice,
    /// Whether the stream has nothing of the choice.
    pub is_first: bool,
    /// Characters of the tokens before, if there are log-probabilities.
    pub offset: usize,
}

impl Sent {
    /// What is new in a choice: text, or its end.
    pub fn part(&mut self, choice: &Choice) -> Option<Part> {
        fn rest<T: Clone>(list: Option<&[T]>, from: usize) -> Option<Vec<T>> {
            list.map(|list| list.get(from..).unwrap_or_default().to_vec())
        }
        let text = choice.text.get(self.bytes..).unwrap_or_default();
        if text.is_empty() && choice.finish_reason.is_none() {
            return None;
        }
        let logprobs = rest(choice.logprobs.as_deref(), self.tokens);
        let texts = logprobs.iter().flatten().map(|(text, _)| text.chars().count());
        let characters = self.characters.saturating_add(texts.sum());
        let part = Choice {
            text: text.to_owned(),
            tool_calls: choice.tool_calls.clone(),
            finish_reason: choice.finish_reason,
            tokens: choice.tokens,
            logprobs,
            token_ids: rest(choice.token_ids.as_deref(), self.tokens),
        };
        let (is_first, offset) = (!self.has_begun, self.characters);
        let (bytes, tokens) = (choice.text.len(), choice.tokens);
        *self = Self { has_begun: true, bytes, tokens, characters };
        Some(Part { choice: part, is_first, offset })
    }
}

impl Part {
    /// Whether it has more of the text than its end.
    pub fn has_text(&self) -> bool {
        let logprobs = self.choice.logprobs.as_deref().unwrap_or_default();
        self.is_first || !self.choice.text.is_empty() || !logprobs.is_empty()
    }
}
