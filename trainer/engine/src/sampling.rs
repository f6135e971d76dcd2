//! Sampling from logits with log-probabilities: greedy, or by inversion of the cumulative
//! distribution.
//!
//! ```text
//!  logits ─ penalties, forbidden tokens ─▶ ÷ temperature ─▶ softmax
//!         ─┬─▶ top-k, top-p, min-p ─▶ draw
//!          └─▶ log-probabilities of the whole distribution, as in SGLang
//! ```
//! The result of a row depends only on its logits and draw. Each token uses one uniform number, a
//! pure function of (seed, position in the completion), so that the randomness of a sample is
//! reproducible. The vocabulary is never sorted.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tch::{Kind, TchError, Tensor};

/// Temperature below which sampling is greedy, as in SGLang.
pub const GREEDY_BELOW: f64 = 1e-6;

/// Logits processed at once; bounds the memory of a step with many rows and a large vocabulary.
const CHUNK: i64 = 1 << 22;

/// Probabilities per partial sum.
const BLOCK: usize = 512;

/// Initial number of candidates of truncated sampling.
const CANDIDATES: usize = 64;

/// Sampling parameters of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// Below [`GREEDY_BELOW`], sampling is greedy.
    pub temperature: f64,
    pub top_p: f64,
    pub top_k: Option<usize>,
    /// Minimum probability relative to the most likely token.
    pub min_p: f64,
    pub seed: u64,
    /// Index of the token in the completion, from 0.
    pub position: u64,
    /// Number of most likely tokens to return.
    pub top_logprobs: usize,
    /// Added to the logits first: (token, addend). −∞ forbids a token.
    pub addends: Vec<(i64, f32)>,
}

/// A sampled token with its log-probability under logits ÷ temperature (of the unscaled logits when
/// greedy).
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: i64,
    /// In nats.
    pub logprob: f64,
    /// Most likely tokens in descending order.
    pub top: Vec<(f64, i64)>,
}

/// Samples one token per row of `logits_BV`; `None` for a row with a NaN or +∞ logit.
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
    let V = logits_BV.size()[1] as usize;
    let greedy = |draw: &Draw| draw.temperature < GREEDY_BELOW;
    let temperatures: Vec<f32> =
        draws.iter().map(|draw| if greedy(draw) { 1.0 } else { draw.temperature as f32 }).collect();
    let scaled_BV = with_addends(logits_BV, draws)?
        .f_div(&Tensor::f_from_slice(&temperatures)?.f_unsqueeze(1)?)?;
    let likeliest: Vec<i64> = if draws.iter().any(greedy) {
        scaled_BV.f_argmax(-1, false)?.try_into()?
    } else {
        Vec::new()
    };
    let probabilities: Vec<f32> = scaled_BV.f_softmax(-1, Kind::Float)?.f_view([-1])?.try_into()?;
    let row = |(index, (row, draw)): (usize, (&[f32], &Draw))| {
        let sums: Vec<f64> = row.chunks(BLOCK).map(sum).collect();
        let total: f64 = sums.iter().sum();
        if !total.is_finite() {
            return None;
        }
        let token =
            if greedy(draw) { likeliest[index] as usize } else { pick(row, &sums, total, draw) };
        let top =
            if draw.top_logprobs == 0 { Vec::new() } else { most_likely(row, draw.top_logprobs) };
        let top = top
            .into_iter()
            .map(|token| (logarithm(row[token as usize]), i64::from(token)))
            .collect();
        Some(Sampled { token: token as i64, logprob: logarithm(row[token]), top })
    };
    Ok(probabilities.chunks(V).zip(draws).enumerate().map(row).collect())
}

fn logarithm(probability: f32) -> f64 {
    f64::from(probability).ln()
}

/// Returns the logits in fp32 with the addends of the draws.
fn with_addends(logits_BV: &Tensor, draws: &[Draw]) -> Result<Tensor, TchError> {
    let logits_BV = logits_BV.f_to_kind(Kind::Float)?;
    if draws.iter().all(|draw| draw.addends.is_empty()) {
        return Ok(logits_BV);
    }
    let changed_BV = logits_BV.f_add_scalar(0.0)?; // a copy
    for (row, draw) in draws.iter().enumerate().filter(|(_, draw)| !draw.addends.is_empty()) {
        let (tokens, addends): (Vec<i64>, Vec<f32>) = draw.addends.iter().copied().unzip();
        let _ = changed_BV.f_select(0, row as i64)?.f_index_add_(
            0,
            &Tensor::f_from_slice(&tokens)?,
            &Tensor::f_from_slice(&addends)?,
        )?;
    }
    Ok(changed_BV)
}

/// Sums in fp64, in eight lanes.
fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let chunks = values.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|value| f64::from(*value)).sum();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*value);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// Returns the token selected by the uniform number of the row.
fn pick(row: &[f32], sums: &[f64], total: f64, draw: &Draw) -> usize {
    let uniform = uniform(draw.seed, draw.position);
    if draw.top_k.is_none() && draw.top_p >= 1.0 && draw.min_p <= 0.0 {
        let mut rest = uniform * total;
        let block = sums
            .iter()
            .position(|sum| {
                if rest < *sum {
                    true
                } else {
                    rest -= sum;
                    false
                }
            })
            .unwrap_or(sums.len() - 1);
        let start = block * BLOCK;
        return start + invert_cdf(row[start..row.len().min(start + BLOCK)].iter().copied(), rest);
    }
    let kept = candidates(row, draw);
    let mass: f64 = kept.iter().map(|token| f64::from(row[*token as usize])).sum();
    kept[invert_cdf(kept.iter().map(|token| row[*token as usize]), uniform * mass)] as usize
}

/// Returns the first index at which the cumulative sum exceeds `threshold`, or the last non-zero
/// index if rounding prevents that.
fn invert_cdf(values: impl Iterator<Item = f32>, threshold: f64) -> usize {
    let (mut cumulative, mut last) = (0.0, 0);
    for (index, value) in values.enumerate() {
        cumulative += f64::from(value);
        if cumulative > threshold {
            return index;
        }
        if value > 0.0 {
            last = index;
        }
    }
    last
}

/// Returns the tokens that may be sampled in descending order. As in SGLang, each limit applies to
/// the whole distribution.
fn candidates(row: &[f32], draw: &Draw) -> Vec<u32> {
    let top_k = draw.top_k.unwrap_or(row.len()).min(row.len());
    let mut looked_at = CANDIDATES.min(top_k).max(1);
    loop {
        let mut tokens = most_likely(row, looked_at);
        let least = draw.min_p * f64::from(row[tokens[0] as usize]);
        let mut before = 0.0;
        let end = tokens.iter().position(|token| {
            let probability = f64::from(row[*token as usize]);
            let out = before > draw.top_p || probability < least;
            before += probability;
            out
        });
        match end {
            Some(end) => {
                tokens.truncate(end.max(1));
                return tokens;
            }
            None if looked_at >= top_k => return tokens,
            None => looked_at = (looked_at * 8).min(top_k),
        }
    }
}

/// Returns the `count` most likely tokens in descending order; equal ones by ascending id.
fn most_likely(row: &[f32], count: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
    let mut tokens: Vec<u32> = (0..row.len() as u32).collect();
    let count = count.min(tokens.len());
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, order);
        tokens.truncate(count);
    }
    tokens.sort_unstable_by(order);
    tokens
}

/// Computes log-probabilities of `targets`, one per row of `logits_TV`, with the `top` most likely
/// tokens of each row.
pub fn logprobs_of(
    logits_TV: &Tensor,
    targets: &[i64],
    top: usize,
) -> Result<Vec<Sampled>, TchError> {
    let logprobs_TV = logits_TV.f_log_softmax(-1, Kind::Float)?;
    let targets_T1 = Tensor::f_from_slice(targets)?.f_unsqueeze(1)?;
    let chosen: Vec<f64> = logprobs_TV
        .f_gather(1, &targets_T1, false)?
        .f_view([-1])?
        .f_to_kind(Kind::Double)?
        .try_into()?;
    let (values, tokens) = if top == 0 {
        (Vec::new(), Vec::new())
    } else {
        let (values_TK, tokens_TK) = logprobs_TV.f_topk(top as i64, -1, true, true)?;
        (
            Vec::<f64>::try_from(values_TK.f_view([-1])?.f_to_kind(Kind::Double)?)?,
            Vec::<i64>::try_from(tokens_TK.f_view([-1])?)?,
        )
    };
    let row = |(index, (logprob, token)): (usize, (f64, &i64))| {
        let part = index * top..(index + 1) * top;
        Sampled {
            token: *token,
            logprob,
            top: values[part.clone()].iter().copied().zip(tokens[part].iter().copied()).collect(),
        }
    };
    Ok(chosen.into_iter().zip(targets).enumerate().map(row).collect())
}

/// Uniform number in [0, 1) with 53 bits: ChaCha8 with key `seed` and stream `position`.
fn uniform(seed: u64, position: u64) -> f64 {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(position);
    (generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;
