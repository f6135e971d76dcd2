//! Engines in the status of a coordinator, and the requests for them.

use serde::{Deserialize, Serialize};

use crate::version::Version;

/// State of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineState {
    /// Name of its pod or process.
    pub name: String,
    /// Reachability and weights.
    pub state: EngineCondition,
    /// Version of its weights; absent for weights that no learner published.
    pub version: Option<Version>,
    /// Seconds since its last response, or since it was listed if it never responded; absent while
    /// it responds. At least [`HUNG_SECONDS`] for an engine whose scheduler is stuck, although its
    /// server may respond.
    pub silent_seconds: Option<u32>,
    /// UID of the pod that the state is about, as in the desired state; none from coordinators of
    /// earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Why the engine gets no requests and no weights although it responds, and what to change.
    /// Since protocol version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsuitable: Option<String>,
}

/// Seconds without a response after which an engine that is up counts as hung, and its process is
/// replaced. The coordinator sends it no requests after the first missed responses; a server that
/// only pauses (garbage collection, a slow disk) has resumed by then.
pub const HUNG_SECONDS: u32 = 20;

impl EngineState {
    /// Whether the state is about the pod of this name and UID, and not about its predecessor.
    pub fn is_about(&self, name: &str, uid: &str) -> bool {
        self.name == name && self.uid.as_deref().is_none_or(|own| own == uid)
    }

    /// Whether it has been silent for so long that its process is replaced.
    pub fn is_hung(&self) -> bool {
        self.silent_seconds.is_some_and(|seconds| seconds >= HUNG_SECONDS)
    }
}

/// Reachability and weights of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineCondition {
    /// Does not respond.
    Unreachable,
    /// Responds, and holds weights of another version.
    Stale,
    /// Weights are being updated.
    Syncing,
    /// Holds the current weights and receives requests; of an engine that only evaluates, also
    /// between evaluations.
    Ready,
}

/// Requests for completions, of rollouts and evaluations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestCounts {
    /// Requests that engines process.
    pub running: u32,
    /// Requests in the queue: they wait for an engine with room and matching weights.
    pub queued: u32,
}
