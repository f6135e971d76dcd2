//! Training samples: converts journal samples, demonstrations and pairs to tokens, loss mask and
//! log-probabilities.
//!
//! ```text
//!  segments          prompt     completion    tool result  completion
//!  tokens            p0 p1 p2   c0 c1 c2      t0 t1        d0 d1      (c2, d1: stop tokens)
//!  loss_mask          0  0  0    1  1  1       0  0         1  1
//!  sampler_logprobs   0  0  0   l0 l1 l2       0  0        m0 m1      entry t belongs to token t
//! ```

use rljob_protocol::batch::{CHOSEN_REWARD, REJECTED_REWARD, SegmentRow};

use crate::data::Prompt;
use crate::pack::TrainSample;
use crate::persistence::journal::{LENGTH, LIMIT, Sample, Segment};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SampleError {
    #[error(
        "sample {index} of position {position} has a segment of {tokens} trained tokens with \
         {logprobs} log-probabilities"
    )]
    Logprobs { position: u64, index: u32, tokens: usize, logprobs: usize },
    #[error(
        "sample {index} of position {position} has a segment of {tokens} tokens with {logprobs} \
         log-probabilities of the teacher"
    )]
    Teacher { position: u64, index: u32, tokens: usize, logprobs: usize },
    #[error("{tokens} trained tokens of a batch have {logprobs} log-probabilities of a group")]
    Inferred { tokens: usize, logprobs: usize },
    #[error("the prompt at position {position} (row {row}) has no tokens")]
    EmptyPrompt { position: u64, row: u64 },
    #[error(
        "the prompt at position {position} (row {row}) has no completion: \
         set completion, or chosen and rejected, of the dataset"
    )]
    NoCompletion { position: u64, row: u64 },
}

/// Converts sampled completions in canonical order. Samples of a position form a prompt group;
/// groups are numbered from 0.
pub fn from_samples(samples: &[Sample]) -> Result<Vec<TrainSample>, SampleError> {
    let groups = samples.chunk_by(|one, next| one.position == next.position);
    (0..)
        .zip(groups)
        .flat_map(|(group, samples)| samples.iter().map(move |sample| (group, sample)))
        .map(|(group, sample)| from_sample(group, sample))
        .collect()
}

fn from_sample(group: u32, sample: &Sample) -> Result<TrainSample, SampleError> {
    let (position, index) = (sample.position, sample.index);
    let has_teacher = has_teacher(&sample.segments);
    for segment in &sample.segments {
        let (tokens, logprobs) = (segment.tokens.len(), segment.sampler_logprobs.len());
        if logprobs != if segment.trained { tokens } else { 0 } {
            return Err(SampleError::Logprobs { position, index, tokens, logprobs });
        }
        let logprobs = segment.teacher_logprobs.len();
        if logprobs != if segment.trained && has_teacher { tokens } else { 0 } {
            return Err(SampleError::Teacher { position, index, tokens, logprobs });
        }
    }
    let first = sample.segments.iter().find(|segment| !segment.tokens.is_empty());
    if first.is_none_or(|segment| segment.trained) {
        return Err(SampleError::EmptyPrompt { position, row: sample.row });
    }
    Ok(TrainSample {
        truncated: sample.finish_reason == LENGTH,
        ended_by_limit: [LENGTH, LIMIT].contains(&sample.finish_reason.as_str()),
        turn_rewards: sample.turn_rewards.clone(),
        ..joined(group, sample.reward, &sample.segments)
    })
}

/// Converts demonstrations and pairs in order of position; each is a prompt group, and the chosen
/// sample of a pair comes first.
pub fn from_prompts(prompts: &[Prompt]) -> Result<Vec<TrainSample>, SampleError> {
    let mut samples = Vec::new();
    for (group, prompt) in (0..).zip(prompts) {
        if let Some([chosen, rejected]) = &prompt.pair_tokens {
            for (completion, reward) in [(chosen, CHOSEN_REWARD), (rejected, REJECTED_REWARD)] {
                let sample = from_prompt(group, prompt, completion, reward)?;
                samples.push(TrainSample { needs_group: true, ..sample });
            }
        } else {
            let (position, row) = (prompt.position, prompt.row);
            let completion = prompt.completion_tokens.as_ref();
            let completion = completion.ok_or(SampleError::NoCompletion { position, row })?;
            samples.push(from_prompt(group, prompt, completion, 0.0)?);
        }
    }
    Ok(samples)
}

fn from_prompt(
    group: u32,
    prompt: &Prompt,
    completion: &[i64],
    reward: f64,
) -> Result<TrainSample, SampleError> {
    if prompt.tokens.is_empty() {
        return Err(SampleError::EmptyPrompt { position: prompt.position, row: prompt.row });
    }
    let turn = |number, given: &[i64], completion: &[i64]| {
        let (given, tokens) = (given.to_vec(), completion.to_vec());
        let learned = Segment { turn: number, tokens, trained: true, ..Segment::default() };
        [Segment::given(number, given, String::new()), learned]
    };
    let mut segments = turn(0, &prompt.tokens, completion).to_vec();
    for (number, later) in (1..).zip(&prompt.later_turns) {
        segments.extend(turn(number, &later.given, &later.completion));
    }
    Ok(joined(group, reward, &segments))
}

/// Adds the log-probabilities of all trained tokens under a frozen model, sample by sample.
/// Learners use them in place of those of a model that they hold.
pub fn add_frozen_logprobs(
    samples: &mut [TrainSample],
    logprobs: &[f32],
) -> Result<(), SampleError> {
    let trained = |sample: &TrainSample| sample.loss_mask.iter().filter(|&&mask| mask != 0).count();
    let tokens = samples.iter().map(trained).fold(0, usize::saturating_add);
    if tokens != logprobs.len() {
        return Err(SampleError::Inferred { tokens, logprobs: logprobs.len() });
    }
    let mut rest = logprobs.iter().copied();
    for sample in samples {
        let mut of = |&mask: &u8| if mask != 0 { rest.next().unwrap_or_default() } else { 0.0 };
        sample.teacher_logprobs = sample.loss_mask.iter().map(&mut of).collect();
    }
    Ok(())
}

fn has_teacher(segments: &[Segment]) -> bool {
    segments.iter().any(|segment| !segment.teacher_logprobs.is_empty())
}

fn joined(group: u32, reward: f64, segments: &[Segment]) -> TrainSample {
    let mut sample = TrainSample { group, reward, ..TrainSample::default() };
    let has_teacher = has_teacher(segments);
    let add = |all: &mut Vec<f32>, own: &[f32], count| match own {
        [] => all.extend(std::iter::repeat_n(0.0, count)),
        own => all.extend(own),
    };
    for segment in segments {
        let count = segment.tokens.len();
        sample.tokens.extend(&segment.tokens);
        sample.loss_mask.extend(vec![u8::from(segment.trained); count]);
        add(&mut sample.sampler_logprobs, &segment.sampler_logprobs, count);
        if has_teacher {
            add(&mut sample.teacher_logprobs, &segment.teacher_logprobs, count);
        }
        sample.segments.extend(rows(segment));
    }
    sample
}

/// One row for each run of tokens with the same weights, or one for given tokens.
fn rows(segment: &Segment) -> Vec<SegmentRow> {
    let row = |tokens, version| SegmentRow { turn: segment.turn, tokens, version };
    if segment.versions.is_empty() {
        return vec![row(segment.tokens.len() as u32, None)];
    }
    segment.versions.iter().map(|run| row(run.tokens, Some(run.version.step))).collect()
}

#[cfg(test)]
mod tests;
