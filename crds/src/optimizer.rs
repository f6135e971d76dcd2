//! Optimizer and learning-rate schedule of a model that is trained.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// AdamW (Loshchilov and Hutter, arXiv 1711.05101) and its learning-rate schedule.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OptimizerSpec {
    /// Learning rate after warm-up. Default 1e-6.
    #[serde(default = "learning_rate")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub learning_rate: f64,
    /// Steps over which the learning rate rises linearly from 0. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub warmup_steps: u32,
    /// Learning-rate schedule after warm-up. Default Constant.
    #[serde(default)]
    pub schedule: Schedule,
    /// Fraction of learningRate at which Linear and Cosine end. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub minimum_learning_rate: f64,
    /// Decoupled weight decay. Default 0.01.
    #[serde(default = "weight_decay")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub weight_decay: f64,
    /// Decay of the first moment. Default 0.9.
    #[serde(default = "beta1")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta1: f64,
    /// Decay of the second moment. Default 0.999.
    #[serde(default = "beta2")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta2: f64,
    /// Added to the denominator. Default 1e-8.
    #[serde(default = "epsilon")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon: f64,
    /// Maximum L2 norm of the gradient of all parameters; 0 disables clipping. Default 1.
    #[serde(default = "gradient_clipping")]
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub gradient_clipping: f64,
    /// Keeps the two moments of learners on GPUs in pinned memory of the host: 8 bytes for each
    /// parameter of a rank, within the memory limit of the trainer. An update moves them over
    /// PCIe: about a second for each 4 billion parameters. Default false.
    #[serde(default)]
    pub offload: bool,
    /// Keeps the FP32 weights of learners on GPUs in pinned memory of the host, beside a copy in
    /// BF16 on the GPU: 4 bytes for each parameter of a rank. Default false.
    #[serde(default)]
    pub offload_weights: bool,
}

fn learning_rate() -> f64 {
    1e-6
}

fn weight_decay() -> f64 {
    0.01
}

fn beta1() -> f64 {
    0.9
}

fn beta2() -> f64 {
    0.999
}

fn epsilon() -> f64 {
    1e-8
}

fn gradient_clipping() -> f64 {
    1.0
}

impl Default for OptimizerSpec {
    fn default() -> Self {
        Self {
            learning_rate: learning_rate(),
            warmup_steps: 0,
            schedule: Schedule::default(),
            minimum_learning_rate: 0.0,
            weight_decay: weight_decay(),
            beta1: beta1(),
            beta2: beta2(),
            epsilon: epsilon(),
            gradient_clipping: gradient_clipping(),
            offload: false,
            offload_weights: false,
        }
    }
}

/// Learning-rate schedule after warm-up.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum Schedule {
    /// Constant learning rate.
    #[default]
    Constant,
    /// Linear decay. The rate would reach its minimum one step after the last.
    Linear,
    /// Half-cosine decay. The rate would reach its minimum one step after the last.
    Cosine,
}
