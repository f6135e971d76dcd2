//! From logits to tokens: argmax, or sampling by inversion of the cumulative distribution, with
//! log-probabilities.
//!
//! ```text
//!  logits ─ penalties, forbidden tokens ─▶ ÷ temperature ─▶ softmax ─▶ top-k, top-p, min-p ─▶ draw
//!                                                             └─▶ log-probabilities (of the whole distribution, as SGLang's)
//! ```
//! A row's result depends on that row's logits and draw alone. One uniform number is used a token,
//! a pure function of (seed, position in the completion), so that a sample's randomness is the same
//! wherever and whenever it is generated. Nothing sorts the vocabulary.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tch::{Kind, TchError, Tensor};

/// Below this temperature sampling is greedy, as in SGLang.
pub const GREEDY_BELOW: f64 = 1e-6;

/// Logits looked at in one go; bounds the memory of a step with many rows and a large vocabulary.
const CHUNK: i64 = 1 << 22;

/// Probabilities that are summed before their sum is looked at.
const BLOCK: usize = 512;

/// Likeliest tokens that are looked at first when some are to be left out.
const CANDIDATES: usize = 64;

/// How to sample one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// Divides the logits; below [`GREEDY_BELOW`] the most likely token is taken.
    pub temperature: f64,
    /// Probability mass that is sampled from.
    pub top_p: f64,
    /// Tokens that are sampled from, if not all.
    pub top_k: Option<usize>,
    /// Least probability as a part of the likeliest one's.
    pub min_p: f64,
    /// Seed of the request.
    pub seed: u64,
    /// Index of the token in the completion, from 0.
    pub position: u64,
    /// Likeliest tokens to return beside the sampled one.
    pub top_logprobs: usize,
    /// Added to logits before anything else: (token, addend). −∞ forbids a token.
    pub addends: Vec<(i64, f32)>,
}

/// A sampled token with the log-probability that logits ÷ temperature give it (of the logits
/// themselves when greedy).
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token id.
    pub token: i64,
    /// Its log-probability, in nats.
    pub logprob: f64,
    /// The likeliest tokens, most likely first.
    pub top: Vec<(f64, i64)>,
}

/// Samples one token a row of `logits_BV`; none where a row has a logit that is NaN or +∞.
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
    let scaled_BV =
        added(logits_BV, draws)?.f_div(&Tensor::f_from_slice(&temperatures)?.f_unsqueeze(1)?)?;
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
        let top = if draw.top_logprobs == 0 {
            Vec::new()
        } else {
            likeliest_first(row, draw.top_logprobs)
        };
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

/// The logits in fp32, with what the draws add to them.
fn added(logits_BV: &Tensor, draws: &[Draw]) -> Result<Tensor, TchError> {
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

/// A sum in fp64, in eight lanes.
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

/// The token that the row's uniform number falls on.
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
        return start + fall(row[start..row.len().min(start + BLOCK)].iter().copied(), rest);
    }
    let kept = kept(row, draw);
    let mass: f64 = kept.iter().map(|token| f64::from(row[*token as usize])).sum();
    kept[fall(kept.iter().map(|token| row[*token as usize]), uniform * mass)] as usize
}

/// The first index at which the cumulative sum exceeds `threshold`; the last that is not zero if
/// none does, which is rounding.
fn fall(values: impl Iterator<Item = f32>, threshold: f64) -> usize {
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

/// The tokens that may be sampled, most likely first: SGLang's rule, each limit on the whole
/// distribution.
fn kept(row: &[f32], draw: &Draw) -> Vec<u32> {
    let top_k = draw.top_k.unwrap_or(row.len()).min(row.len());
    let mut looked_at = CANDIDATES.min(top_k).max(1);
    loop {
        let mut tokens = likeliest_first(row, looked_at);
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

/// The `count` likeliest tokens, most likely first; of equals, the lower id first.
fn likeliest_first(row: &[f32], count: usize) -> Vec<u32> {
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

/// Log-probabilities of `targets`, one a row of `logits_TV`, each with the `top` likeliest tokens
/// of its row.
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

/// Uniform in [0, 1) with 53 bits: ChaCha8 keyed by `seed`, with `position` as its stream.
fn uniform(seed: u64, position: u64) -> f64 {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(position);
    (generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;
