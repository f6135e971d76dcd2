//! Lines of `samples.jsonl`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::turns::{ShownTurn, of_sample};
use crate::data::Dataset;
use crate::persistence::journal::{DETAILS, Sample};
use crate::text::Tools;

/// Number of prompts per step whose first sample is written.
const SAMPLES_SHOWN: usize = 4;

/// A rollout to read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown<'a> {
    step: u32,
    position: u64,
    prompt: String,
    /// Names of the tools that the row offers, if it selects them.
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Vec<String>>,
    answer: Option<String>,
    completion: String,
    reward: f64,
    finish_reason: &'a str,
    tokens: usize,
    /// Components of the reward, if there are several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    rewards: BTreeMap<&'a str, f64>,
    /// Empty for a sample of one turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    turns: Vec<ShownTurn<'a>>,
    /// What verifiers found, by reward name.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a serde_json::Value>,
}

/// Samples of a step to read: the first one of some of its prompts.
pub(super) fn shown<'a>(step: u32, samples: &'a [Sample], data: &Dataset) -> Vec<Shown<'a>> {
    let show = |sample: &'a Sample| {
        let (prompt, completion) = sample.texts();
        let row = data.prompt(sample.position).ok();
        Shown {
            step,
            position: sample.position,
            prompt,
            tools: row.as_ref().and_then(|row| row.tools.as_ref()).map(Tools::names),
            answer: row.and_then(|row| row.answer),
            completion,
            reward: sample.reward,
            finish_reason: &sample.finish_reason,
            tokens: sample.trained_tokens(),
            rewards: components(sample),
            turns: of_sample(sample),
            details: sample.metadata.get(DETAILS),
        }
    };
    samples.iter().filter(|sample| sample.index == 0).take(SAMPLES_SHOWN).map(show).collect()
}

fn components(sample: &Sample) -> BTreeMap<&str, f64> {
    let all = sample.reward_components.iter().map(|(name, value)| (name.as_str(), *value));
    if sample.reward_components.len() > 1 { all.collect() } else { BTreeMap::new() }
}
