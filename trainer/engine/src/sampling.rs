//! From logits to tokens: temperature sampling by inversion of the cumulative distribution, or argmax, with log-probabilities.
//!
//! A row's result depends on that row's logits and draw alone. One uniform number is used a token, a pure function of (seed, position in the
//! completion), so that a sample's randomness is the same wherever and whenever it is generated.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tch::{Kind, TchError, Tensor};

/// Below this temperature sampling is greedy, as in SGLang.
pub const GREEDY_BELOW: f64 = 1e-6;

/// Logits looked at in one go; bounds the memory of a step with many rows and a large vocabulary.
const CHUNK: i64 = 1 << 22;

/// How to sample one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides the logits; below [`GREEDY_BELOW`] the most likely token is taken.
    pub temperature: f64,
    /// Seed of the request.
    pub seed: u64,
    /// Index of the token in the completion, from 0.
    pub position: u64,
}

/// A sampled token with the log-probability that logits ÷ temperature give it (of the logits themselves when greedy).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The token id.
    pub token: i64,
    /// Its log-probability, in nats.
    pub logprob: f64,
}

/// Samples one token a row of `logits_BV`; none where a row has a logit that is NaN or infinite.
pub fn sample(logits_BV: &Tensor, draws: &[Draw]) -> Result<Vec<Option<Sampled>>, TchError> {
    let V = logits_BV.size()[1];
    let rows = (CHUNK / V.max(1)).max(1);
    let mut sampled = Vec::with_capacity(draws.len());
    for (index, part) in draws.chunks(rows as usize).enumerate() {
        let part_BV = logits_BV.f_narrow(0, index as i64 * rows, part.len() as i64)?;
        sampled.extend(sample_rows(&part_BV, part)?);
    }
    Ok(sampled)
}

fn sample_rows(logits_BV: &Tensor, draws: &[Draw]) -> Result<Vec<Option<Sampled>>, TchError> {
    let greedy = |draw: &Draw| draw.temperature < GREEDY_BELOW;
    let temperatures: Vec<f32> = draws.iter().map(|draw| if greedy(draw) { 1.0 } else { draw.temperature as f32 }).collect();
    let temperature_B1 = Tensor::f_from_slice(&temperatures)?.f_unsqueeze(1)?;
    let scaled_BV = logits_BV.f_to_kind(Kind::Float)?.f_div(&temperature_B1)?;
    let logprobs_BV = scaled_BV.f_log_softmax(-1, Kind::Float)?;
    let finite: Vec<bool> = logprobs_BV.f_isfinite()?.f_all_dim(-1, false)?.try_into()?;

    let all_greedy = draws.iter().all(greedy);
    let drawn = if all_greedy { Vec::new() } else { inverse_cdf(&logprobs_BV, draws)? };
    let likeliest: Vec<i64> = if draws.iter().any(greedy) { scaled_BV.f_argmax(-1, false)?.try_into()? } else { Vec::new() };
    let tokens: Vec<i64> = draws.iter().enumerate().map(|(row, draw)| if greedy(draw) { likeliest[row] } else { drawn[row] }).collect();

    let tokens_B1 = Tensor::f_from_slice(&tokens)?.f_unsqueeze(1)?;
    let logprobs: Vec<f64> = logprobs_BV.f_gather(1, &tokens_B1, false)?.f_squeeze_dim(1)?.f_to_kind(Kind::Double)?.try_into()?;
    let row = |((finite, token), logprob): ((bool, i64), f64)| finite.then_some(Sampled { token, logprob });
    Ok(finite.into_iter().zip(tokens).zip(logprobs).map(row).collect())
}

/// The first token at which the cumulative probability exceeds the row's uniform number; sums are in fp64.
fn inverse_cdf(logprobs_BV: &Tensor, draws: &[Draw]) -> Result<Vec<i64>, TchError> {
    let V = logprobs_BV.size()[1];
    let cumulative_BV = logprobs_BV.f_exp()?.f_cumsum(-1, Kind::Double)?;
    let uniforms: Vec<f64> = draws.iter().map(|draw| uniform(draw.seed, draw.position)).collect();
    let threshold_B1 = Tensor::f_from_slice(&uniforms)?.f_unsqueeze(1)?.f_mul(&cumulative_BV.f_narrow(1, V - 1, 1)?)?;
    let index_B1 = threshold_B1.f_searchsorted(&cumulative_BV, false, true, "right", None::<Tensor>)?;
    index_B1.f_clamp(0, V - 1)?.f_squeeze_dim(1)?.try_into()
}

/// Uniform in [0, 1) with 53 bits: ChaCha8 keyed by `seed`, with `position` as its stream.
fn uniform(seed: u64, position: u64) -> f64 {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(position);
    (generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::{Draw, sample, uniform};
    use tch::Tensor;

    fn draws(temperature: f64, count: u64) -> Vec<Draw> {
        (0..count).map(|position| Draw { temperature, seed: 7, position }).collect()
    }

    #[test]
    fn frequencies_follow_the_softmax_of_logits_over_temperature() {
        let (count, temperature) = (20_000, 0.7);
        let logits_BV = Tensor::from_slice(&[0.0_f32, 1.0, -1.0, 0.5]).unsqueeze(0).expand([count, 4], false).contiguous();
        let weights: Vec<f64> = [0.0, 1.0, -1.0, 0.5].iter().map(|x: &f64| (x / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut counts = [0.0; 4];
        for sampled in sample(&logits_BV, &draws(temperature, count as u64)).unwrap() {
            let sampled = sampled.unwrap();
            counts[sampled.token as usize] += 1.0;
            assert!((sampled.logprob - (weights[sampled.token as usize] / total).ln()).abs() < 1e-5);
        }
        for (seen, weight) in counts.iter().zip(&weights) {
            assert!((seen / count as f64 - weight / total).abs() < 0.012, "{counts:?}");
        }
    }

    #[test]
    fn greedy_takes_the_likeliest_token_with_its_unscaled_log_probability() {
        let logits_BV = Tensor::from_slice(&[0.0_f32, 2.0, -1.0]).unsqueeze(0);
        let sampled = sample(&logits_BV, &draws(0.0, 1)).unwrap()[0].unwrap();
        let total = 1.0 + 2.0_f64.exp() + (-1.0_f64).exp();
        assert_eq!(sampled.token, 1);
        assert!((sampled.logprob - (2.0 - total.ln())).abs() < 1e-6);
    }

    #[test]
    fn a_row_that_is_not_finite_is_refused_and_spares_its_neighbours() {
        let logits_BV = Tensor::from_slice(&[0.0_f32, f32::NAN, 0.0, 9.0, f32::INFINITY, 0.0]).view([3, 2]);
        let sampled = sample(&logits_BV, &draws(1.0, 3)).unwrap();
        assert_eq!(sampled.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(sampled[1].unwrap().token, 1);
    }

    #[test]
    fn a_uniform_number_is_a_function_of_seed_and_position() {
        assert_eq!(uniform(3, 5).to_bits(), uniform(3, 5).to_bits());
        assert!(uniform(3, 5).to_bits() != uniform(3, 6).to_bits() && uniform(3, 5).to_bits() != uniform(4, 5).to_bits());
    }
}
