//! Turns of a sample to read, in `samples.jsonl` and `evaluation-samples.jsonl`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::persistence::journal::Sample;

/// A turn to read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownTurn<'a> {
    reward: Option<f64>,
    segments: Vec<ShownSegment<'a>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ShownSegment<'a> {
    /// Whether the text is a completion.
    sampled: bool,
    text: Cow<'a, str>,
}

impl ShownTurn<'static> {
    /// A completion after `given`, the prompt or what follows the turn before.
    pub fn new(reward: f64, given: &str, completion: &str) -> Self {
        let segment =
            |sampled, text: &str| ShownSegment { sampled, text: Cow::Owned(text.to_owned()) };
        Self {
            reward: Some(reward),
            segments: vec![segment(false, given), segment(true, completion)],
        }
    }
}

/// Turns of a sample that has several, with their parts of its reward.
pub fn of_sample(sample: &Sample) -> Vec<ShownTurn<'_>> {
    let mut turns = BTreeMap::<u32, Vec<ShownSegment<'_>>>::new();
    for segment in &sample.segments {
        let text = Cow::Borrowed(segment.text.as_str());
        let shown = ShownSegment { sampled: segment.trained, text };
        turns.entry(segment.turn).or_default().push(shown);
    }
    if turns.len() < 2 {
        return Vec::new();
    }
    let reward = |turn: u32| sample.turn_rewards.get(turn as usize).copied();
    turns.into_iter().map(|(turn, segments)| ShownTurn { reward: reward(turn), segments }).collect()
}
