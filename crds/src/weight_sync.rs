//! Weight sync: method, interval, and what happens to running completions.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Transfer of new weights to the engines.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightSyncSpec {
    /// `Disk`: a learner writes a Hugging Face folder to the run directory, and engines read it.
    /// `Distributed`: a learner broadcasts to each engine in its own process group. Default
    /// Distributed where engines and learners can form a process group, both on CPUs or both on
    /// NVIDIA GPUs, else Disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<WeightSyncMethod>,
    /// Steps between weight syncs, at most `rollout.maxStaleness` + 1. Default 1.
    #[serde(default = "sync_every_steps")]
    #[schemars(range(min = 1, max = 65))]
    pub every_steps: u32,
    /// What happens to running completions when an engine gets new weights. `Recompute`: they are
    /// interrupted and continue with keys and values of the new weights, as in AReaL. `Keep`: they
    /// are interrupted and continue with the keys and values that the earlier weights computed, as
    /// in PipelineRL (arXiv 2509.19128), from the prefix cache of SGLang; completions that begin
    /// later never use these. `Finish`: the update waits until they end, at most 90 seconds.
    /// Default Recompute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_completions: Option<RunningCompletions>,
}

fn sync_every_steps() -> u32 {
    1
}

impl Default for WeightSyncSpec {
    fn default() -> Self {
        Self { method: None, every_steps: sync_every_steps(), running_completions: None }
    }
}

/// Treatment of running completions when an engine gets new weights.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum RunningCompletions {
    /// Interrupted; keys and values are computed again with the new weights.
    #[default]
    Recompute,
    /// Interrupted; keys and values of the earlier weights are kept.
    Keep,
    /// Not interrupted.
    Finish,
}

/// Method of weight sync.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightSyncMethod {
    /// Files in the run directory.
    Disk,
    /// Broadcast from a learner, one process group per engine.
    Distributed,
}
