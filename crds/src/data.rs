//! Training and evaluation data.

mod curriculum;
mod evaluation;
mod mixture;
mod source;
mod sources;
mod suite;
mod train;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

pub use curriculum::CurriculumSpec;
pub use evaluation::{EvaluationDataset, Suite};
pub use mixture::{MixturePart, PassRateFilter};
pub use source::{ConversationSpec, HubDatasetSource, PromptFormat};
pub use sources::DataSource;
pub use suite::EvaluationSuite;
pub use train::{TrainDataset, TrainPart};

/// Training and evaluation data.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// Training data. Required, except by `algorithm.evaluation`, which has none.
    #[serde(default, skip_serializing_if = "TrainDataset::is_absent")]
    pub train: TrainDataset,
    /// Evaluation data: accuracy, scored by `spec.rewards`, or the loss of `sft` or of
    /// pairs. Default no evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationDataset>,
    /// Largest share of rows that may have a reference answer that a reward cannot compare with
    /// anything, for example a sentence where a formula is expected. Such rows are dropped, counted
    /// and listed in `dropped-rows.jsonl` of the run; beyond this share, of the training or of the
    /// evaluation rows, the run fails at its start. Default 0.05.
    #[serde(default = "max_unusable_share")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_unusable_share: f64,
}

fn max_unusable_share() -> f64 {
    0.05
}

impl DatasetSpec {
    /// Suites of the evaluation with all of their settings; none without an evaluation.
    pub fn suites(&self) -> Vec<Suite> {
        self.evaluation.as_ref().map(EvaluationDataset::resolved).unwrap_or_default()
    }

    /// Whether release 0.1 has all fields that are set.
    pub(crate) fn is_plain(&self) -> bool {
        let has_suites = self.evaluation.as_ref().is_some_and(|own| !own.suites.is_empty());
        let evaluated = self.suites().into_iter().all(|Suite { data, .. }| {
            data.rewards.is_empty()
                && data.reward_fields.is_empty()
                && data.conversation.is_none()
                && data.tools.is_none()
        });
        let train = &self.train;
        let is_filtered = train.min_prompt_tokens.is_some()
            || train.pass_rate.is_some()
            || train.curriculum.is_some()
            || train.conversation.is_some()
            || train.tools.is_some();
        let trained = train.rewards.is_empty()
            && train.reward_fields.is_empty()
            && train.mixture.is_empty()
            && !is_filtered;
        !has_suites && evaluated && trained
    }
}
