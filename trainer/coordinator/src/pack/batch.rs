//! Training samples: converts journal samples and demonstrations to tokens, loss mask and
//! log-probabilities.
//!
//! ```text
//!  tokens            p0 p1 p2 c0 c1 c2      (c2: the stop token, trained on)
//!  loss_mask          0  0  0  1  1  1
//!  sampler_logprobs   0  0  0  l0 l1 l2     entry t is the log-probability of token t
//! ```

use crate::data::Prompt;
use crate::pack::TrainSample;
use crate::persistence::journal::Sample;

/// Finish reason of a completion at its length limit.
const LENGTH: &str = "length";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SampleError {
    #[error(
        "sample {index} of position {position} has {tokens} completion tokens but {logprobs} \
         log-probabilities"
    )]
    Logprobs { position: u64, index: u32, tokens: usize, logprobs: usize },
    #[error("the prompt at position {position} (row {row}) has no tokens")]
    EmptyPrompt { position: u64, row: u64 },
    #[error(
        "the prompt at position {position} (row {row}) has no completion: \
         set dataset.train.completion"
    )]
    NoCompletion { position: u64, row: u64 },
}

/// Converts sampled completions in canonical order. Samples of a position form a prompt group;
/// groups are numbered from 0.
pub fn from_samples(samples: &[Sample]) -> Result<Vec<TrainSample>, SampleError> {
    let mut group = 0;
    let mut result = Vec::with_capacity(samples.len());
    for (index, sample) in samples.iter().enumerate() {
        if index > 0 && samples[index - 1].position != sample.position {
            group += 1;
        }
        result.push(from_sample(group, sample)?);
    }
    Ok(result)
}

fn from_sample(group: u32, sample: &Sample) -> Result<TrainSample, SampleError> {
    let (tokens, logprobs) = (sample.completion_tokens.len(), sample.sampler_logprobs.len());
    if tokens != logprobs {
        return Err(SampleError::Logprobs {
            position: sample.position,
            index: sample.index,
            tokens,
            logprobs,
        });
    }
    if sample.prompt_tokens.is_empty() {
        return Err(SampleError::EmptyPrompt { position: sample.position, row: sample.row });
    }
    let truncated = sample.finish_reason == LENGTH;
    Ok(TrainSample {
        truncated,
        ..joined(
            group,
            sample.reward,
            &sample.prompt_tokens,
            &sample.completion_tokens,
            &sample.sampler_logprobs,
        )
    })
}

/// Converts demonstrations in order of position; each is a prompt group.
pub fn from_prompts(prompts: &[Prompt]) -> Result<Vec<TrainSample>, SampleError> {
    (0..).zip(prompts).map(|(group, prompt)| from_prompt(group, prompt)).collect()
}

fn from_prompt(group: u32, prompt: &Prompt) -> Result<TrainSample, SampleError> {
    let (position, row) = (prompt.position, prompt.row);
    let completion =
        prompt.completion_tokens.as_deref().ok_or(SampleError::NoCompletion { position, row })?;
    if prompt.tokens.is_empty() {
        return Err(SampleError::EmptyPrompt { position, row });
    }
    Ok(joined(group, 0.0, &prompt.tokens, completion, &vec![0.0; completion.len()]))
}

fn joined(
    group: u32,
    reward: f64,
    prompt: &[i64],
    completion: &[i64],
    logprobs: &[f32],
) -> TrainSample {
    TrainSample {
        group,
        reward,
        tokens: [prompt, completion].concat(),
        loss_mask: [vec![0; prompt.len()], vec![1; completion.len()]].concat(),
        sampler_logprobs: [&vec![0.0; prompt.len()], logprobs].concat(),
        truncated: false,
    }
}

#[cfg(test)]
mod tests;
