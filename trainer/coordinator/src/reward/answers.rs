//! Reference answers: completions that state them, and those that no completion can match.

/// Maximum length of an answer in errors, in characters.
const ANSWER_EXCERPT: usize = 80;

/// A completion that states a reference answer, with its score.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatedAnswer {
    pub completion: String,
    pub value: f64,
    /// Why no completion can match the answer.
    pub unusable: Option<UnusableAnswer>,
}

/// A reference answer that no completion can match.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("reward {reward} does not support the answer `{excerpt}`: {reason}")]
pub struct UnusableAnswer {
    pub reward: String,
    /// The last characters of the answer.
    pub excerpt: String,
    pub reason: &'static str,
}

impl UnusableAnswer {
    pub fn new(reward: &str, answer: &str, reason: &'static str) -> Self {
        let excerpt = last_characters(answer, ANSWER_EXCERPT);
        Self { reward: reward.to_owned(), excerpt, reason }
    }
}

fn last_characters(text: &str, count: usize) -> String {
    let start = text.char_indices().rev().nth(count.saturating_sub(1)).map(|(start, _)| start);
    start.and_then(|start| text.get(start..)).unwrap_or(text).to_owned()
}
