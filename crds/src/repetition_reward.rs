//! Settings of the `repetition` reward.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Settings of the `repetition` reward: `maxPenalty` × (1 − distinct n-grams ÷ n-grams), over the
/// lower-cased words between white space.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RepetitionReward {
    /// Words of an n-gram. A completion with fewer words scores 0. Default 3.
    #[serde(default = "ngram_size")]
    #[schemars(range(min = 1, max = 1024))]
    pub ngram_size: u32,
    /// Limit of the score of a completion that repeats one n-gram. Default -1.
    #[serde(default = "max_penalty")]
    #[schemars(range(min = -1_000_000.0, max = 0.0))]
    pub max_penalty: f64,
}

fn ngram_size() -> u32 {
    3
}

fn max_penalty() -> f64 {
    -1.0
}

impl Default for RepetitionReward {
    fn default() -> Self {
        Self { ngram_size: ngram_size(), max_penalty: max_penalty() }
    }
}
