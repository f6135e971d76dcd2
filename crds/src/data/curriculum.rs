//! Curriculum: rows are skipped by the pass rate of their prompt groups in training.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

const SKIPS: &str = "self.min > 0.0 || self.max < 1.0";

/// Rows that training skips for some epochs, since the policy solved them too often or too rarely.
/// The pass rate of a row is the share of its samples that were correct. Dropped groups count, and
/// a group without samples does not. A run that starts from another run's checkpoint has no pass
/// rates yet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.min <= self.max").message("min must be at most max")
)]
#[x_kube(
    validation = Rule::new(SKIPS).message("skips nothing: set min above 0 or max below 1")
)]
pub struct CurriculumSpec {
    /// Smallest pass rate of rows that are not skipped. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min: f64,
    /// Largest pass rate of rows that are not skipped. Default 1.
    #[serde(default = "max")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max: f64,
    /// Newest prompt groups of a row over which the pass rate is measured; a row with fewer groups
    /// is not skipped. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub groups: u32,
    /// Epochs for which a row is skipped. Then it is sampled, and measured, again. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub epochs: u32,
    /// Smallest reward of a correct sample, that of training: the sum of all rewards by their
    /// weights, with the discount of later turns. Default 1.
    #[serde(default = "max")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub correct_reward: f64,
}

fn max() -> f64 {
    1.0
}

fn one() -> u32 {
    1
}

impl CurriculumSpec {
    /// Whether it skips any row.
    pub fn skips(&self) -> bool {
        self.min > 0.0 || self.max < 1.0
    }
}
