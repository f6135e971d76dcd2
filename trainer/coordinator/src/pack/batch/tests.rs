//! Tests of the conversion of journal samples and demonstrations.

use std::collections::BTreeMap;

use rljob_protocol::batch::SegmentRow;
use rljob_protocol::version::Version;

use crate::data::Prompt;
use crate::pack::TrainSample;
use crate::pack::batch::{SampleError, from_prompts, from_samples};
use crate::persistence::journal::{Sample, Segment, VersionRun};
use crate::text::DemonstratedTurn;

fn sample(position: u64, index: u32) -> Sample {
    Sample {
        position,
        index,
        row: 0,
        segments: vec![Segment::given(0, vec![5, 6], String::new()), completion(0, &[7, 2])],
        finish_reason: "stop".to_owned(),
        sampling: serde_json::Value::Null,
        reward: 1.0,
        reward_components: BTreeMap::new(),
        turn_rewards: vec![1.0],
        metadata: serde_json::Map::new(),
    }
}

/// Sampled in two parts, the last token with newer weights; log-probabilities are -tokens.
fn completion(turn: u32, tokens: &[i64]) -> Segment {
    let run = |step, tokens| VersionRun { version: Version { step, attempt: 0 }, tokens };
    Segment {
        turn,
        tokens: tokens.to_vec(),
        trained: true,
        sampler_logprobs: tokens.iter().map(|&token| -(token as f32)).collect(),
        teacher_logprobs: Vec::new(),
        versions: vec![run(3, tokens.len() as u32 - 1), run(4, 1)],
        text: String::new(),
    }
}

fn row(turn: u32, tokens: u32, version: Option<u32>) -> SegmentRow {
    SegmentRow { turn, tokens, version }
}

fn prompt(position: u64) -> Prompt {
    Prompt {
        position,
        row: 3,
        tokens: vec![5, 6],
        completion_tokens: Some(vec![7, 2]),
        ..Prompt::default()
    }
}

#[test]
fn only_completion_tokens_have_mask_and_log_probabilities() {
    let expected = |group| TrainSample {
        group,
        reward: 1.0,
        tokens: vec![5, 6, 7, 2],
        loss_mask: vec![0, 0, 1, 1],
        sampler_logprobs: vec![0.0, 0.0, -7.0, -2.0],
        teacher_logprobs: Vec::new(),
        segments: vec![row(0, 2, None), row(0, 1, Some(3)), row(0, 1, Some(4))],
        turn_rewards: vec![1.0],
        truncated: false,
        ended_by_limit: false,
        needs_group: false,
    };
    assert_eq!(
        from_samples(&[sample(8, 0), sample(8, 1), sample(9, 0)]),
        Ok(vec![expected(0), expected(0), expected(1)])
    );
}

#[test]
fn a_sample_of_two_turns_is_one_sequence_that_trains_both_completions() {
    let mut turns = sample(8, 0);
    turns.segments.extend([Segment::given(1, vec![9], String::new()), completion(1, &[6, 8, 2])]);
    turns.turn_rewards = vec![0.25, 0.75];
    let expected = TrainSample {
        group: 0,
        reward: 1.0,
        tokens: vec![5, 6, 7, 2, 9, 6, 8, 2],
        loss_mask: vec![0, 0, 1, 1, 0, 1, 1, 1],
        sampler_logprobs: vec![0.0, 0.0, -7.0, -2.0, 0.0, -6.0, -8.0, -2.0],
        teacher_logprobs: Vec::new(),
        segments: vec![
            row(0, 2, None),
            row(0, 1, Some(3)),
            row(0, 1, Some(4)),
            row(1, 1, None),
            row(1, 2, Some(3)),
            row(1, 1, Some(4)),
        ],
        turn_rewards: vec![0.25, 0.75],
        truncated: false,
        ended_by_limit: false,
        needs_group: false,
    };
    assert_eq!(from_samples(&[turns]), Ok(vec![expected]));
}

#[test]
fn samples_that_a_limit_ended_are_marked() {
    let marks = ["stop", "length", "limit"].map(|finish_reason| {
        let sample = Sample { finish_reason: finish_reason.to_owned(), ..sample(8, 1) };
        let sample = from_samples(&[sample]).unwrap().remove(0);
        (sample.truncated, sample.ended_by_limit)
    });
    assert_eq!(marks, [(false, false), (true, true), (false, true)]);
}

#[test]
fn every_demonstration_is_a_prompt_group() {
    let expected = |group| TrainSample {
        group,
        reward: 0.0,
        tokens: vec![5, 6, 7, 2],
        loss_mask: vec![0, 0, 1, 1],
        sampler_logprobs: vec![0.0; 4],
        teacher_logprobs: Vec::new(),
        segments: vec![row(0, 2, None), row(0, 2, None)],
        turn_rewards: Vec::new(),
        truncated: false,
        ended_by_limit: false,
        needs_group: false,
    };
    assert_eq!(from_prompts(&[prompt(8), prompt(9)]), Ok(vec![expected(0), expected(1)]));
}

#[test]
fn a_demonstration_learns_the_completion_of_every_turn() {
    let later = DemonstratedTurn { given: vec![8], completion: vec![9, 2] };
    let samples = from_prompts(&[Prompt { later_turns: vec![later], ..prompt(8) }]).unwrap();
    let expected = TrainSample {
        tokens: vec![5, 6, 7, 2, 8, 9, 2],
        loss_mask: vec![0, 0, 1, 1, 0, 1, 1],
        sampler_logprobs: vec![0.0; 7],
        segments: vec![row(0, 2, None), row(0, 2, None), row(1, 1, None), row(1, 2, None)],
        ..TrainSample::default()
    };
    assert_eq!(samples, [expected]);
}

#[test]
fn a_pair_is_a_prompt_group_whose_chosen_sample_comes_first() {
    let pair = |position| Prompt {
        completion_tokens: None,
        pair_tokens: Some([vec![7, 2], vec![8, 9, 2]]),
        ..prompt(position)
    };
    let samples = from_prompts(&[pair(8), pair(9)]).unwrap();
    let facts: Vec<_> = samples
        .iter()
        .map(|one| (one.group, one.reward, one.tokens.len(), one.needs_group))
        .collect();
    assert_eq!(facts, [(0, 1.0, 4, true), (0, 0.0, 5, true), (1, 1.0, 4, true), (1, 0.0, 5, true)]);
    assert_eq!(samples[1].tokens, [5, 6, 8, 9, 2]);
    assert_eq!(samples[1].loss_mask, [0, 0, 1, 1, 1]);
}

#[test]
fn invalid_samples_are_errors_with_their_position() {
    let mut short = sample(8, 1);
    short.segments[1].sampler_logprobs.pop();
    assert_eq!(
        from_samples(&[short]),
        Err(SampleError::Logprobs { position: 8, index: 1, tokens: 2, logprobs: 1 })
    );
    let mut empty = sample(8, 1);
    empty.segments[0].tokens.clear();
    assert_eq!(from_samples(&[empty]), Err(SampleError::EmptyPrompt { position: 8, row: 0 }));
    let nothing = Prompt { completion_tokens: None, ..prompt(8) };
    assert_eq!(from_prompts(&[nothing]), Err(SampleError::NoCompletion { position: 8, row: 3 }));
    let empty = Prompt { tokens: Vec::new(), ..prompt(8) };
    assert_eq!(from_prompts(&[empty]), Err(SampleError::EmptyPrompt { position: 8, row: 3 }));
}

#[test]
fn log_probabilities_of_a_served_teacher_are_all_there_or_none() {
    let mut segments = vec![
        Segment::given(0, vec![5, 6], String::new()),
        completion(0, &[7, 2]),
        Segment::given(1, vec![9], String::new()),
        completion(1, &[6, 2]),
    ];
    let of = |segments: &[Segment]| {
        let samples = [Sample { segments: segments.to_vec(), ..sample(4, 1) }];
        from_samples(&samples).map(|samples| samples[0].teacher_logprobs.clone())
    };
    assert_eq!(of(&segments), Ok(vec![]));
    segments[1].teacher_logprobs = vec![-1.0, -2.0];
    let (position, index) = (4, 1);
    let missing = SampleError::Teacher { position, index, tokens: 2, logprobs: 0 };
    assert_eq!(of(&segments), Err(missing));
    segments[3].teacher_logprobs = vec![-3.0, -4.0];
    assert_eq!(of(&segments), Ok(vec![0.0, 0.0, -1.0, -2.0, 0.0, -3.0, -4.0]));
}
