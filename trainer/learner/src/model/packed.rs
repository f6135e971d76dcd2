//! Packed micro-batch: concatenated sequences without padding, and their padded layout for
//! attention.
//!
//! Worked example: two sequences `[5 6 7] [8 9]` with mask `[0 1 1] [0 1]`: positions `0 1 2 0 1`;
//! trained tokens are 1, 2, 4, each predicted from the row before it (0, 1, 3), in sequences 0, 0,
//! 1.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::collections::BTreeMap;

use tch::{Device, Tensor};

use super::ModelError;

/// Packed sequences. Passes over an empty micro-batch make the same calls to `Parameters` and add
/// zeros.
#[derive(Debug)]
pub struct PackedTokens {
    pub(super) tokens_T: Tensor,
    pub(super) positions_T: Tensor,
    trained_N: Tensor,
    sequence_N: Tensor,
    /// Tokens of each sequence.
    pub(super) lengths: Vec<i64>,
    /// Whether derivatives repeat bit for bit; they do on CPUs.
    pub(super) deterministic: bool,
    pub(super) buckets: Vec<Bucket>,
}

/// Sequences of similar length, padded on the right to one length for attention. The causal mask
/// keeps padding from changing other rows.
#[derive(Debug)]
pub(super) struct Bucket {
    pub num_sequences: i64,
    /// Padded length.
    pub padded: i64,
    rows: Rows,
}

/// Source rows of a bucket's `[B × S]` slots.
#[derive(Debug)]
enum Rows {
    /// Consecutive rows of the packed tensor from this one, without padding.
    From(i64),
    Scattered {
        /// Rows of the packed tensor, sequence by sequence.
        rows: Tensor,
        /// Slots of these rows.
        slots: Tensor,
        /// Row of every slot; for padding, the row of the sequence's first token.
        sources: Tensor,
        /// Slots of padding.
        padding: Tensor,
    },
}

impl PackedTokens {
    /// Packs sequences of `lengths` tokens, concatenated in `tokens`; `mask` is 1 at trained
    /// tokens.
    ///
    /// # Errors
    /// Lengths do not add up, a sequence is empty, a first token is trained (no token predicts it),
    /// or a token is outside the vocabulary.
    pub fn new(
        tokens: &[i64],
        mask: &[u8],
        lengths: &[usize],
        vocab_size: i64,
    ) -> Result<Self, ModelError> {
        check(tokens, mask, lengths, vocab_size).map_err(ModelError::Packed)?;
        let positions: Vec<i64> = lengths.iter().flat_map(|&length| 0..length as i64).collect();
        let sequence_of: Vec<i64> = lengths
            .iter()
            .enumerate()
            .flat_map(|(index, &length)| std::iter::repeat_n(index as i64, length))
            .collect();
        let trained: Vec<i64> =
            (0..tokens.len()).filter(|&row| mask[row] != 0).map(|row| row as i64).collect();
        let sequence: Vec<i64> = trained.iter().map(|&row| sequence_of[row as usize]).collect();
        Ok(Self {
            tokens_T: Tensor::from_slice(tokens),
            positions_T: Tensor::from_slice(&positions),
            trained_N: Tensor::from_slice(&trained),
            sequence_N: Tensor::from_slice(&sequence),
            lengths: lengths.iter().map(|length| *length as i64).collect(),
            deterministic: false,
            buckets: buckets(lengths),
        })
    }

    /// The same tokens on a device, where derivatives repeat bit for bit if `deterministic`.
    #[must_use]
    pub fn to_device(self, device: Device, deterministic: bool) -> Self {
        let [tokens_T, positions_T, trained_N, sequence_N] =
            [self.tokens_T, self.positions_T, self.trained_N, self.sequence_N]
                .map(|tensor| tensor.to_device(device));
        Self { tokens_T, positions_T, trained_N, sequence_N, deterministic, ..self }
    }

    /// `[N]` rows of the trained tokens, ascending. Every tensor with suffix `_N` is in this order.
    pub fn trained_N(&self) -> &Tensor {
        &self.trained_N
    }

    /// `[N]` sequence index of each trained token.
    pub fn sequence_N(&self) -> &Tensor {
        &self.sequence_N
    }

    /// `[N]` rows that predict the trained tokens: the previous row of each.
    pub(super) fn predictors_N(&self) -> Tensor {
        &self.trained_N - 1
    }

    /// `[N]` ids of the trained tokens.
    pub(super) fn targets_N(&self) -> Tensor {
        self.tokens_T.index_select(0, &self.trained_N)
    }

    pub fn num_tokens(&self) -> i64 {
        self.tokens_T.size().first().copied().unwrap_or(0)
    }

    pub fn num_trained(&self) -> i64 {
        self.trained_N.size().first().copied().unwrap_or(0)
    }
}

impl Bucket {
    /// The bucket's rows of `x` `[T, …]` in padded form `[B × S, …]`; values at padding are finite
    /// but meaningless.
    pub(super) fn pad(&self, x: &Tensor) -> Tensor {
        match &self.rows {
            Rows::From(first) => x.narrow(0, *first, self.num_sequences * self.padded),
            Rows::Scattered { sources, .. } => x.index_select(0, sources),
        }
    }

    /// As [`Self::pad`], with zeros at padding.
    pub(super) fn pad_with_zeros(&self, x: &Tensor) -> Tensor {
        let mut padded = self.pad(x);
        match &self.rows {
            Rows::From(_) => padded,
            Rows::Scattered { padding, .. } => padded.index_fill_(0, padding, 0.0),
        }
    }

    /// Copies the padded `x` `[B × S, …]` back to its rows of `out` `[T, …]`.
    pub(super) fn unpad_into(&self, out: &mut Tensor, x: &Tensor) {
        match &self.rows {
            Rows::From(first) => out.narrow(0, *first, self.num_sequences * self.padded).copy_(x),
            Rows::Scattered { rows, slots, .. } => {
                drop(out.index_copy_(0, rows, &x.index_select(0, slots)));
            }
        }
    }
}

fn check(tokens: &[i64], mask: &[u8], lengths: &[usize], vocab_size: i64) -> Result<(), String> {
    let total: usize = lengths.iter().sum();
    if total != tokens.len() || mask.len() != tokens.len() {
        return Err(format!(
            "{} tokens, {} mask entries, lengths that add up to {total}",
            tokens.len(),
            mask.len()
        ));
    }
    if let Some(row) = tokens.iter().position(|token| !(0..vocab_size).contains(token)) {
        return Err(format!(
            "token {} at row {row} is outside the vocabulary of {vocab_size}",
            tokens[row]
        ));
    }
    let mut first = 0;
    for (index, &length) in lengths.iter().enumerate() {
        if length == 0 {
            return Err(format!("sequence {index} is empty"));
        }
        if mask[first] != 0 {
            return Err(format!(
                "the first token of sequence {index} is trained, but no token predicts it"
            ));
        }
        first += length;
    }
    Ok(())
}

/// One bucket per power of two: at most half of a bucket is padding, and the number of attention
/// calls is independent of the number of sequences.
fn buckets(lengths: &[usize]) -> Vec<Bucket> {
    let mut by_size: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    let mut first = 0;
    for &length in lengths {
        by_size.entry(length.next_power_of_two()).or_default().push((first, length));
        first += length;
    }
    by_size.into_values().map(|sequences| bucket(&sequences)).collect()
}

/// The bucket of `sequences`, given as (first row, length) in order of first row; not empty.
fn bucket(sequences: &[(usize, usize)]) -> Bucket {
    let padded = sequences.iter().map(|&(_, length)| length).max().unwrap_or(0);
    let (num_sequences, first) =
        (sequences.len() as i64, sequences.first().map_or(0, |&(first, _)| first));
    let dense = sequences
        .iter()
        .enumerate()
        .all(|(index, &place)| place == (first + index * padded, padded));
    let rows = if dense { Rows::From(first as i64) } else { scattered(sequences, padded) };
    Bucket { num_sequences, padded: padded as i64, rows }
}

fn scattered(sequences: &[(usize, usize)], padded: usize) -> Rows {
    let places = sequences.iter().enumerate().flat_map(|(index, &(first, length))| {
        (0..padded).map(move |place| (index * padded + place, first, place, length))
    });
    let mut sources = Vec::with_capacity(sequences.len() * padded);
    let (mut rows, mut slots, mut padding) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, first, place, length) in places {
        if place < length {
            rows.push((first + place) as i64);
            slots.push(slot as i64);
        } else {
            padding.push(slot as i64);
        }
        sources.push((first + if place < length { place } else { 0 }) as i64);
    }
    let [rows, slots, sources, padding] =
        [rows, slots, sources, padding].map(|values| Tensor::from_slice(&values));
    Rows::Scattered { rows, slots, sources, padding }
}

#[cfg(test)]
mod tests {
    use super::PackedTokens;

    fn vec(tensor: &tch::Tensor) -> Vec<i64> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn the_worked_example_has_the_documented_layout() {
        let packed = PackedTokens::new(&[5, 6, 7, 8, 9], &[0, 1, 1, 0, 1], &[3, 2], 10).unwrap();
        assert_eq!(vec(&packed.positions_T), [0, 1, 2, 0, 1]);
        assert_eq!(vec(packed.trained_N()), [1, 2, 4]);
        assert_eq!(vec(&packed.predictors_N()), [0, 1, 3]);
        assert_eq!(vec(packed.sequence_N()), [0, 0, 1]);
        assert_eq!(vec(&packed.targets_N()), [6, 7, 9]);
    }

    #[test]
    fn sequences_of_similar_length_share_a_padded_bucket() {
        let packed = PackedTokens::new(&[0; 12], &[0; 12], &[3, 5, 4], 10).unwrap();
        let shapes: Vec<_> =
            packed.buckets.iter().map(|bucket| (bucket.num_sequences, bucket.padded)).collect();
        assert_eq!(shapes, [(2, 4), (1, 5)]);
        let x = tch::Tensor::arange(12, (tch::Kind::Int64, tch::Device::Cpu));
        assert_eq!(vec(&packed.buckets[0].pad(&x)), [0, 1, 2, 0, 8, 9, 10, 11]);
        assert_eq!(vec(&packed.buckets[0].pad_with_zeros(&x)), [0, 1, 2, 0, 8, 9, 10, 11]);
        assert_eq!(vec(&packed.buckets[0].pad_with_zeros(&(x + 1))), [1, 2, 3, 0, 9, 10, 11, 12]);
        let mut out = tch::Tensor::from_slice(&[-1_i64; 12]);
        packed.buckets[0]
            .unpad_into(&mut out, &tch::Tensor::arange(8, (tch::Kind::Int64, tch::Device::Cpu)));
        packed.buckets[1].unpad_into(&mut out, &tch::Tensor::from_slice(&[20_i64, 21, 22, 23, 24]));
        assert_eq!(vec(&out), [0, 1, 2, 20, 21, 22, 23, 24, 4, 5, 6, 7]);
    }

    #[test]
    fn adjacent_sequences_of_one_length_are_not_copied() {
        let packed = PackedTokens::new(&[0; 9], &[0; 9], &[3, 3, 3], 10).unwrap();
        let x = tch::Tensor::arange(9, (tch::Kind::Int64, tch::Device::Cpu));
        assert_eq!(packed.buckets[0].pad(&x).data_ptr(), x.data_ptr());
    }

    #[test]
    fn inconsistent_input_is_rejected() {
        let error = |tokens: &[i64], mask: &[u8], lengths: &[usize]| {
            PackedTokens::new(tokens, mask, lengths, 10).unwrap_err().to_string()
        };
        assert_eq!(
            error(&[1, 2], &[0, 1], &[3]),
            "the packed tokens are inconsistent: 2 tokens, 2 mask entries, lengths that add up to 3"
        );
        assert_eq!(
            error(&[1, 10], &[0, 1], &[2]),
            "the packed tokens are inconsistent: token 10 at row 1 is outside the vocabulary of 10"
        );
        let trained_first = "the packed tokens are inconsistent: \
                             the first token of sequence 1 is trained, but no token predicts it";
        assert_eq!(error(&[1, 2, 3], &[0, 1, 1], &[2, 1]), trained_first);
    }
}
