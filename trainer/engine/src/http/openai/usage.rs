//! Token usage as in the OpenAI API: a prompt counts once for all its samples.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::generation::Generation;

/// Prompt and completion tokens by response index.
#[derive(Clone, Debug, Default)]
pub struct Usage(BTreeMap<usize, [usize; 2]>);

impl Usage {
    /// Replaces the counts of a response.
    pub fn set(&mut self, index: usize, generation: &Generation) {
        self.0.insert(
            index,
            [generation.meta_info.prompt_tokens, generation.meta_info.completion_tokens],
        );
    }

    /// Sums the counts, with `n` samples per prompt.
    pub fn value(&self, n: usize) -> Value {
        let is_first = |index: &usize| index.checked_rem(n).is_none_or(|sample| sample == 0);
        let prompt: usize =
            self.0.iter().filter(|(index, _)| is_first(index)).map(|(_, [prompt, _])| prompt).sum();
        let completion: usize = self.0.values().map(|[_, completion]| completion).sum();
        json!({
            "prompt_tokens": prompt, "total_tokens": prompt.saturating_add(completion),
            "completion_tokens": completion,
            "prompt_tokens_details": null, "reasoning_tokens": 0
        })
    }
}
