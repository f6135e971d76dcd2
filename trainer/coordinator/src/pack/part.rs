//! Samples that learners compute together: the tokens and operations of a prompt that samples of a
//! group share count once on a rank and in a micro-batch.

use std::collections::BTreeMap;

use super::cost::Load;

/// Loads of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Prompt group.
    pub group: u32,
    /// The prompt that it shares with the samples of its group; nothing if none.
    pub prompt: Load,
    /// Its other tokens.
    pub rest: Load,
}

impl Member {
    /// A sample, or a group that is assigned as one, without a prompt that others share.
    pub fn alone(group: u32, rest: Load) -> Self {
        Self { group, prompt: Load::default(), rest }
    }

    /// The load of the sample alone.
    pub fn load(&self) -> Load {
        self.prompt.plus(self.rest)
    }
}

/// Samples of a rank or a micro-batch, and the load that they add up to.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub load: Load,
    pub samples: Vec<(usize, Member)>,
    /// Number of samples of each group that shares a prompt.
    groups: BTreeMap<u32, usize>,
}

impl Part {
    /// A part of these samples.
    pub fn of(samples: impl IntoIterator<Item = (usize, Member)>) -> Self {
        let mut part = Self::default();
        samples.into_iter().for_each(|sample| part.add(sample));
        part
    }

    /// The load with a further sample.
    pub fn with(&self, member: &Member) -> Load {
        if self.groups.contains_key(&member.group) {
            self.load.plus(member.rest)
        } else {
            self.load.plus(member.load())
        }
    }

    /// The load without one of its samples.
    pub fn without(&self, member: &Member) -> Load {
        let is_last = self.groups.get(&member.group).is_none_or(|samples| *samples == 1);
        self.load.minus(if is_last { member.load() } else { member.rest })
    }

    pub fn add(&mut self, (sample, member): (usize, Member)) {
        self.load = self.with(&member);
        if member.prompt.tokens > 0 {
            let samples = self.groups.entry(member.group).or_default();
            *samples = samples.saturating_add(1);
        }
        self.samples.push((sample, member));
    }

    /// Adds all samples of another part.
    pub fn append(&mut self, other: Self) {
        other.samples.into_iter().for_each(|sample| self.add(sample));
    }

    /// Removes the sample at this place.
    pub fn remove(&mut self, place: usize) -> (usize, Member) {
        let sample = self.samples.remove(place);
        *self = Self::of(std::mem::take(&mut self.samples));
        sample
    }

    /// Index of the first of its samples.
    pub fn first(&self) -> Option<usize> {
        self.samples.first().map(|(sample, _)| *sample)
    }
}

/// Splits samples into the parts that learners compute together: the samples of a group that share
/// a prompt, and each other sample alone.
pub fn by_prompt(samples: impl IntoIterator<Item = (usize, Member)>) -> Vec<Part> {
    let (mut alone, mut groups) = (Vec::new(), BTreeMap::<u32, Part>::new());
    for (sample, member) in samples {
        if member.prompt.tokens == 0 {
            alone.push(Part::of([(sample, member)]));
        } else {
            groups.entry(member.group).or_default().add((sample, member));
        }
    }
    alone.extend(groups.into_values());
    alone
}

#[cfg(test)]
mod tests {
    use super::{Load, Member, Part, by_prompt};

    /// A token costs ten operations.
    const fn load(tokens: u64) -> Load {
        Load { tokens, cost: 10 * tokens }
    }

    const fn member(group: u32, prompt: u64, rest: u64) -> Member {
        Member { group, prompt: load(prompt), rest: load(rest) }
    }

    #[test]
    fn a_shared_prompt_counts_once() {
        let mut part = Part::of([(0, member(7, 10, 3)), (1, member(7, 10, 4))]);
        assert_eq!(part.load, load(17));
        let more = [member(7, 10, 1), member(8, 5, 1)].map(|member| part.with(&member));
        assert_eq!(more, [load(18), load(23)]);
        assert_eq!(part.without(&member(7, 10, 3)), load(14));
        assert_eq!(part.remove(0), (0, member(7, 10, 3)));
        assert_eq!((part.load, part.without(&member(7, 10, 4))), (load(14), load(0)));
    }

    #[test]
    fn samples_of_a_group_without_a_shared_prompt_are_apart() {
        let samples = [(0, member(1, 0, 4)), (1, member(2, 3, 1)), (2, member(1, 0, 4))];
        let samples = samples.into_iter().chain([(3, member(2, 3, 2))]);
        let parts: Vec<Vec<usize>> = by_prompt(samples)
            .iter()
            .map(|part| part.samples.iter().map(|(sample, _)| *sample).collect())
            .collect();
        assert_eq!(parts, [vec![0], vec![2], vec![1, 3]]);
    }
}
