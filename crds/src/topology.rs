//! Topology hints: domains of nodes, such as zones or racks, in which pods of a job run together.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::union::{Union, exactly_one};

/// Pattern of the key of a label.
pub(crate) const TOPOLOGY_KEY: &str =
    "^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";

/// Kueue's annotation of a pod template that requests a topology: `required`, `preferred` or
/// `unconstrained`.
pub fn topology_annotation(request: &str) -> String {
    format!("kueue.x-k8s.io/podset-{request}-topology")
}

/// Domains of nodes in which pods run together. A domain is all nodes with one value of a label,
/// the topology key, for example `topology.kubernetes.io/zone`. Without a queue of Kueue, the hints
/// are pod affinities, which every scheduler of `gang` honors too. In a queue they are the
/// topology requests of the Workload, whose keys are levels of the Topology of its ResourceFlavors.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologySpec {
    /// Keeps the pods of the trainer in one domain, and those of a group of `trainer.groups` in
    /// one. Default any nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<TrainerTopology>,
    /// Prefers nodes for the engines of `inference` near the trainer and each other; in a queue of
    /// Kueue, near each other. Default any nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceTopology>,
}

/// Topology of trainer pods.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct TrainerTopology {
    /// Key of the domain that holds all pods. Pods that find no room in it stay pending, also
    /// those that replace lost ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317), regex(pattern = TOPOLOGY_KEY))]
    pub required: Option<String>,
    /// Key of the domain in which pods run if it has room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317), regex(pattern = TOPOLOGY_KEY))]
    pub preferred: Option<String>,
}

impl Union for TrainerTopology {
    const MEMBERS: &'static [&'static str] = &["required", "preferred"];
}

/// Topology of engines.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InferenceTopology {
    /// Key of the domain in which pods run if it has room.
    #[schemars(length(min = 1, max = 317), regex(pattern = TOPOLOGY_KEY))]
    pub preferred: String,
}
