//! Dropout of the inputs of adapters, as `lora_dropout` of PEFT: an element is 0 with probability
//! p, else it is multiplied by 1 ÷ (1 − p).
//!
//! ```text
//!  row     = hash(token, pass, layer, linear layer)     [T]
//!  element = hash(row + hash(column))                   [T, M], 0 if below p · 2³¹
//! ```
//! A mask is a pure function of what it belongs to, not of the micro-batch or rank that computes
//! it. It is not kept for the backward pass but computed again, and a replay of a step has its
//! bits.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Device, Kind, Tensor};

use super::ModelError;

/// Bits of an element that are compared with the probability.
const BITS: i64 = 0x7fff_ffff;
/// Multipliers of `lowbias32` (github.com/skeeto/hash-prospector).
const MULTIPLIERS: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

/// Dropout in a pass over a micro-batch.
#[derive(Debug)]
pub struct Dropout {
    probability: f64,
    /// Number of the pass.
    pass: u64,
    /// `[T]` int32, a number of the token of each row.
    rows_T: Tensor,
}

/// A sequence whose tokens get numbers.
#[derive(Clone, Copy, Debug)]
pub struct NumberedSequence {
    /// Prompt group in the step.
    pub group: u64,
    /// Sample in the step.
    pub sample: u64,
    pub tokens: usize,
    /// Leading tokens that are not trained, of which samples of a group have the same masks:
    /// learners may compute them once.
    pub prompt_tokens: usize,
}

impl NumberedSequence {
    /// Numbers of the tokens.
    pub fn numbers(self) -> impl Iterator<Item = i32> {
        (0..self.tokens).map(move |position| {
            let is_prompt = position < self.prompt_tokens;
            let owner = if is_prompt { self.group } else { self.sample };
            low(number(&[u64::from(is_prompt), owner, position as u64]))
        })
    }
}

/// A well-mixed number of a list (SplitMix64).
pub fn number(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |state, part| {
        let mut mixed = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// The low half.
fn low(number: u64) -> i32 {
    (number & u64::from(u32::MAX)) as u32 as i32
}

impl Dropout {
    /// Dropout with this probability in a pass. `rows_T` `[T]` are numbers of the rows' tokens.
    pub fn new(probability: f64, pass: u64, rows_T: &Tensor) -> Self {
        Self { probability, pass, rows_T: rows_T.shallow_clone() }
    }

    /// Factors `[T, M]` of the inputs of a linear layer of a transformer layer, in `kind`.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn factors(
        &self,
        (layer, linear): (usize, usize),
        columns: i64,
        kind: Kind,
    ) -> Result<Tensor, ModelError> {
        let place = low(number(&[self.pass, layer as u64, linear as u64]));
        let rows_T = hashed(self.rows_T.f_bitwise_xor(i64::from(place))?)?;
        let columns_M = Tensor::f_arange(columns, (Kind::Int, rows_T.device()))?;
        let columns_M = hashed(columns_M)?;
        let mut hash_TM = hashed(rows_T.f_unsqueeze(1)?.f_add(&columns_M)?)?;
        let least = (self.probability * (BITS + 1) as f64).round() as i64;
        let kept_TM = hash_TM.f_bitwise_and_(BITS)?.f_ge(least)?;
        Ok(kept_TM.f_to_kind(kind)?.f_mul_scalar_(1.0 / (1.0 - self.probability))?)
    }

    /// The same on a device.
    #[must_use]
    pub fn to_device(self, device: Device) -> Self {
        Self { rows_T: self.rows_T.to_device(device), ..self }
    }
}

/// `lowbias32` of each element of an int32 tensor, in its memory.
fn hashed(mut numbers: Tensor) -> Result<Tensor, ModelError> {
    let [first, second] = MULTIPLIERS.map(|multiplier| i64::from(multiplier as i32));
    for (shift, multiplier) in [(16, Some(first)), (15, Some(second)), (16, None)] {
        let mut shifted = numbers.f_bitwise_right_shift_tensor_scalar(shift)?;
        // The shift of a signed number repeats its sign.
        let shifted = shifted.f_bitwise_and_((1_i64 << (32 - shift)) - 1)?;
        numbers = numbers.f_bitwise_xor_tensor_(&shifted)?;
        if let Some(multiplier) = multiplier {
            numbers = numbers.f_mul_scalar_(multiplier)?;
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::{Dropout, MULTIPLIERS, NumberedSequence, low, number};
    use tch::{Kind, Tensor};

    const PASS: u64 = 77;

    fn lowbias32(mut number: u32) -> u32 {
        number = (number ^ (number >> 16)).wrapping_mul(MULTIPLIERS[0]);
        number = (number ^ (number >> 15)).wrapping_mul(MULTIPLIERS[1]);
        number ^ (number >> 16)
    }

    fn rows(count: usize) -> Vec<i32> {
        let sequence = NumberedSequence { group: 3, sample: 9, tokens: count, prompt_tokens: 4 };
        sequence.numbers().collect()
    }

    fn factors(probability: f64, place: (usize, usize)) -> Vec<Vec<f32>> {
        let dropout = Dropout::new(probability, PASS, &Tensor::from_slice(&rows(200)));
        Vec::try_from(dropout.factors(place, 300, Kind::Float).unwrap()).unwrap()
    }

    #[test]
    fn every_element_has_the_hash_of_its_token_and_column() {
        let found = factors(0.25, (5, 2));
        let place = low(number(&[PASS, 5, 2]));
        for (row, of_row) in rows(200).into_iter().zip(&found) {
            let row = lowbias32((row ^ place) as u32);
            for (column, factor) in (0..).zip(of_row) {
                let hash = lowbias32(row.wrapping_add(lowbias32(column))) & 0x7fff_ffff;
                let expected: f32 = if hash >= 1 << 29 { 1.0 / 0.75 } else { 0.0 };
                assert_eq!(factor.to_bits(), expected.to_bits());
            }
        }
    }

    #[test]
    fn the_share_of_zeros_is_the_probability_in_all_rows_and_columns() {
        let found = factors(0.1, (0, 6));
        let zeros = |factors: &mut dyn Iterator<Item = f32>| {
            factors.filter(|factor| *factor == 0.0).count() as f64
        };
        let all = zeros(&mut found.iter().flatten().copied()) / 60_000.0;
        assert!((all - 0.1).abs() < 0.005, "{all}");
        for row in &found {
            let share = zeros(&mut row.iter().copied()) / 300.0;
            assert!((0.03..0.19).contains(&share), "{share}");
        }
        for column in 0..300 {
            let share = zeros(&mut found.iter().map(|row| row[column])) / 200.0;
            assert!((0.02..0.21).contains(&share), "{share}");
        }
    }

    #[test]
    fn masks_of_passes_layers_and_linear_layers_are_independent() {
        let kept = |place| factors(0.5, place).concat();
        let first = kept((1, 0));
        for other in [kept((2, 0)), kept((1, 1))] {
            let is_equal = |(one, other): &(&f32, &f32)| (**one > 0.0) == (**other > 0.0);
            let equal = first.iter().zip(&other).filter(is_equal).count();
            assert!((0.48..0.52).contains(&(equal as f64 / 60_000.0)), "{equal}");
        }
    }

    #[test]
    fn samples_of_a_group_share_the_numbers_of_their_prompt_only() {
        let numbers = |sample| {
            let sequence = NumberedSequence { group: 1, sample, tokens: 6, prompt_tokens: 2 };
            sequence.numbers().collect::<Vec<i32>>()
        };
        let (one, other) = (numbers(4), numbers(5));
        assert_eq!(one[..2], other[..2]);
        assert!(one[2..].iter().all(|number| !other.contains(number)));
    }
}
