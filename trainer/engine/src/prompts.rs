//! Prompt cache: prefills under the current weights by exact token ids. The samples of a prompt
//! group share one prefill.

use std::collections::HashMap;
use std::rc::Rc;

use tch::Tensor;

/// Result of a prefill.
#[derive(Debug)]
pub struct Prefilled {
    /// Keys and values `[layers, 2, tokens, kv_heads, head_dim]`.
    pub kv: Tensor,
    /// Logits of the first completion token, `[vocabulary]`, fp32.
    pub logits: Tensor,
}

impl Prefilled {
    fn bytes(&self) -> usize {
        [&self.kv, &self.logits]
            .map(|tensor| tensor.numel() * tensor.kind().elt_size_in_bytes())
            .iter()
            .sum()
    }
}

/// LRU cache limited to `budget` bytes.
#[derive(Debug)]
pub struct PromptCache {
    budget: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<Vec<i64>, (u64, Rc<Prefilled>)>,
}

impl PromptCache {
    pub fn new(budget: usize) -> Self {
        Self { budget, bytes: 0, clock: 0, entries: HashMap::new() }
    }

    pub fn get(&mut self, prompt: &[i64]) -> Option<Rc<Prefilled>> {
        self.clock += 1;
        let (used, prefilled) = self.entries.get_mut(prompt)?;
        *used = self.clock;
        Some(Rc::clone(prefilled))
    }

    /// Inserts a prefill; one that exceeds the budget alone is not cached.
    pub fn insert(&mut self, prompt: &[i64], prefilled: Rc<Prefilled>) {
        let bytes = prefilled.bytes();
        if bytes > self.budget {
            return;
        }
        while self.bytes + bytes > self.budget {
            let Some(oldest) = self
                .entries
                .iter()
                .min_by_key(|(_, (used, _))| *used)
                .map(|(prompt, _)| prompt.clone())
            else {
                break;
            };
            self.bytes -= self.entries.remove(&oldest).map_or(0, |(_, removed)| removed.bytes());
        }
        self.clock += 1;
        let replaced = self.entries.insert(prompt.to_vec(), (self.clock, prefilled));
        self.bytes = self.bytes + bytes - replaced.map_or(0, |(_, replaced)| replaced.bytes());
    }

    /// Removes all entries, before the weights change.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::{Prefilled, PromptCache};
    use tch::Tensor;

    #[test]
    fn the_least_recently_used_prompt_is_evicted_first() {
        let prefilled =
            || Rc::new(Prefilled { kv: Tensor::from(0.0_f32), logits: Tensor::from(0.0_f32) });
        let mut cache = PromptCache::new(16);
        cache.insert(&[1, 1], prefilled());
        cache.insert(&[2, 2], prefilled());
        assert!(cache.get(&[1, 1]).is_some());
        cache.insert(&[3, 3], prefilled());
        let present = [[1, 1], [2, 2], [3, 3]].map(|prompt| cache.get(&prompt).is_some());
        assert_eq!(present, [true, false, true]);
        cache.clear();
        assert!(cache.get(&[1, 1]).is_none());
    }
}
