//! `POST /v1/memory` and `POST /v1/groups/GROUP/memory`: memory plan of learners on GPUs, and of
//! those of a group of `trainer.groups`, which rank 0 reports before models are loaded. Learners on
//! CPUs have none.

use serde::{Deserialize, Serialize};

/// Most parts of a plan.
const MAX_PARTS: usize = 16;
/// Longest name of a part or of a setting in bytes.
const MAX_NAME: usize = 64;
/// Most bytes: numbers of a status are signed.
const MAX_BYTES: u64 = i64::MAX as u64;

/// Report of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryReport {
    /// Attempt of the learner.
    pub attempt: u32,
    /// The plan.
    pub plan: MemoryPlan,
}

/// Estimate of the memory of the learners' GPUs: of each number, the largest of all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryPlan {
    /// The parts that are above 0.
    pub parts: Vec<MemoryPart>,
    /// Bytes at the peak of a step.
    pub total_bytes: u64,
    /// Bytes that tensors can use on the GPU with the least; absent if no rank knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable_bytes: Option<u64>,
    /// Whether full micro-batches fit on every GPU.
    pub fits: bool,
    /// `Full` or `Gradients`, as `training.sharding`.
    pub sharding: String,
    /// Layers that are computed again in the backward pass.
    pub recomputed_layers: u32,
    /// Layers of which only the outputs of norms are.
    #[serde(default)]
    pub selective_layers: u32,
    /// Layers of the model.
    pub layers: u32,
}

/// Part of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryPart {
    /// Such as `weights`, as the learners' log has it.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

impl MemoryPlan {
    /// Checks the limits of a plan that another process sent.
    ///
    /// # Errors
    /// The first limit that it exceeds.
    pub fn check(&self) -> Result<(), String> {
        if self.parts.len() > MAX_PARTS {
            return Err(format!("the memory plan has more than {MAX_PARTS} parts"));
        }
        let mut names = self.parts.iter().map(|part| &part.name).chain([&self.sharding]);
        if names.any(|name| name.len() > MAX_NAME) {
            return Err(format!("a name in the memory plan has more than {MAX_NAME} bytes"));
        }
        let bytes = self.parts.iter().map(|part| part.bytes);
        if bytes.chain([self.total_bytes]).chain(self.usable_bytes).any(|bytes| bytes > MAX_BYTES) {
            return Err(format!("a part of the memory plan exceeds {MAX_BYTES} bytes"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, MemoryPart, MemoryPlan};

    #[test]
    fn plans_have_limits() {
        let part = |name: &str, bytes| MemoryPart { name: name.to_owned(), bytes };
        let plan = |parts| MemoryPlan {
            parts,
            total_bytes: 1,
            usable_bytes: None,
            fits: true,
            sharding: "Full".to_owned(),
            recomputed_layers: 0,
            selective_layers: 0,
            layers: 1,
        };
        assert_eq!(plan(vec![part(&"x".repeat(64), MAX_BYTES); 16]).check(), Ok(()));
        for (parts, expected) in [
            (vec![part("x", 1); 17], "the memory plan has more than 16 parts"),
            (vec![part(&"x".repeat(65), 1)], "a name in the memory plan has more than 64 bytes"),
            (
                vec![part("x", MAX_BYTES + 1)],
                "a part of the memory plan exceeds 9223372036854775807 bytes",
            ),
        ] {
            assert_eq!(plan(parts).check(), Err(expected.to_owned()));
        }
    }
}
