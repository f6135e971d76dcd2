//! Tokens used, as OpenAI counts them: a prompt once, however many samples it has.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::answer::Answer;

/// Tokens of the answers so far, by index.
#[derive(Clone, Debug, Default)]
pub struct Usage(BTreeMap<usize, [usize; 2]>);

impl Usage {
    /// Takes an answer's counts in the place of earlier ones.
    pub fn set(&mut self, index: usize, answer: &Answer) {
        self.0.insert(index, [answer.meta_info.prompt_tokens, answer.meta_info.completion_tokens]);
    }

    /// The sums, with `n` samples of each prompt.
    pub fn value(&self, n: usize) -> Value {
        let prompt: usize =
            self.0.iter().filter(|(index, _)| *index % n == 0).map(|(_, [prompt, _])| prompt).sum();
        let completion: usize = self.0.values().map(|[_, completion]| completion).sum();
        json!({
            "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
            "prompt_tokens_details": null, "reasoning_tokens": 0
        })
    }
}
