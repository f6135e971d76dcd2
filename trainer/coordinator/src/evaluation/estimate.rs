//! Estimators over k samples of a prompt: pass@k and maj@k. Pure.

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

/// Probability that at least one of `k` samples drawn without replacement from `n`, of which `c`
/// are correct, is correct: 1 − C(n − c, k) ÷ C(n, k), as the product of Chen et al., arXiv
/// 2107.03374, figure 3. None if `k` is more than `n`.
pub fn pass_at(n: u32, c: u32, k: u32) -> Option<f64> {
    let wrong = n.checked_sub(c)?;
    if k > n {
        return None;
    }
    if wrong < k {
        return Some(1.0);
    }
    Some(
        1.0 - (wrong.saturating_add(1)..=n)
            .map(|i| 1.0 - f64::from(k) / f64::from(i))
            .product::<f64>(),
    )
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
    use super::{Scored, majority_at, pass_at, sizes};

    #[test]
    fn k_doubles_up_to_the_number_of_samples() {
        assert_eq!((sizes(1), sizes(4), sizes(6)), (vec![1], vec![1, 2, 4], vec![1, 2, 4, 6]));
    }

    #[test]
    fn pass_at_k_is_the_share_of_the_subsets_that_hold_a_correct_sample() {
        for n in 1_u32..8 {
            for c in 0..=n {
                for k in 1..=n {
                    let subsets = (0_u32..1 << n).filter(|subset| subset.count_ones() == k);
                    let (all, passed) = subsets.fold((0, 0), |(all, passed), subset| {
                        (all + 1, passed + u32::from(subset & ((1 << c) - 1) != 0))
                    });
                    let expected = f64::from(passed) / f64::from(all);
                    assert!(
                        (pass_at(n, c, k).unwrap() - expected).abs() < 1e-12,
                        "n {n}, c {c}, k {k}"
                    );
                }
            }
        }
        assert_eq!(pass_at(2, 1, 3), None);
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
