//! Numbers k of samples, and the estimate of maj@k over the first k samples of a prompt. Pure.

use std::collections::BTreeMap;

/// A scored sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    /// Whether it is correct.
    pub correct: bool,
    /// Class of its answer: equal answers have equal numbers; none without an answer.
    pub answer: Option<usize>,
}

/// 1, 2, 4, … and `samples` itself.
pub fn sizes(samples: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> =
        (0..u32::BITS).map(|power| 1 << power).take_while(|size| *size < samples).collect();
    sizes.push(samples);
    sizes
}

/// Whether the most frequent answer of the first `k` samples is correct; of equally frequent ones
/// the one given first. None if there are fewer than `k`.
pub fn majority_at(samples: &[Scored], k: u32) -> Option<bool> {
    let mut votes = BTreeMap::<usize, (u32, usize)>::new();
    for (index, answer) in samples
        .get(..k as usize)?
        .iter()
        .enumerate()
        .filter_map(|(index, sample)| Some((index, sample.answer?)))
    {
        let (count, _) = votes.entry(answer).or_insert((0, index));
        *count = count.saturating_add(1);
    }
    let winner = votes.values().max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first)));
    let winner = winner.and_then(|(_, first)| samples.get(*first));
    Some(winner.is_some_and(|sample| sample.correct))
}

#[cfg(test)]
mod tests {
    use super::{Scored, majority_at, sizes};

    #[test]
    fn k_doubles_up_to_the_number_of_samples() {
        assert_eq!((sizes(1), sizes(4), sizes(6)), (vec![1], vec![1, 2, 4], vec![1, 2, 4, 6]));
    }

    #[test]
    fn the_majority_of_the_first_samples_decides_and_the_earlier_answer_wins_a_tie() {
        let sample = |answer, correct| Scored { correct, answer };
        let samples = [
            sample(Some(0), false),
            sample(Some(1), true),
            sample(None, false),
            sample(Some(1), true),
        ];
        assert_eq!(
            [1, 2, 3, 4, 5].map(|k| majority_at(&samples, k)),
            [Some(false), Some(false), Some(false), Some(true), None]
        );
        assert_eq!(majority_at(&[sample(None, false)], 1), Some(false));
    }
}
