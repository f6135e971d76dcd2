//! Results of one prompt: rewards by completion, pass@k, maj@k and completions to read. Pure.

use std::collections::BTreeMap;

use rljob_crds::data::Suite;
use rljob_protocol::evaluation::{PromptResult, pass_at};
use rljob_protocol::version::Version;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::data::Prompt;
use crate::evaluation::estimate::{self, majority_at, sizes};
use crate::files::ShownTurn;
use crate::reward::{Reward, Rewards};
use crate::rollout::episode::{Episode, Turn};
use crate::rollout::score::Scored;
use crate::text::Tools;
use crate::workflow::Workflow;

/// Number of prompts whose completions are stored for reading.
const SHOWN: u64 = 16;

/// A completion to read.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    step: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    suite: Option<String>,
    row: u64,
    index: u32,
    greedy: bool,
    prompt: String,
    /// Names of the tools that the row offers, if it selects them.
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Vec<String>>,
    answer: Option<String>,
    completion: String,
    reward: f64,
    tokens: u64,
    /// Empty for a completion of one turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    turns: Vec<ShownTurn<'static>>,
    /// What verifiers found, by reward name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    details: BTreeMap<String, serde_json::Value>,
}

/// Results of one prompt.
#[derive(Debug, Default)]
pub struct Judged {
    pub row: u64,
    /// Identity of the prompt (`PromptResult::prompt`).
    pub prompt: String,
    pub row_digest: Option<String>,
    pub category: Option<String>,
    /// Rewards of the samples, in order of index.
    pub sampled: Vec<f64>,
    pub greedy: Option<f64>,
    /// Correct samples.
    pub correct: u32,
    /// By k.
    pub pass_at: BTreeMap<u32, f64>,
    pub majority_at: BTreeMap<u32, bool>,
    /// Completions without a reward.
    pub rejected: u32,
    /// Why the last one of them has none.
    pub cause: Option<String>,
    pub tokens: u64,
    /// Tokens of weights newer than the evaluated ones.
    pub newer_tokens: u64,
    /// Rewards of the first turns of the samples and of the greedy completion.
    pub first_turns: (Vec<f64>, Option<f64>),
    pub shown: Vec<Shown>,
}

impl Judged {
    /// Mean reward of the samples.
    pub fn mean(&self) -> Option<f64> {
        let sum = self.sampled.iter().sum::<f64>();
        (!self.sampled.is_empty()).then(|| sum / self.sampled.len() as f64)
    }

    /// The line of the prompt in `evaluation-prompts.jsonl`.
    pub fn result(&self, step: u32, suite: Option<&str>) -> PromptResult {
        PromptResult {
            step,
            suite: suite.map(str::to_owned),
            row: self.row,
            prompt: self.prompt.clone(),
            row_digest: self.row_digest.clone(),
            category: self.category.clone(),
            greedy: self.greedy,
            sampled: self.mean(),
            samples: self.sampled.len() as u32,
            correct: self.correct,
            majority_at: self.majority_at.clone(),
        }
    }
}

/// Identity of a prompt in all runs (`PromptResult::prompt`).
fn identity(prompt: &Prompt) -> String {
    let mut digest = Sha256::new();
    digest.update(prompt.text.as_bytes());
    // Not a byte of UTF-8: tells where the prompt ends.
    digest.update([0xFF]);
    digest.update(prompt.answer.as_deref().unwrap_or_default().as_bytes());
    format!("{:x}", digest.finalize()).chars().take(16).collect()
}

/// A completion with a reward, or the turns of one.
#[derive(Clone, Debug)]
pub struct Completed {
    /// The last turn, with the reward of the sample.
    pub scored: Scored,
    /// All turns as text.
    pub text: String,
    /// Each turn with its reward without discount, if there are several.
    pub turns: Vec<ShownTurn<'static>>,
    /// Number of completion tokens of all turns.
    pub tokens: u64,
    /// Reward of the first turn.
    pub first_turn: f64,
}

/// Completions of one prompt.
#[derive(Default)]
pub struct Judgement {
    /// By index; the greedy one is last.
    pub completions: BTreeMap<u32, Completed>,
    pub rejected: u32,
    /// Why the last rejected one was.
    pub cause: Option<String>,
    pub tokens: u64,
    pub newer_tokens: u64,
}

impl Judgement {
    /// Adds the last turn of a completion, and counts the tokens of all turns.
    pub fn add(&mut self, index: u32, episode: Episode, workflow: &Workflow, version: Version) {
        let runs = || episode.completions().flat_map(|sampled| &sampled.completion.versions);
        let count = |newer: bool| -> u64 {
            let counted = runs().filter(|run| !newer || run.version.step > version.step);
            counted.map(|run| u64::from(run.tokens)).sum()
        };
        let tokens = count(false);
        self.tokens = self.tokens.saturating_add(tokens);
        self.newer_tokens = self.newer_tokens.saturating_add(count(true));
        if let Some(rejected) = &episode.rejected {
            self.cause = Some(rejected.line());
            self.rejected = self.rejected.saturating_add(1);
            return;
        }
        let (text, turns) = (episode.text(), shown_turns(&episode.turns));
        let first_turn = episode.turns.first();
        let first_turn = first_turn.map_or(0.0, |turn| turn.scored.reward.value);
        let reward = episode.undiscounted(workflow);
        if let Some(turn) = episode.turns.into_iter().next_back() {
            let scored =
                Scored { reward: Reward { value: reward, ..turn.scored.reward }, ..turn.scored };
            let completed = Completed { scored, text, turns, tokens, first_turn };
            self.completions.insert(index, completed);
        }
    }

    pub fn judge(
        self,
        suite: &Suite,
        rewards: Option<&Rewards>,
        step: u32,
        prompt: &Prompt,
    ) -> Judged {
        let Suite { name, data: spec, .. } = suite;
        let samples = spec.samples;
        let Self { completions, rejected, cause, tokens, newer_tokens } = self;
        let sampled: Vec<&Scored> =
            completions.range(..samples).map(|(_, completed)| &completed.scored).collect();
        let greedy = completions.get(&samples);
        let first_turns = completions.range(..samples).map(|(_, completed)| completed.first_turn);
        let values: Vec<f64> = sampled.iter().map(|scored| scored.reward.value).collect();
        let correct: Vec<bool> =
            values.iter().map(|reward| *reward >= spec.correct_reward).collect();
        let rewards = rewards.map(|rewards| rewards.named(&prompt.rewards));
        let votes = votes(&sampled, &correct, rewards.as_ref());
        let right = correct.iter().filter(|correct| **correct).count() as u32;
        let by_size = || sizes(samples).into_iter();
        let pass =
            by_size().filter_map(|k| Some((k, pass_at(values.len() as u32, right, k)?))).collect();
        let majority = by_size().filter_map(|k| Some((k, majority_at(&votes, k)?))).collect();
        Judged {
            row: prompt.row,
            prompt: identity(prompt),
            row_digest: prompt.row_digest.clone(),
            category: prompt.category.clone(),
            correct: right,
            greedy: greedy.map(|completed| completed.scored.reward.value),
            first_turns: (first_turns.collect(), greedy.map(|completed| completed.first_turn)),
            sampled: values,
            pass_at: pass,
            majority_at: majority,
            rejected,
            cause,
            tokens,
            newer_tokens,
            shown: shown(completions, samples, (step, name.as_deref()), prompt),
        }
    }
}

/// The samples with the classes of their answers; empty where answers cannot be compared.
fn votes(
    sampled: &[&Scored],
    correct: &[bool],
    rewards: Option<&Rewards>,
) -> Vec<estimate::Scored> {
    let texts: Vec<&str> = sampled.iter().map(|scored| scored.text.as_str()).collect();
    let reported: Vec<Option<&str>> =
        sampled.iter().map(|scored| scored.reward.answer.as_deref()).collect();
    let answers = rewards.and_then(|rewards| rewards.answer_classes(&texts, &reported));
    answers
        .unwrap_or_default()
        .into_iter()
        .zip(correct)
        .map(|(answer, &correct)| estimate::Scored { correct, answer })
        .collect()
}

/// Turns to read, with their rewards without discount; none of a completion of one turn.
fn shown_turns(turns: &[Turn]) -> Vec<ShownTurn<'static>> {
    let show = |turn: &Turn| {
        let Scored { text, reward } = &turn.scored;
        ShownTurn::new(reward.value, &turn.given_text, text)
    };
    if turns.len() > 1 { turns.iter().map(show).collect() } else { Vec::new() }
}

fn shown(
    completions: BTreeMap<u32, Completed>,
    samples: u32,
    (step, suite): (u32, Option<&str>),
    prompt: &Prompt,
) -> Vec<Shown> {
    if prompt.position >= SHOWN {
        return Vec::new();
    }
    let show = |(index, completed): (u32, Completed)| Shown {
        step,
        suite: suite.map(str::to_owned),
        row: prompt.row,
        index,
        greedy: index == samples,
        prompt: prompt.text.clone(),
        tools: prompt.tools.as_ref().map(Tools::names),
        answer: prompt.answer.clone(),
        completion: completed.text,
        reward: completed.scored.reward.value,
        tokens: completed.tokens,
        turns: completed.turns,
        details: completed.scored.reward.details,
    };
    completions.into_iter().map(show).collect()
}
