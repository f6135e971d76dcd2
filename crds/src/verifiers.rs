//! Verifier pods: where programs of rewards, tools and agents run outside the coordinator's pod.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::template::PodTemplate;

/// Pods that run the programs of `code`, `python` and `command` rewards, of tools with `command`
/// and of the workflow `agent`. Their number follows the calls of programs, of which each sample of
/// an agent is one: it grows as soon as calls wait for a process, and shrinks to the most that was
/// needed within five minutes. `rljob run` ignores it: programs run on this machine.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.minReplicas <= self.maxReplicas")
        .message("verifiers.minReplicas must be at most verifiers.maxReplicas")
)]
pub struct VerifiersSpec {
    /// Least number of pods. May change while the run is active. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: i32,
    /// Most pods, for which a queue of Kueue reserves quota. May change while the run is active.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// Container image of the programs, with a C library (glibc) that is not older than that of
    /// Debian 12. An init container copies `rljob-reward-runner` of the operator's release into the
    /// pod. Default the image of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Requests and limits of the container of the programs. Each pod runs as many calls of a
    /// reward, tool or agent as its `processes` or `concurrency`. Default requests: 100m CPU, 256Mi
    /// memory.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// Partial PodTemplateSpec, merged with the template of the operator. The main container is
    /// named `rewards`; containers with other names are sidecars. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

fn one() -> i32 {
    1
}
