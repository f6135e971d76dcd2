//! Generalized Advantage Estimation (Schulman et al., arXiv 1506.02438) over packed sequences.
//!
//! ```text
//!  δ_t = r_t + γ V_{t+1} − V_t
//!  A_t = δ_t + γ λ A_{t+1}               A after the last token is 0
//!
//!  λ     of the sequence
//!  r_t   reward of the token; that of a turn is at its last token
//!  V_t   value of the state before the token
//!  V after the last token: 0, or the value of that state if a limit ended the sample
//! ```
//! t counts trained tokens only, as in AReaL: prompts and tool results between the turns of a
//! completion have neither rewards nor steps. Inputs and advantages are fp32, sums over tokens are
//! fp64; on a CPU, δ is rounded to fp32 before.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

pub use crate::operands::{Discounts, Packed};

use crate::KernelError;

/// Advantage of every token `[N]`, fp32, from the rewards r `[N]`, fp32.
pub fn advantages(
    packed: &Packed<'_>,
    rewards_N: &Tensor,
    discounts: Discounts<'_>,
) -> Result<Tensor, KernelError> {
    #[cfg(feature = "cuda")]
    if rewards_N.device().is_cuda() {
        return on_gpu(packed, rewards_N, discounts);
    }
    plain(packed, rewards_N, discounts)
}

/// [`advantages`] as a loop on the CPU.
pub fn plain(
    packed: &Packed<'_>,
    rewards_N: &Tensor,
    discounts: Discounts<'_>,
) -> Result<Tensor, KernelError> {
    let Packed { ends_Q, values_N, end_values_Q } = *packed;
    let floats = |tensor: &Tensor| Vec::<f32>::try_from(tensor.f_to_kind(Kind::Float)?);
    let doubles = |tensor: &Tensor| Vec::<f64>::try_from(tensor.f_to_kind(Kind::Double)?);
    let (ends, values, end_values) =
        (Vec::<i64>::try_from(ends_Q)?, floats(values_N)?, floats(end_values_Q)?);
    let (rewards, lambdas) = (floats(rewards_N)?, doubles(discounts.lambda_Q)?);
    let is_fit =
        values.len() == rewards.len() && [end_values.len(), lambdas.len()] == [ends.len(); 2];
    if !is_fit {
        return Err(unfit(FIT));
    }
    let whole = ends.last().copied().unwrap_or(0) == rewards.len() as i64;
    if !whole || !ends.is_sorted() || ends.first().is_some_and(|first| *first < 0) {
        return Err(unfit("ascending ends, the last of which is the number of rewards"));
    }
    let (end_values, lambdas) = (&end_values, &lambdas);
    let slices = PackedSlices { ends: &ends, values: &values, end_values, lambdas };
    let advantages = slices.advantages(rewards, discounts.discount);
    Ok(Tensor::f_from_slice(&advantages)?.f_to_device(rewards_N.device())?)
}

const FIT: &str = "a value for each reward, an end value and a λ for each sequence";

fn unfit(message: &'static str) -> KernelError {
    KernelError::Operands { operation: "compute advantages", message }
}

/// Runs the kernel, whose operands are contiguous and of one device.
#[cfg(feature = "cuda")]
fn on_gpu(
    packed: &Packed<'_>,
    rewards_N: &Tensor,
    discounts: Discounts<'_>,
) -> Result<Tensor, KernelError> {
    let device = rewards_N.device();
    let whole = |tensor: &Tensor, kind| tensor.f_to_device(device)?.f_to_kind(kind)?.f_contiguous();
    let rewards_N = whole(rewards_N, Kind::Float)?;
    let own = Packed {
        ends_Q: &whole(packed.ends_Q, Kind::Int64)?,
        values_N: &whole(packed.values_N, Kind::Float)?,
        end_values_Q: &whole(packed.end_values_Q, Kind::Float)?,
    };
    let lambda_Q = &whole(discounts.lambda_Q, Kind::Double)?;
    let sequences = own.ends_Q.numel();
    let is_fit = own.values_N.numel() == rewards_N.numel()
        && [own.end_values_Q.numel(), lambda_Q.numel()] == [sequences; 2];
    if !is_fit {
        return Err(unfit(FIT));
    }
    crate::cuda::advantages(&own, &rewards_N, Discounts { lambda_Q, ..discounts })
}

/// [`Packed`] in memory of the host.
#[derive(Clone, Copy, Debug)]
pub struct PackedSlices<'a> {
    pub ends: &'a [i64],
    pub values: &'a [f32],
    pub end_values: &'a [f32],
    /// λ of each sequence.
    pub lambdas: &'a [f64],
}

impl PackedSlices<'_> {
    /// Advantage `[N]` of every token, in the memory of its rewards r `[N]`.
    pub fn advantages(&self, mut rewards: Vec<f32>, discount: f64) -> Vec<f32> {
        let mut start = 0;
        let of_sequences = self.ends.iter().zip(self.end_values).zip(self.lambdas);
        for ((&end, &end_value), &lambda) in of_sequences {
            let end = end as usize;
            let (rewards, values) = (&mut rewards[start..end], &self.values[start..end]);
            replace_by_advantages(rewards, values, end_value, [discount, lambda]);
            start = end;
        }
        rewards
    }
}

/// Replaces the rewards of a sequence by its advantages.
fn replace_by_advantages(
    rewards: &mut [f32],
    values: &[f32],
    end_value: f32,
    [discount, lambda]: [f64; 2],
) {
    let gamma = discount as f32;
    let next_values = values.get(1..).unwrap_or_default();
    for ((reward, value), next_value) in rewards.iter_mut().zip(values).zip(next_values) {
        *reward += gamma * next_value - value;
    }
    if let (Some(reward), Some(value)) = (rewards.last_mut(), values.last()) {
        *reward += gamma * end_value - value;
    }
    accumulate(rewards, discount * lambda);
}

/// Replaces each number by its sum with the later ones, which decay with their distance. Four
/// tokens are computed at once, which divides the chain of dependent operations by four.
fn accumulate(deltas: &mut [f32], decay: f64) {
    let decays = [decay, decay.powi(2), decay.powi(3), decay.powi(4)];
    let (first, fours) = deltas.split_at_mut(deltas.len() % 4);
    let mut next = 0.0;
    for four in fours.rchunks_exact_mut(4) {
        let [a, b, c, d] = [four[0], four[1], four[2], four[3]].map(f64::from);
        let c = c + decay * d;
        let b = b + decay * c;
        let a = a + decay * b;
        four[3] = (d + decays[0] * next) as f32;
        four[2] = (c + decays[1] * next) as f32;
        four[1] = (b + decays[2] * next) as f32;
        next = a + decays[3] * next;
        four[0] = next as f32;
    }
    for delta in first.iter_mut().rev() {
        next = f64::from(*delta) + decay * next;
        *delta = next as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::{Discounts, Packed, advantages};
    use tch::Tensor;

    fn close(actual: &Tensor, expected: &[f64]) {
        let actual = Vec::<f32>::try_from(actual).unwrap();
        let near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() <= 1e-6 * b.abs().max(1.0);
        let near = actual.len() == expected.len() && actual.iter().zip(expected).all(near);
        assert!(near, "{actual:?} is not {expected:?}");
    }

    fn of(
        ends: &[i64],
        values: &[f32],
        end_values: &[f32],
        rewards: &[f32],
        (discount, lambdas): (f64, &[f64]),
    ) -> Tensor {
        let packed = Packed {
            ends_Q: &Tensor::from_slice(ends),
            values_N: &Tensor::from_slice(values),
            end_values_Q: &Tensor::from_slice(end_values),
        };
        let discounts = Discounts { discount, lambda_Q: &Tensor::from_slice(lambdas) };
        advantages(&packed, &Tensor::from_slice(rewards), discounts).unwrap()
    }

    /// A_t as the sum of (γλ)^l δ_{t+l}, from one sequence and the value after it.
    fn by_definition(
        rewards: &[f32],
        values: &[f32],
        end: f32,
        [discount, lambda]: [f64; 2],
    ) -> Vec<f64> {
        let value = |token: usize| f64::from(values.get(token).copied().unwrap_or(end));
        let delta =
            |token: usize| f64::from(rewards[token]) + discount * value(token + 1) - value(token);
        let advantage = |token: usize| {
            let terms = (token..rewards.len()).zip(0..);
            terms.map(|(later, power)| (discount * lambda).powi(power) * delta(later)).sum()
        };
        (0..rewards.len()).map(advantage).collect()
    }

    #[test]
    fn a_sequence_computed_by_hand_has_its_advantages() {
        let half = (0.5, &[0.5][..]);
        let found = of(&[3], &[0.5, 0.25, 0.75], &[0.0], &[0.0, -0.5, 1.0], half);
        // δ = 0.5·0.25 − 0.5, −0.5 + 0.5·0.75 − 0.25, 1 − 0.75; γλ = 0.25.
        close(&found, &[-0.375 + 0.25 * (-0.375 + 0.25 * 0.25), -0.375 + 0.25 * 0.25, 0.25]);
    }

    #[test]
    fn operands_that_do_not_fit_are_errors() {
        for (ends, values, end_values, lambdas) in [
            (&[2_i64][..], &[0.5_f32][..], &[0.0_f32][..], &[1.0][..]),
            (&[2], &[0.5, 0.5], &[], &[1.0]),
            (&[2], &[0.5, 0.5], &[0.0], &[1.0; 2]),
            (&[1], &[0.5, 0.5], &[0.0], &[1.0]),
            (&[3], &[0.5, 0.5], &[0.0], &[1.0]),
            (&[2, 1, 2], &[0.5, 0.5], &[0.0; 3], &[1.0; 3]),
            (&[-1, 2], &[0.5, 0.5], &[0.0; 2], &[1.0; 2]),
        ] {
            let packed = Packed {
                ends_Q: &Tensor::from_slice(ends),
                values_N: &Tensor::from_slice(values),
                end_values_Q: &Tensor::from_slice(end_values),
            };
            let one = Discounts { discount: 1.0, lambda_Q: &Tensor::from_slice(lambdas) };
            let found = advantages(&packed, &Tensor::from_slice(&[1.0_f32, 0.0]), one);
            assert!(found.is_err(), "{ends:?} {values:?} {end_values:?} {lambdas:?}");
        }
    }

    #[test]
    fn with_lambda_1_and_no_discount_it_is_the_return_minus_the_value() {
        let none = (1.0, &[1.0; 2][..]);
        let found = of(&[2, 3], &[0.5, 0.25, 0.125], &[0.0, 0.75], &[0.0, 1.0, 0.0], none);
        close(&found, &[0.5, 0.75, 0.625]);
    }

    #[test]
    fn packed_sequences_of_all_lengths_have_the_advantages_of_the_definition() {
        let lengths = [1_usize, 7, 40, 0, 2, 133];
        let wave = |seed: usize| 0.7 * (seed as f32 * 1.7).sin();
        let end_values: Vec<f32> =
            (0..lengths.len()).map(|at| if at % 2 == 0 { 0.0 } else { wave(at + 3) }).collect();
        let total: usize = lengths.iter().sum();
        let ends = (1..=lengths.len()).map(|n| lengths[..n].iter().sum::<usize>() as i64);
        let ends: Vec<i64> = ends.collect();
        let rewards: Vec<f32> = (0..total).map(wave).collect();
        let values: Vec<f32> = (0..total).map(|at| wave(at * 3 + 1)).collect();
        let varied = [0.5, 0.9, 0.99, 0.25, 0.0, 1.0];
        for (discount, lambdas) in
            [(1.0, [1.0; 6]), (0.99, [0.95; 6]), (0.9, [0.0; 6]), (0.0, [0.5; 6]), (0.97, varied)]
        {
            let (mut start, mut expected) = (0, Vec::new());
            for ((length, end), lambda) in lengths.iter().zip(&end_values).zip(lambdas) {
                let range = start..start + length;
                let (rewards, values) = (&rewards[range.clone()], &values[range.clone()]);
                expected.extend(by_definition(rewards, values, *end, [discount, lambda]));
                start = range.end;
            }
            close(&of(&ends, &values, &end_values, &rewards, (discount, &lambdas)), &expected);
        }
    }
}
