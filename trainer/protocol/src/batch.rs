//! One rank's part of a step's batch, as a safetensors file: tensors concatenated over
//! micro-batches, with the layout in the metadata key `batch`.
//!
//! Names carry shape suffixes (`_T`), for which `non_snake_case` is allowed here.
//!
//! Worked example: a rank with two micro-batches, the first of two sequences of 3 and 2 tokens, the
//! second of one of 4: `sequences = [{micro_batch: 0, tokens: 3}, {micro_batch: 0, tokens: 2},
//! {micro_batch: 1, tokens: 4}]`, and each tensor has 9 entries.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::collections::HashMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

/// One rank's part of a step's batch. `T` is the number of tokens of this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankBatch {
    /// Layout of the tensors, and table of all samples of the step.
    pub header: BatchHeader,
    /// `[T]` token ids.
    pub tokens_T: Vec<i64>,
    /// `[T]` 1 where the token is trained on (it is predicted from the tokens before it), else 0.
    /// The first token of a sequence is always 0.
    pub loss_mask_T: Vec<u8>,
    /// `[T]` the sampler's log-probability of the token (of logits ÷ temperature); 0 where the mask
    /// is 0, and everywhere for `sft`.
    pub sampler_logprobs_T: Vec<f32>,
    /// `[T]` a served teacher's log-probability of the token; 0 where the mask is 0. `None` if no
    /// rank has such log-probabilities.
    pub teacher_logprobs_T: Option<Vec<f32>>,
}

/// Layout of the tensors of a rank, and table of all samples of the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchHeader {
    /// Number of the step.
    pub step: u32,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Micro-batches of every rank (some may be empty on some ranks), in order of minibatch: entry
    /// `m` is micro-batch `m`'s minibatch.
    pub micro_batch_minibatch: Vec<u32>,
    /// This rank's sequences in the order of the tensors; indices into `samples`.
    pub sequences: Vec<Sequence>,
    /// Every sample of the step, over all ranks, in canonical order: (loader position, index in
    /// group).
    pub samples: Vec<SampleRow>,
}

/// Reward in the table of a pair's chosen sample.
pub const CHOSEN_REWARD: f64 = 1.0;
/// Reward in the table of a pair's rejected sample.
pub const REJECTED_REWARD: f64 = 0.0;

/// One packed sequence of this rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sequence {
    /// Index into `samples`.
    pub sample: u32,
    /// Micro-batch it is packed into.
    pub micro_batch: u32,
    /// Its length in tokens.
    pub tokens: u32,
    /// Turns and sampling weights of its tokens, as runs that add up to `tokens`. Empty from a
    /// coordinator of protocol version 1: one turn, and the weights are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SegmentRow>,
}

/// Consecutive tokens of one turn, sampled with the same weights, or given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentRow {
    /// Turn of the conversation, from 0.
    pub turn: u32,
    /// Number of tokens.
    pub tokens: u32,
    /// Step of the weights that sampled them; `None` for given tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// One sample of the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SampleRow {
    /// Samples of one prompt share it. Each sample is its own group for `sft`.
    pub group: u32,
    /// Reward; 0 for `sft`.
    pub reward: f64,
    /// Number of tokens with loss.
    pub trainable_tokens: u32,
    /// Rank of the sample.
    pub rank: u32,
    /// Minibatch (optimizer update) it belongs to.
    pub minibatch: u32,
    /// Whether the last completion reached its maximum length; false for `sft`.
    pub truncated: bool,
    /// Whether a limit ended the sample: `truncated`, or `maxTurns` or `maxTokens` of a workflow.
    /// False for `sft`, and from a coordinator before protocol version 3.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended_by_limit: bool,
    /// Reward by turn; the sum is `reward`. Empty for `sft`, and from a coordinator of protocol
    /// version 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_rewards: Vec<f64>,
}

/// Malformed batch.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Not a safetensors file.
    #[error("failed to read the batch as safetensors")]
    Container(#[from] safetensors::SafeTensorError),
    /// The layout is missing or malformed.
    #[error("failed to read the batch's layout")]
    Header(#[from] serde_json::Error),
    /// Layout and tensors disagree.
    #[error("the batch is inconsistent: {0}")]
    Inconsistent(String),
}

const KEY: &str = "batch";
const SAMPLER_LOGPROBS: &str = "sampler_logprobs";
const TEACHER_LOGPROBS: &str = "teacher_logprobs";

impl BatchHeader {
    /// Removes fields that a peer of this protocol version rejects.
    #[must_use]
    pub fn for_peer(mut self, protocol: u32) -> Self {
        if protocol < 2 {
            self.sequences.iter_mut().for_each(|sequence| sequence.segments.clear());
            self.samples.iter_mut().for_each(|sample| sample.turn_rewards.clear());
        }
        if protocol < 3 {
            self.samples.iter_mut().for_each(|sample| sample.ended_by_limit = false);
        }
        self
    }
}

impl RankBatch {
    /// The batch as bytes of a safetensors file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, BatchError> {
        let tokens: Vec<u8> = self.tokens_T.iter().flat_map(|token| token.to_le_bytes()).collect();
        let bytes = |logprobs: &Vec<f32>| -> Vec<u8> {
            logprobs.iter().flat_map(|logprob| logprob.to_le_bytes()).collect()
        };
        let logprobs = bytes(&self.sampler_logprobs_T);
        let teacher = self.teacher_logprobs_T.as_ref().map(bytes);
        let shape = vec![self.tokens_T.len()];
        let mut views = vec![
            ("tokens", TensorView::new(Dtype::I64, shape.clone(), &tokens)?),
            ("loss_mask", TensorView::new(Dtype::U8, shape.clone(), &self.loss_mask_T)?),
            (SAMPLER_LOGPROBS, TensorView::new(Dtype::F32, shape.clone(), &logprobs)?),
        ];
        if let Some(teacher) = &teacher {
            views.push((TEACHER_LOGPROBS, TensorView::new(Dtype::F32, shape, teacher)?));
        }
        let metadata = HashMap::from([(KEY.to_owned(), serde_json::to_string(&self.header)?)]);
        Ok(safetensors::serialize(views, Some(metadata))?)
    }

    /// Reads what [`Self::to_bytes`] wrote and checks that layout and tensors agree.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BatchError> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let json = metadata.metadata().as_ref().and_then(|map| map.get(KEY));
        let header: BatchHeader = serde_json::from_str(
            json.ok_or_else(|| BatchError::Inconsistent("no layout".to_owned()))?,
        )?;
        let file = SafeTensors::deserialize(bytes)?;
        let has_teacher = file.names().contains(&TEACHER_LOGPROBS);
        let teacher = has_teacher.then(|| floats(&file, TEACHER_LOGPROBS));
        let batch = Self {
            header,
            tokens_T: column(&file, "tokens", Dtype::I64)?
                .chunks_exact(8)
                .filter_map(|b| b.try_into().ok())
                .map(i64::from_le_bytes)
                .collect(),
            loss_mask_T: column(&file, "loss_mask", Dtype::U8)?.to_vec(),
            sampler_logprobs_T: floats(&file, SAMPLER_LOGPROBS)?,
            teacher_logprobs_T: teacher.transpose()?,
        };
        batch.check()?;
        Ok(batch)
    }

    fn check(&self) -> Result<(), BatchError> {
        let header = &self.header;
        let tokens: u64 = header.sequences.iter().map(|sequence| u64::from(sequence.tokens)).sum();
        let mut lengths =
            vec![self.tokens_T.len(), self.loss_mask_T.len(), self.sampler_logprobs_T.len()];
        lengths.extend(self.teacher_logprobs_T.as_ref().map(Vec::len));
        if lengths.iter().any(|&length| length as u64 != tokens) {
            return Err(BatchError::Inconsistent(format!(
                "tensors of {lengths:?} entries for {tokens} tokens"
            )));
        }
        for sequence in &header.sequences {
            let known = (sequence.sample as usize) < header.samples.len()
                && (sequence.micro_batch as usize) < header.micro_batch_minibatch.len();
            let segments: u64 = sequence.segments.iter().map(|row| u64::from(row.tokens)).sum();
            if !sequence.segments.is_empty() && segments != u64::from(sequence.tokens) {
                return Err(BatchError::Inconsistent(format!(
                    "segments of {segments} tokens in a sequence of {}",
                    sequence.tokens
                )));
            }
            if !known || sequence.tokens == 0 {
                return Err(BatchError::Inconsistent(format!(
                    "sequence {sequence:?} is empty, or its sample or micro-batch does not exist"
                )));
            }
        }
        if !header.sequences.is_sorted_by_key(|sequence| sequence.micro_batch) {
            return Err(BatchError::Inconsistent(
                "sequences are not in order of micro-batch".to_owned(),
            ));
        }
        Ok(())
    }
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>, BatchError> {
    let bytes = column(file, name, Dtype::F32)?.chunks_exact(4);
    Ok(bytes.filter_map(|bytes| bytes.try_into().ok()).map(f32::from_le_bytes).collect())
}

fn column<'a>(file: &SafeTensors<'a>, name: &str, dtype: Dtype) -> Result<&'a [u8], BatchError> {
    let view = file.tensor(name)?;
    if view.dtype() != dtype {
        return Err(BatchError::Inconsistent(format!(
            "tensor `{name}` is {:?}, expected {dtype:?}",
            view.dtype()
        )));
    }
    Ok(view.data())
}

#[cfg(test)]
mod tests;
