//! A micro-batch: sequences packed one after another without padding, and how they are laid out for attention.
//!
//! Worked example: two sequences `[5 6 7] [8 9]` with mask `[0 1 1] [0 1]`:
//! positions `0 1 2 0 1`; trained tokens are 1, 2, 4, each predicted from the row before it (0, 1, 3), in sequences 0, 0, 1.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::collections::BTreeMap;

use tch::Tensor;

use super::ModelError;

/// Packed sequences. It may be empty: passes over it make the same calls to `Parameters` and add zeros.
#[derive(Debug)]
pub struct PackedTokens {
    pub(super) tokens_T: Tensor,
    pub(super) positions_T: Tensor,
    trained_N: Tensor,
    sequence_N: Tensor,
    pub(super) buckets: Vec<Bucket>,
}

/// Sequences of like length, padded on the right to one length for attention. Being behind the causal mask, padding changes no other row.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Sequences.
    pub num_sequences: i64,
    /// Length they are padded to.
    pub padded: i64,
    /// Rows of the packed tensor, sequence by sequence.
    pub rows: Tensor,
    /// The same rows' places in the padded `[B × S]`.
    pub slots: Tensor,
}

impl PackedTokens {
    /// Packs sequences of `lengths` tokens, concatenated in `tokens`; `mask` is 1 at tokens to be trained on.
    ///
    /// # Errors
    /// Lengths that do not add up, an empty sequence, a trained first token (nothing predicts it), a token outside the vocabulary.
    pub fn new(tokens: &[i64], mask: &[u8], lengths: &[usize], vocab_size: i64) -> Result<Self, ModelError> {
        check(tokens, mask, lengths, vocab_size).map_err(ModelError::Packed)?;
        let positions: Vec<i64> = lengths.iter().flat_map(|&length| 0..length as i64).collect();
        let sequence_of: Vec<i64> = lengths.iter().enumerate().flat_map(|(index, &length)| std::iter::repeat_n(index as i64, length)).collect();
        let trained: Vec<i64> = (0..tokens.len()).filter(|&row| mask[row] != 0).map(|row| row as i64).collect();
        let sequence: Vec<i64> = trained.iter().map(|&row| sequence_of[row as usize]).collect();
        Ok(Self {
            tokens_T: Tensor::from_slice(tokens),
            positions_T: Tensor::from_slice(&positions),
            trained_N: Tensor::from_slice(&trained),
            sequence_N: Tensor::from_slice(&sequence),
            buckets: buckets(lengths),
        })
    }

    /// `[N]` rows of the trained tokens, ascending. Every tensor with suffix `_N` is in this order.
    pub fn trained_N(&self) -> &Tensor {
        &self.trained_N
    }

    /// `[N]` index of the sequence each trained token is in.
    pub fn sequence_N(&self) -> &Tensor {
        &self.sequence_N
    }

    /// `[N]` rows from which the trained tokens are predicted: the ones before them.
    pub(super) fn predictors_N(&self) -> Tensor {
        &self.trained_N - 1
    }

    /// `[N]` the trained tokens' ids.
    pub(super) fn targets_N(&self) -> Tensor {
        self.tokens_T.index_select(0, &self.trained_N)
    }

    /// Tokens.
    pub fn num_tokens(&self) -> i64 {
        self.tokens_T.size().first().copied().unwrap_or(0)
    }

    /// Trained tokens.
    pub fn num_trained(&self) -> i64 {
        self.trained_N.size().first().copied().unwrap_or(0)
    }
}

impl Bucket {
    /// The bucket's rows of `x` `[T, …]` in padded form `[B × S, …]`, zeros elsewhere.
    pub(super) fn pad(&self, x: &Tensor) -> Tensor {
        let mut shape = x.size();
        shape[0] = self.num_sequences * self.padded;
        Tensor::zeros(shape, (x.kind(), x.device())).index_copy_(0, &self.slots, &x.index_select(0, &self.rows))
    }

    /// Copies the padded `x` `[B × S, …]` back to its rows of `out` `[T, …]`.
    pub(super) fn unpad_into(&self, out: &mut Tensor, x: &Tensor) {
        let _ = out.index_copy_(0, &self.rows, &x.index_select(0, &self.slots));
    }
}

fn check(tokens: &[i64], mask: &[u8], lengths: &[usize], vocab_size: i64) -> Result<(), String> {
    let total: usize = lengths.iter().sum();
    if total != tokens.len() || mask.len() != tokens.len() {
        return Err(format!("{} tokens, {} mask entries, lengths that add up to {total}", tokens.len(), mask.len()));
    }
    if let Some(row) = tokens.iter().position(|token| !(0..vocab_size).contains(token)) {
        return Err(format!("token {} at row {row} is outside the vocabulary of {vocab_size}", tokens[row]));
    }
    let mut first = 0;
    for (index, &length) in lengths.iter().enumerate() {
        if length == 0 {
            return Err(format!("sequence {index} is empty"));
        }
        if mask[first] != 0 {
            return Err(format!("the first token of sequence {index} is marked as trained, but nothing predicts it"));
        }
        first += length;
    }
    Ok(())
}

/// One bucket for each power of two: at most half of a bucket is padding, and the number of attention calls does not grow with the sequences.
fn buckets(lengths: &[usize]) -> Vec<Bucket> {
    let mut by_size: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    let mut first = 0;
    for &length in lengths {
        by_size.entry(length.next_power_of_two()).or_default().push((first, length));
        first += length;
    }
    by_size.into_values().map(|sequences| bucket(&sequences)).collect()
}

/// `sequences`: (first row, length), not empty.
fn bucket(sequences: &[(usize, usize)]) -> Bucket {
    let padded = sequences.iter().map(|&(_, length)| length).max().unwrap_or(0);
    let rows: Vec<i64> = sequences.iter().flat_map(|&(first, length)| first as i64..(first + length) as i64).collect();
    let slots: Vec<i64> = sequences.iter().enumerate().flat_map(|(index, &(_, length))| (index * padded) as i64..(index * padded + length) as i64).collect();
    Bucket { num_sequences: sequences.len() as i64, padded: padded as i64, rows: Tensor::from_slice(&rows), slots: Tensor::from_slice(&slots) }
}

#[cfg(test)]
mod tests {
    use super::PackedTokens;

    fn vec(tensor: &tch::Tensor) -> Vec<i64> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn the_worked_example_is_laid_out_as_written() {
        let packed = PackedTokens::new(&[5, 6, 7, 8, 9], &[0, 1, 1, 0, 1], &[3, 2], 10).unwrap();
        assert_eq!(vec(&packed.positions_T), [0, 1, 2, 0, 1]);
        assert_eq!(vec(packed.trained_N()), [1, 2, 4]);
        assert_eq!(vec(&packed.predictors_N()), [0, 1, 3]);
        assert_eq!(vec(packed.sequence_N()), [0, 0, 1]);
        assert_eq!(vec(&packed.targets_N()), [6, 7, 9]);
    }

    #[test]
    fn sequences_of_like_length_share_a_padded_bucket() {
        let packed = PackedTokens::new(&[0; 12], &[0; 12], &[3, 5, 4], 10).unwrap();
        let shapes: Vec<_> = packed.buckets.iter().map(|bucket| (bucket.num_sequences, bucket.padded)).collect();
        assert_eq!(shapes, [(2, 4), (1, 5)]);
        assert_eq!(vec(&packed.buckets[0].rows), [0, 1, 2, 8, 9, 10, 11]);
        assert_eq!(vec(&packed.buckets[0].slots), [0, 1, 2, 4, 5, 6, 7]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let error = |tokens: &[i64], mask: &[u8], lengths: &[usize]| PackedTokens::new(tokens, mask, lengths, 10).unwrap_err().to_string();
        assert_eq!(error(&[1, 2], &[0, 1], &[3]), "the packed tokens are inconsistent: 2 tokens, 2 mask entries, lengths that add up to 3");
        assert_eq!(error(&[1, 10], &[0, 1], &[2]), "the packed tokens are inconsistent: token 10 at row 1 is outside the vocabulary of 10");
        let trained_first = "the packed tokens are inconsistent: the first token of sequence 1 is marked as trained, but nothing predicts it";
        assert_eq!(error(&[1, 2, 3], &[0, 1, 1], &[2, 1]), trained_first);
    }
}
