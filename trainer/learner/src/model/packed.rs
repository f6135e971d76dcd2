//! Packed micro-batch: sequences without padding, one after the other; a prefix that sequences
//! share has one row per token.
//!
//! Worked example: two sequences `[5 6 7] [8 9]` with mask `[0 1 1] [0 1]`: positions `0 1 2 0 1`;
//! trained tokens are 1, 2, 4, each predicted from the row before it (rows 0, 1, 3), in sequences
//! 0, 0, 1.
//!
//! Of `[5 6 7] [5 6 8 9]` with the shared prefix `5 6` and mask `[0 0 1] [0 0 1 1]`, the rows are
//! `5 6 7 8 9`; trained tokens are 2, 5, 6, predicted from rows 1, 1, 3.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Device, Kind, Tensor};

use super::ModelError;
use super::bucket::{Bucket, buckets};
use super::dropout::Dropout;
use rljob_kernels::attention::Prefix;

use super::rows::{PackedRows, SharedPrefix};

/// Packed sequences. Passes over an empty micro-batch make the same calls to `Parameters` and add
/// zeros.
#[derive(Debug)]
pub struct PackedTokens {
    pub(super) tokens_T: Tensor,
    pub(super) positions_T: Tensor,
    trained_N: Tensor,
    sequence_N: Tensor,
    pub(super) targets_N: Tensor,
    /// `[N]` rows that predict the trained tokens. Trained tokens that follow a shared prefix have
    /// the same one.
    pub(super) predictors_N: Tensor,
    /// `[Q]` row of the last token of each sequence.
    pub(super) last_Q: Tensor,
    /// Rows of each span: without shared prefixes, tokens of each sequence.
    pub(super) lengths: Vec<i64>,
    /// Whether derivatives repeat bit for bit; they do on CPUs.
    pub(super) deterministic: bool,
    pub(super) buckets: Vec<Bucket>,
    pub(super) prefixes: Vec<Prefix>,
    /// `[N, K]` int32, tokens whose log-probabilities a language model returns beside those of the
    /// trained tokens; on the device of the others.
    pub selected_NK: Option<Tensor>,
    /// Index of the packed token of each row.
    row_tokens: Vec<usize>,
    dropout: Option<Dropout>,
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
        Self::with_prefixes(tokens, mask, lengths, &[], vocab_size)
    }

    /// [`Self::new`] with prefixes that consecutive sequences share and that are computed once, on
    /// CPUs. Results are the same up to rounding.
    ///
    /// # Errors
    /// As for [`Self::new`], or sequences do not share a prefix, or a token of it is trained.
    pub fn with_prefixes(
        tokens: &[i64],
        mask: &[u8],
        lengths: &[usize],
        prefixes: &[SharedPrefix],
        vocab_size: i64,
    ) -> Result<Self, ModelError> {
        check(tokens, mask, lengths, vocab_size).map_err(ModelError::Packed)?;
        check_prefixes(tokens, mask, lengths, prefixes).map_err(ModelError::Packed)?;
        let rows = PackedRows::new(lengths, prefixes);
        let sequence_of: Vec<i64> = lengths
            .iter()
            .enumerate()
            .flat_map(|(index, &length)| std::iter::repeat_n(index as i64, length))
            .collect();
        let trained = || (0..tokens.len()).filter(|&token| mask[token] != 0);
        let numbers = |of: &dyn Fn(usize) -> i64| {
            Tensor::from_slice(&trained().map(of).collect::<Vec<i64>>())
        };
        let row_tokens: Vec<i64> = rows.tokens.iter().map(|&token| tokens[token]).collect();
        Ok(Self {
            tokens_T: Tensor::from_slice(&row_tokens),
            positions_T: Tensor::from_slice(&rows.positions),
            trained_N: numbers(&|token| token as i64),
            sequence_N: numbers(&|token| sequence_of[token]),
            targets_N: numbers(&|token| tokens[token]),
            predictors_N: numbers(&|token| rows.row_of[token - 1]),
            last_Q: Tensor::from_slice(&last_rows(lengths, &rows.row_of)),
            lengths: rows.spans.iter().map(|&(_, length)| length as i64).collect(),
            deterministic: false,
            buckets: buckets(&rows.spans),
            prefixes: rows.prefixes,
            selected_NK: None,
            row_tokens: rows.tokens,
            dropout: None,
        })
    }

    /// The same tokens on a device, where derivatives repeat bit for bit if `deterministic`.
    #[must_use]
    pub fn to_device(self, device: Device, deterministic: bool) -> Self {
        let [tokens_T, positions_T, trained_N, sequence_N, targets_N, predictors_N, last_Q] = [
            self.tokens_T,
            self.positions_T,
            self.trained_N,
            self.sequence_N,
            self.targets_N,
            self.predictors_N,
            self.last_Q,
        ]
        .map(|tensor| tensor.to_device(device));
        Self {
            tokens_T,
            positions_T,
            trained_N,
            sequence_N,
            targets_N,
            predictors_N,
            last_Q,
            deterministic,
            dropout: self.dropout.map(|dropout| dropout.to_device(device)),
            ..self
        }
    }

    /// Values of the rows `[T]`, given those of the packed tokens, on the device of the rows.
    pub fn of_rows(&self, of_tokens: &[i32]) -> Tensor {
        let of_rows: Vec<i32> = self.row_tokens.iter().map(|&token| of_tokens[token]).collect();
        Tensor::from_slice(&of_rows).to_device(self.tokens_T.device())
    }

    /// Sets or removes dropout of the inputs of adapters, which are not merged in passes with it.
    pub fn set_dropout(&mut self, dropout: Option<Dropout>) {
        self.dropout = dropout;
    }

    pub(super) fn dropout(&self) -> Option<&Dropout> {
        self.dropout.as_ref()
    }

    /// `[N]` trained tokens, as ascending indices of the tokens that were packed. Every tensor with
    /// suffix `_N` is in this order.
    pub fn trained_N(&self) -> &Tensor {
        &self.trained_N
    }

    /// `[N]` sequence index of each trained token.
    pub fn sequence_N(&self) -> &Tensor {
        &self.sequence_N
    }

    /// Sum of the rows `x` `[N, H]` by the row that predicts each trained token, `[T, H]`.
    pub(super) fn sum_by_predictor(&self, x_NH: &Tensor) -> Tensor {
        let zeros =
            |kind| Tensor::zeros([self.num_tokens(), x_NH.size()[1]], (kind, x_NH.device()));
        if self.prefixes.is_empty() {
            // Rows are distinct.
            return zeros(x_NH.kind()).index_copy_(0, &self.predictors_N, x_NH);
        }
        zeros(Kind::Float)
            .index_add_(0, &self.predictors_N, &x_NH.to_kind(Kind::Float))
            .to_kind(x_NH.kind())
    }

    /// The rows `x` `[Q, H]` at the last token of each sequence, and zeros elsewhere, `[T, H]`.
    pub(super) fn at_ends(&self, x_QH: &Tensor) -> Tensor {
        let mut zeros =
            Tensor::zeros([self.num_tokens(), x_QH.size()[1]], (x_QH.kind(), x_QH.device()));
        zeros.index_copy_(0, &self.last_Q, x_QH)
    }

    /// Tokens that a pass computes; those of a shared prefix count once.
    pub fn num_tokens(&self) -> i64 {
        self.tokens_T.size().first().copied().unwrap_or(0)
    }

    /// Squares of the spans' rows, and twice the pairs of a row and a row of its prefix.
    pub(super) fn attended(&self) -> f64 {
        let spans: i64 = self.lengths.iter().map(|length| length * length).sum();
        let to_prefixes: i64 =
            self.prefixes.iter().map(|prefix| 2 * prefix.rows * prefix.followers).sum();
        (spans + to_prefixes) as f64
    }

    pub fn num_trained(&self) -> i64 {
        self.trained_N.size().first().copied().unwrap_or(0)
    }
}

/// Row of the last token of each sequence.
fn last_rows(lengths: &[usize], row_of: &[i64]) -> Vec<i64> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    ends.map(|end| row_of[end - 1]).collect()
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

fn check_prefixes(
    tokens: &[i64],
    mask: &[u8],
    lengths: &[usize],
    prefixes: &[SharedPrefix],
) -> Result<(), String> {
    let starts: Vec<usize> =
        lengths.iter().scan(0, |end, length| Some(std::mem::replace(end, *end + length))).collect();
    let mut end = 0;
    for SharedPrefix { sequences, tokens: shared } in prefixes {
        if sequences.is_empty() || sequences.start < end || sequences.end > lengths.len() {
            return Err(format!(
                "sequences {sequences:?} of a shared prefix are empty, out of order or not there"
            ));
        }
        end = sequences.end;
        let leading = |index: usize| {
            let first = starts[index];
            let range = first..first + shared;
            (lengths[index] >= *shared).then(|| (&tokens[range.clone()], &mask[range]))
        };
        let first = leading(sequences.start);
        for index in sequences.clone() {
            let own = leading(index);
            let given = own.is_some_and(|(_, mask)| mask.iter().all(|&trained| trained == 0));
            if !given || own != first {
                return Err(format!(
                    "the first {shared} tokens of sequence {index} are not an untrained prefix \
                     that sequences {sequences:?} share"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
