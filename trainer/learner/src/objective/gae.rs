//! Generalized Advantage Estimation (Schulman et al., arXiv 1506.02438) over packed sequences.
//!
//! ```text
//!  δ_t = r_t + γ V_{t+1} − V_t
//!  A_t = δ_t + γ λ A_{t+1}               A after the last token is 0
//!  R_t = A_t + V_t                       the return that the critic learns
//!
//!  r_t   reward of the token; that of a turn is at its last token
//!  V_t   value of the state before the token
//!  V after the last token: 0, or the value of that state if a limit ended the sample
//! ```
//! t counts trained tokens only, as in AReaL: prompts and tool results between the turns of a
//! completion have neither rewards nor steps.

/// Discount γ and λ.
#[derive(Clone, Copy, Debug)]
pub struct Discounts {
    pub discount: f64,
    pub lambda: f64,
}

/// Trained tokens of packed sequences. Tokens of a sequence are consecutive and in order.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// `[Q]` position after the last token of each sequence: `cu_seqlens` without its first 0.
    pub ends: &'a [usize],
    /// `[N]` values V.
    pub values: &'a [f64],
    /// `[Q]` value after the last token of each sequence: 0 unless a limit ended it.
    pub end_values: &'a [f64],
}

impl Packed<'_> {
    /// Advantage `[N]` of every token, in the memory of its rewards r `[N]`.
    pub fn advantages(&self, mut rewards: Vec<f64>, discounts: Discounts) -> Vec<f64> {
        let mut start = 0;
        for (&end, &end_value) in self.ends.iter().zip(self.end_values) {
            let (rewards, values) = (&mut rewards[start..end], &self.values[start..end]);
            replace_by_advantages(rewards, values, end_value, discounts);
            start = end;
        }
        rewards
    }
}

/// Replaces the rewards of a sequence by its advantages. Two tokens are computed at once, which
/// halves the chain of dependent operations: A_t = δ_t + γλ δ_{t+1} + (γλ)² A_{t+2}.
fn replace_by_advantages(
    rewards: &mut [f64],
    values: &[f64],
    end_value: f64,
    Discounts { discount, lambda }: Discounts,
) {
    let decay = discount * lambda;
    let (mut next_value, mut next) = (end_value, 0.0);
    let is_odd = rewards.len() % 2 == 1;
    for (two, value) in rewards.rchunks_exact_mut(2).zip(values.rchunks_exact(2)) {
        let later = two[1] + discount * next_value - value[1];
        let earlier = two[0] + discount * value[1] - value[0];
        two[1] = later + decay * next;
        next = (earlier + decay * later) + (decay * decay) * next;
        two[0] = next;
        next_value = value[0];
    }
    if is_odd {
        rewards[0] += discount * next_value - values[0] + decay * next;
    }
}

#[cfg(test)]
mod tests {
    use super::{Discounts, Packed};

    fn close(actual: &[f64], expected: &[f64]) {
        let near = actual.len() == expected.len()
            && actual.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-12);
        assert!(near, "{actual:?} is not {expected:?}");
    }

    /// A_t as the sum of (γλ)^l δ_{t+l}, from one sequence and the value after it.
    fn by_definition(rewards: &[f64], values: &[f64], end: f64, discounts: Discounts) -> Vec<f64> {
        let Discounts { discount, lambda } = discounts;
        let value = |token: usize| values.get(token).copied().unwrap_or(end);
        let delta = |token: usize| rewards[token] + discount * value(token + 1) - value(token);
        let advantage = |token: usize| {
            let terms = (token..rewards.len()).zip(0..);
            terms.map(|(later, power)| (discount * lambda).powi(power) * delta(later)).sum()
        };
        (0..rewards.len()).map(advantage).collect()
    }

    #[test]
    fn a_sequence_computed_by_hand_has_its_advantages() {
        let packed = Packed { ends: &[3], values: &[0.5, 0.25, 0.75], end_values: &[0.0] };
        // δ = 0.5·0.25 − 0.5, −0.5 + 0.5·0.75 − 0.25, 1 − 0.75; γλ = 0.25.
        let expected = [-0.375 + 0.25 * (-0.375 + 0.25 * 0.25), -0.375 + 0.25 * 0.25, 0.25];
        let half = Discounts { discount: 0.5, lambda: 0.5 };
        close(&packed.advantages(vec![0.0, -0.5, 1.0], half), &expected);
    }

    #[test]
    fn with_lambda_1_and_no_discount_it_is_the_return_minus_the_value() {
        let packed =
            Packed { ends: &[2, 3], values: &[0.5, 0.25, 0.125], end_values: &[0.0, 0.75] };
        let none = Discounts { discount: 1.0, lambda: 1.0 };
        close(&packed.advantages(vec![0.0, 1.0, 0.0], none), &[0.5, 0.75, 0.625]);
    }

    #[test]
    fn packed_sequences_of_all_lengths_have_the_advantages_of_the_definition() {
        let lengths = [1_usize, 7, 40, 0, 2, 133];
        let wave = |seed: usize| 0.7 * (seed as f64 * 1.7).sin();
        let end_values: Vec<f64> =
            (0..lengths.len()).map(|at| if at % 2 == 0 { 0.0 } else { wave(at + 3) }).collect();
        let total: usize = lengths.iter().sum();
        let ends: Vec<usize> = (1..=lengths.len()).map(|n| lengths[..n].iter().sum()).collect();
        let rewards: Vec<f64> = (0..total).map(wave).collect();
        let values: Vec<f64> = (0..total).map(|at| wave(at * 3 + 1)).collect();
        let packed = Packed { ends: &ends, values: &values, end_values: &end_values };
        for (discount, lambda) in [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0), (0.0, 0.5)] {
            let discounts = Discounts { discount, lambda };
            let (mut start, mut expected) = (0, Vec::new());
            for (length, end) in lengths.iter().zip(&end_values) {
                let range = start..start + length;
                let (rewards, values) = (&rewards[range.clone()], &values[range.clone()]);
                expected.extend(by_definition(rewards, values, *end, discounts));
                start = range.end;
            }
            close(&packed.advantages(rewards.clone(), discounts), &expected);
        }
    }
}
