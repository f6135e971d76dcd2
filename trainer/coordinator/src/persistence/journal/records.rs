//! The values that a journal keeps.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use rljob_protocol::version::Version;
use serde::{Deserialize, Serialize};

/// One finished completion with its reward. `C` is the number of completion tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Loader position of its prompt.
    pub position: u64,
    /// Index in the prompt's group.
    pub index: u32,
    /// Row of the data file.
    pub row: u64,
    /// Token ids of the prompt.
    pub prompt_tokens: Vec<i64>,
    /// `[C]` token ids of the completion, the stop token included.
    pub completion_tokens: Vec<i64>,
    /// `[C]` the sampler's log-probabilities (of logits ÷ temperature).
    pub sampler_logprobs: Vec<f32>,
    /// The weights that each completion token was sampled with, as runs whose tokens add up to `C`.
    pub versions: Vec<VersionRun>,
    /// Why the completion ended, in the engine's word: `stop`, `length`.
    pub finish_reason: String,
    /// Sampling parameters, seed included, as sent.
    pub sampling: serde_json::Value,
    /// The reward.
    pub reward: f64,
    /// What the reward is made of.
    pub reward_components: BTreeMap<String, f64>,
    /// The prompt, to read.
    pub prompt_text: String,
    /// The completion, to read.
    pub completion_text: String,
}

impl Sample {
    /// Steps of the oldest weights that any of its tokens was sampled with; none without tokens.
    pub fn oldest(&self) -> Option<u32> {
        self.versions.iter().map(|run| run.version.step).min()
    }
}

/// A sample of no batch yet, as far as the next batch depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pending {
    /// Loader position of its prompt.
    pub position: u64,
    /// Index in the prompt's group.
    pub index: u32,
    /// The reward.
    pub reward: f64,
    /// Steps of the oldest weights that any of its tokens was sampled with.
    pub oldest: u32,
}

/// A step's batch: the samples of some positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FixedBatch {
    pub step: u32,
    /// Loader positions of its groups; none for an algorithm that samples nothing.
    pub positions: Vec<u64>,
    /// Positions below it are used up.
    pub next_position: u64,
    /// Groups dropped on the way.
    pub dropped_groups: u32,
    /// Samples made again on the way, since they were too old.
    pub stale_samples: u32,
}

/// Consecutive tokens that were sampled with the same weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionRun {
    /// The weights.
    pub version: Version,
    /// How many tokens.
    pub tokens: u32,
}

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// What it holds.
    pub version: Version,
    /// Its folder.
    pub path: PathBuf,
}

/// Something that happened: an engine lost, an order given, a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// CamelCase kind.
    pub kind: String,
    /// The rest.
    pub detail: serde_json::Value,
}
