//! Engines that only evaluate.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::roles::InferenceSpec;

/// Evaluation on separate engines, beside training. Learners write the weights of each step that
/// is due for evaluation to the run directory and continue. The engines read them and sample the
/// evaluations one after another, in the order of the steps; all tokens of a result are from the
/// weights of its step. The job succeeds after the last evaluation.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.engines.replicas >= 1")
        .message("evaluation.engines.replicas must be at least 1")
)]
pub struct SeparateEvaluationSpec {
    /// The engines, with the fields of `inference`, of which nothing is inherited: `sglang`,
    /// `embedded` or GPUs in `resources.limits` must be set if `inference` runs SGLang. Engines of
    /// `inference` sample no evaluations then. Required.
    pub engines: InferenceSpec,
    /// Evaluations that may wait or run at a time. Each keeps a folder with the weights of its step
    /// in the run directory. An evaluation that is due beyond them is of a later step, as soon as
    /// there is room, or of the next step that is due; the one after the last step always runs.
    /// Default 8.
    #[serde(default = "max_pending")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_pending: u32,
}

fn max_pending() -> u32 {
    8
}
