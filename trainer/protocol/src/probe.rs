//! Elements of published weights, by which the coordinator checks what an engine holds
//! (docs/decisions/0047).

use serde::{Deserialize, Serialize};

/// Maximum size of [`WeightProbe`]s in bytes of JSON.
pub const MAX_PROBES_BYTES: u64 = 64 << 10;

/// Elements of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightProbe {
    /// Hugging Face name.
    pub name: String,
    /// Entries of the first dimension that contain the elements: 1 of a matrix.
    pub entries: u32,
    /// Positions in a vector, or in the first row of a matrix, ascending.
    pub positions: Vec<u32>,
    /// Their published values, finite.
    pub values: Vec<f32>,
}
