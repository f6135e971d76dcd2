//! Tests of the conversion of journal samples and demonstrations.

use std::collections::BTreeMap;

use crate::data::Prompt;
use crate::pack::TrainSample;
use crate::pack::batch::{SampleError, from_prompts, from_samples};
use crate::persistence::journal::Sample;

fn sample(position: u64, index: u32) -> Sample {
    Sample {
        position,
        index,
        row: 0,
        prompt_tokens: vec![5, 6],
        completion_tokens: vec![7, 2],
        sampler_logprobs: vec![-0.5, -0.25],
        versions: Vec::new(),
        finish_reason: "stop".to_owned(),
        sampling: serde_json::Value::Null,
        reward: 1.0,
        reward_components: BTreeMap::new(),
        prompt_text: String::new(),
        completion_text: String::new(),
    }
}

fn prompt(position: u64) -> Prompt {
    Prompt {
        position,
        row: 3,
        text: String::new(),
        tokens: vec![5, 6],
        answer: None,
        completion_tokens: Some(vec![7, 2]),
    }
}

#[test]
fn only_completion_tokens_have_mask_and_log_probabilities() {
    let expected = |group| TrainSample {
        group,
        reward: 1.0,
        tokens: vec![5, 6, 7, 2],
        loss_mask: vec![0, 0, 1, 1],
        sampler_logprobs: vec![0.0, 0.0, -0.5, -0.25],
        truncated: false,
    };
    assert_eq!(
        from_samples(&[sample(8, 0), sample(8, 1), sample(9, 0)]),
        Ok(vec![expected(0), expected(0), expected(1)])
    );
}

#[test]
fn completions_at_the_length_limit_are_marked_truncated() {
    let cut = Sample { finish_reason: "length".to_owned(), ..sample(8, 1) };
    let truncated: Vec<bool> =
        from_samples(&[sample(8, 0), cut]).unwrap().iter().map(|sample| sample.truncated).collect();
    assert_eq!(truncated, [false, true]);
}

#[test]
fn every_demonstration_is_a_prompt_group() {
    let expected = |group| TrainSample {
        group,
        reward: 0.0,
        tokens: vec![5, 6, 7, 2],
        loss_mask: vec![0, 0, 1, 1],
        sampler_logprobs: vec![0.0; 4],
        truncated: false,
    };
    assert_eq!(from_prompts(&[prompt(8), prompt(9)]), Ok(vec![expected(0), expected(1)]));
}

#[test]
fn invalid_samples_are_errors_with_their_position() {
    let short = Sample { sampler_logprobs: vec![-0.5], ..sample(8, 1) };
    assert_eq!(
        from_samples(&[short]),
        Err(SampleError::Logprobs { position: 8, index: 1, tokens: 2, logprobs: 1 })
    );
    let empty = Sample { prompt_tokens: Vec::new(), ..sample(8, 1) };
    assert_eq!(from_samples(&[empty]), Err(SampleError::EmptyPrompt { position: 8, row: 0 }));
    let nothing = Prompt { completion_tokens: None, ..prompt(8) };
    assert_eq!(from_prompts(&[nothing]), Err(SampleError::NoCompletion { position: 8, row: 3 }));
    let empty = Prompt { tokens: Vec::new(), ..prompt(8) };
    assert_eq!(from_prompts(&[empty]), Err(SampleError::EmptyPrompt { position: 8, row: 3 }));
}
