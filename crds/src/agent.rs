//! Workflow `agent`: a program per sample that talks to the model over an API of OpenAI's shape.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::verifier::max_outage_seconds;

/// Settings of the `agent` workflow. A program runs once per sample and talks to the model over an
/// API of OpenAI's shape, whose address and key it gets as `OPENAI_BASE_URL` and `OPENAI_API_KEY`.
/// It reads the row of the data as JSON on standard input, posts rewards, and exits with 0. The
/// sample is the conversation of its last completion, as the exact tokens that were sampled.
///
/// On a cluster, the program runs in the container `rewards` of the coordinator's pod, or of
/// verifier pods with `spec.verifiers`, with the network of the pod, without tokens, keys and run
/// directory. It sees `spec.volumes` read-only, except secrets, and can write to `/tmp`.
/// `verifiers.image` or `coordinator.template` can set the container's image. Environment variables
/// are `PATH`, `HOME`, `LANG`, `LC_ALL`, `TZ` and the two above. All processes that the program
/// started are killed with it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentWorkflow {
    /// Program and arguments.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 4096)))]
    pub command: Vec<String>,
    /// Maximum number of completions that a program may request. Default 16.
    #[serde(default = "max_turns")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_turns: u32,
    /// Maximum number of tokens of a conversation after its first prompt: completions and messages
    /// between them. A request that leaves no token for a completion is rejected.
    /// `rollout.maxNewTokens` limits each completion. Default the context of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: Option<u32>,
    /// Seconds per try, after which the program is killed. Default 300.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: u32,
    /// Retries of a program that fails, times out, requests no completion or gets no reward. The
    /// sample is then rejected and sampled again, at most twice; after 16 rejected samples in a
    /// row, the run fails. Default 2.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Programs that run at the same time, in each verifier pod. Default 16.
    #[serde(default = "processes")]
    #[schemars(range(min = 1, max = 1024))]
    pub processes: u32,
    /// Seconds for which sampling waits while no program can run: the container that runs them does
    /// not answer, or no verifier pod is ready. Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
    /// Factor of a reward for each completion of the conversation before the one that it is for.
    /// Default 1.
    #[serde(default = "discount")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub discount: f64,
}

fn max_turns() -> u32 {
    16
}

fn timeout_seconds() -> u32 {
    300
}

fn retries() -> u32 {
    2
}

fn processes() -> u32 {
    16
}

fn discount() -> f64 {
    1.0
}
