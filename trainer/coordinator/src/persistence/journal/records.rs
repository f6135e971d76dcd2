//! The values that a journal keeps.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use rljob_protocol::version::Version;
use serde::{Deserialize, Serialize};

/// Name of the metadata with what verifiers found, by reward name.
pub const DETAILS: &str = "details";
/// Name of the metadata with the tries of a sample that were rejected before it; absent for 0.
pub(super) const REJECTED_TRIES: &str = "rejectedTries";
/// Finish reason of a sample that its last completion, or what follows it, ended.
pub const STOP: &str = "stop";
/// Finish reason of a sample whose last completion has the maximum length.
pub const LENGTH: &str = "length";
/// Finish reason of a sample whose workflow allows no further turn.
pub const LIMIT: &str = "limit";

/// One finished sample: token segments of one or more turns, with their rewards.
///
/// ```text
///  turn 0: prompt │ completion      turn 1: tool result │ completion
///          given    trained                 given         trained
/// ```
///
/// A prompt and its completion are two segments of turn 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Loader position of its prompt.
    pub position: u64,
    /// Index in the prompt group.
    pub index: u32,
    /// Row of the data file.
    pub row: u64,
    /// In the order of the tokens.
    pub segments: Vec<Segment>,
    /// Why the sample ended: [`STOP`], [`LENGTH`] or [`LIMIT`].
    pub finish_reason: String,
    /// Sampling parameters, seed included, as sent.
    pub sampling: serde_json::Value,
    /// Reward of the whole sample.
    pub reward: f64,
    /// Reward by component name, before weights.
    pub reward_components: BTreeMap<String, f64>,
    /// Reward by turn; the sum is `reward`.
    pub turn_rewards: Vec<f64>,
    /// Further facts about the sample, for people and programs that read the journal.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// Consecutive tokens of one turn that are all given or all sampled. `T` is their number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// Turn of the conversation, from 0.
    pub turn: u32,
    /// `[T]` token ids; a completion includes its stop token.
    pub tokens: Vec<i64>,
    /// Loss mask of all its tokens.
    pub trained: bool,
    /// `[T]` the sampler's log-probabilities (of logits ÷ temperature); empty for given tokens.
    pub sampler_logprobs: Vec<f32>,
    /// `[T]` a served teacher's log-probabilities; empty for given tokens and without such a one.
    pub teacher_logprobs: Vec<f32>,
    /// Weights that sampled the tokens, as runs that add up to `T`; empty for given tokens.
    pub versions: Vec<VersionRun>,
    /// The tokens as text.
    pub text: String,
}

impl Segment {
    /// Tokens of a prompt, an environment or a tool, which are not trained on.
    pub fn given(turn: u32, tokens: Vec<i64>, text: String) -> Self {
        Self { turn, tokens, text, ..Self::default() }
    }
}

impl Sample {
    /// Step of the oldest weights that sampled any of its tokens; `None` without sampled tokens.
    pub fn oldest(&self) -> Option<u32> {
        oldest(self.segments.iter().flat_map(|segment| &segment.versions))
    }

    /// Number of trained tokens.
    pub fn trained_tokens(&self) -> usize {
        let trained = self.segments.iter().filter(|segment| segment.trained);
        trained.map(|segment| segment.tokens.len()).sum()
    }

    /// The sample that follows so many rejected tries.
    #[must_use]
    pub fn with_rejected_tries(mut self, tries: u32) -> Self {
        if tries > 0 {
            self.metadata.insert(REJECTED_TRIES.to_owned(), tries.into());
        }
        self
    }

    /// Tries that were rejected before it.
    pub fn rejected_tries(&self) -> u32 {
        let tries = self.metadata.get(REJECTED_TRIES).and_then(serde_json::Value::as_u64);
        tries.unwrap_or_default() as u32
    }

    /// Text before the first trained segment, and from there on.
    pub fn texts(&self) -> (String, String) {
        let first = self.segments.iter().position(|segment| segment.trained);
        let (before, after) = self.segments.split_at(first.unwrap_or(self.segments.len()));
        let text = |segments: &[Segment]| {
            segments.iter().map(|segment| segment.text.as_str()).collect::<String>()
        };
        (text(before), text(after))
    }
}

/// Step of the oldest weights.
pub(super) fn oldest<'a>(versions: impl Iterator<Item = &'a VersionRun>) -> Option<u32> {
    versions.map(|run| run.version.step).min()
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
    /// Number of trained tokens.
    pub tokens: u32,
    /// Steps of the oldest weights that any of its tokens was sampled with.
    pub oldest: u32,
    /// Tries that were rejected before it.
    pub rejected: u32,
}

/// Place in the training data: the loader positions that batches have not used up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataPosition {
    /// No position from this one on is used up.
    pub next_position: u64,
    /// Positions below it that are not used up, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<u64>,
}

impl DataPosition {
    /// Whether a position is used up: skipped, dropped, or in a batch.
    pub fn has_used(&self, position: u64) -> bool {
        position < self.next_position && self.passed_over.binary_search(&position).is_err()
    }
}

/// A step's batch: the samples of some positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FixedBatch {
    pub step: u32,
    /// Loader positions of its groups; none for an algorithm that samples nothing.
    pub positions: Vec<u64>,
    /// Positions below it are used up, except those that are passed over.
    pub next_position: u64,
    /// Positions below it that are for later batches, in order.
    pub passed_over: Vec<u64>,
    /// Groups dropped on the way.
    pub dropped_groups: u32,
    /// Number of samples that were sampled again because they were too old.
    pub stale_samples: u32,
    /// What was rejected on the way.
    pub rejections: Rejections,
    /// Pass rates of rows that a curriculum measured.
    pub pass_rates: Vec<PassRate>,
    /// Positions of pass rates that the curriculum does not need any more.
    pub superseded_pass_rates: Vec<u64>,
}

/// What rewards, tools and agents rejected while a batch was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    /// Rejected tries of samples.
    pub samples: u32,
    /// Groups whose samples were all rejected; they are dropped.
    pub groups: u32,
}

/// Pass rate of a row in one prompt group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassRate {
    /// Loader position of the group.
    pub position: u64,
    /// Index of the part of a mixture; 0 without one.
    pub part: u32,
    /// Row of the part's files.
    pub row: u64,
    /// Epoch of the part.
    pub epoch: u64,
    /// Samples that were correct.
    pub correct: u32,
    /// Samples of the group, at least 1.
    pub samples: u32,
}

/// Consecutive tokens that were sampled with the same weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionRun {
    /// The weights.
    pub version: Version,
    /// Number of tokens.
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
