//! Tokens that learners compute: those of a prompt that samples of a group share count once on a
//! rank and in a micro-batch.

use std::collections::BTreeMap;

/// Tokens of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Prompt group.
    pub group: u32,
    /// Tokens of the prompt that it shares with the samples of its group; 0 if none.
    pub prompt: u64,
    /// Its other tokens.
    pub rest: u64,
}

impl Length {
    pub fn tokens(self) -> u64 {
        self.prompt.saturating_add(self.rest)
    }
}

/// Samples of a rank or a micro-batch, and the tokens that they add up to.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pub tokens: u64,
    pub samples: Vec<(usize, Length)>,
    /// Number of samples of each group that shares a prompt.
    groups: BTreeMap<u32, usize>,
}

impl Load {
    /// A load of these samples.
    pub fn of(samples: impl IntoIterator<Item = (usize, Length)>) -> Self {
        let mut load = Self::default();
        samples.into_iter().for_each(|sample| load.add(sample));
        load
    }

    /// Tokens with a further sample.
    pub fn with(&self, length: Length) -> u64 {
        let prompt = if self.groups.contains_key(&length.group) { 0 } else { length.prompt };
        self.tokens.saturating_add(prompt).saturating_add(length.rest)
    }

    /// Tokens without one of its samples.
    pub fn without(&self, length: Length) -> u64 {
        let is_last = self.groups.get(&length.group).is_none_or(|samples| *samples == 1);
        let prompt = if is_last { length.prompt } else { 0 };
        self.tokens.saturating_sub(prompt).saturating_sub(length.rest)
    }

    pub fn add(&mut self, (sample, length): (usize, Length)) {
        self.tokens = self.with(length);
        if length.prompt > 0 {
            let samples = self.groups.entry(length.group).or_default();
            *samples = samples.saturating_add(1);
        }
        self.samples.push((sample, length));
    }

    /// Adds all samples of another load.
    pub fn append(&mut self, other: Self) {
        other.samples.into_iter().for_each(|sample| self.add(sample));
    }

    /// Removes the sample at this place.
    pub fn remove(&mut self, place: usize) -> (usize, Length) {
        let sample = self.samples.remove(place);
        *self = Self::of(std::mem::take(&mut self.samples));
        sample
    }
}

/// Splits samples into the parts that learners compute together: the samples of a group that share
/// a prompt, and each other sample alone.
pub fn by_prompt(samples: impl IntoIterator<Item = (usize, Length)>) -> Vec<Load> {
    let (mut alone, mut groups) = (Vec::new(), BTreeMap::<u32, Load>::new());
    for (sample, length) in samples {
        if length.prompt == 0 {
            alone.push(Load::of([(sample, length)]));
        } else {
            groups.entry(length.group).or_default().add((sample, length));
        }
    }
    alone.extend(groups.into_values());
    alone
}

#[cfg(test)]
mod tests {
    use super::{Length, Load, by_prompt};

    const fn length(group: u32, prompt: u64, rest: u64) -> Length {
        Length { group, prompt, rest }
    }

    #[test]
    fn a_shared_prompt_counts_once() {
        let mut load = Load::of([(0, length(7, 10, 3)), (1, length(7, 10, 4))]);
        assert_eq!(load.tokens, 17);
        assert_eq!([load.with(length(7, 10, 1)), load.with(length(8, 5, 1))], [18, 23]);
        assert_eq!(load.without(length(7, 10, 3)), 14);
        assert_eq!(load.remove(0), (0, length(7, 10, 3)));
        assert_eq!((load.tokens, load.without(length(7, 10, 4))), (14, 0));
    }

    #[test]
    fn samples_of_a_group_without_a_shared_prompt_are_apart() {
        let samples = [(0, length(1, 0, 4)), (1, length(2, 3, 1)), (2, length(1, 0, 4))];
        let samples = samples.into_iter().chain([(3, length(2, 3, 2))]);
        let parts: Vec<Vec<usize>> = by_prompt(samples)
            .iter()
            .map(|part| part.samples.iter().map(|(sample, _)| *sample).collect())
            .collect();
        assert_eq!(parts, [vec![0], vec![2], vec![1, 3]]);
    }
}
