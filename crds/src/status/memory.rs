//! Memory of the learners in the status.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory of the learners' GPUs: the plan that they make before they load models, and what they
/// have used. Of several learners, the largest numbers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStatus {
    /// Planned bytes at the peak of a step: the sum of `parts`, of the learner with the most.
    pub total_bytes: u64,
    /// Bytes that tensors can use on the GPU with the least: what was free, less a reserve for
    /// libraries and fragmentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable_bytes: Option<u64>,
    /// Most bytes that tensors have used on a GPU since the learners started, as of the newest
    /// step. Absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Whether micro-batches of `training.maxTokensPerMicroBatch` fit on every GPU.
    pub fits: bool,
    /// Sharding of the learners, as `training.sharding` has it.
    pub sharding: String,
    /// Layers whose activations are computed again in the backward pass.
    pub recomputed_layers: u32,
    /// Layers of which only the outputs of norms are computed again.
    #[serde(default)]
    pub selective_layers: u32,
    /// Layers of the model.
    pub layers: u32,
    /// Planned bytes by part, without those of 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub parts: Vec<MemoryPart>,
}

/// Part of the planned memory.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MemoryPart {
    /// Such as `weights`, `optimizer states` and `activations`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// Bytes as GiB with one digit, for messages.
pub fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

impl std::fmt::Display for MemoryStatus {
    /// One line: plan, limit and peak.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} planned", gib(self.total_bytes))?;
        if let Some(usable) = self.usable_bytes {
            write!(formatter, " of {} on each GPU", gib(usable))?;
        }
        if !self.fits {
            formatter.write_str(", may not fit")?;
        }
        if let Some(peak) = self.peak_bytes {
            write!(formatter, "; {} used at most", gib(peak))?;
        }
        write!(
            formatter,
            "; sharding {}, {} of {} layers are computed again",
            self.sharding, self.recomputed_layers, self.layers
        )?;
        match self.selective_layers {
            0 => Ok(()),
            layers => write!(formatter, ", and the norms of {layers}"),
        }
    }
}
