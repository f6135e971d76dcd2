//! Gangs: engines and trainers that are scheduled all together or not at all.

use crate::union::{Union, exactly_one};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::topology::TOPOLOGY_KEY;

/// Scheduler of the gang: `native`, `coscheduling` or `volcano`. The operator must know it
/// (`gangSchedulers` of its chart). The gang is all engines and trainers; the coordinator starts
/// before pods with GPUs, alone. Until every pod of the gang has a node, none gets one; then lost
/// pods are replaced one by one.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct GangSpec {
    /// The scheduler of Kubernetes 1.37 or later with the feature gate GenericWorkload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeGang>,
    /// A scheduler with the coscheduling plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coscheduling: Option<CoschedulingGang>,
    /// The scheduler of Volcano.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volcano: Option<VolcanoGang>,
}

impl Union for GangSpec {
    const MEMBERS: &'static [&'static str] = &["native", "coscheduling", "volcano"];
}

/// Settings of `native`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NativeGang {
    /// Key of a label of nodes, of which all members get nodes with one value: the scheduler tries
    /// each value for the whole gang. Needs the feature gate TopologyAwareWorkloadScheduling, too.
    /// Default any nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317), regex(pattern = TOPOLOGY_KEY))]
    pub topology_key: Option<String>,
}

/// Settings of `coscheduling`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CoschedulingGang {
    /// Name of the scheduler; `template.spec.schedulerName` of a role overrides it. Default
    /// `scheduler-plugins-scheduler`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// Time in seconds for which placed pods wait for the rest of the gang. Default that of the
    /// scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: Option<i32>,
}

/// Settings of `volcano`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolcanoGang {
    /// Queue of Volcano. Default that of Volcano, `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub queue: Option<String>,
    /// Network topology of the gang, by the tiers of Volcano's HyperNodes. Default any nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_topology: Option<VolcanoTopology>,
}

/// Settings of `networkTopology`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolcanoTopology {
    /// Whether the tier is a limit.
    pub mode: VolcanoTopologyMode,
    /// Highest tier of the HyperNode that holds all members. Default that of Volcano, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub highest_tier_allowed: Option<i32>,
}

/// Strictness of a network topology.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolcanoTopologyMode {
    /// The gang waits until a HyperNode of that tier has room.
    Hard,
    /// Nodes near each other are preferred.
    Soft,
}

impl VolcanoTopologyMode {
    /// Value in a PodGroup.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Soft => "soft",
        }
    }
}

/// Kind of scheduler that knows gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GangScheduler {
    /// The scheduler of Kubernetes.
    Native,
    /// A scheduler with the coscheduling plugin.
    Coscheduling,
    /// The scheduler of Volcano.
    Volcano,
}

impl GangScheduler {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Native, Self::Coscheduling, Self::Volcano];

    /// Name of the member of [`GangSpec`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Coscheduling => "coscheduling",
            Self::Volcano => "volcano",
        }
    }
}

impl GangSpec {
    /// The scheduler of a valid spec, which sets exactly one; otherwise the first one.
    pub fn scheduler(&self) -> Option<GangScheduler> {
        let is_set = [self.native.is_some(), self.coscheduling.is_some(), self.volcano.is_some()];
        let mut kinds = GangScheduler::ALL.into_iter().zip(is_set);
        kinds.find_map(|(kind, is_set)| is_set.then_some(kind))
    }
}
