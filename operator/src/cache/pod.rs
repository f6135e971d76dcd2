//! Pods, reduced to the fields that passes read. Pods are the most numerous objects, and a whole
//! one takes three times the memory.

use k8s_openapi::api::core::v1::{PodReadinessGate, PodStatus};
use kube::api::Object;
use rljob_crds::names::{LABEL_JOB, LABEL_ROLE};
use serde::{Deserialize, Serialize};

pub type Pod = Object<SlimPodSpec, PodStatus>;

/// The fields of a pod's spec that passes read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimPodSpec {
    pub node_name: Option<String>,
    #[serde(default)]
    pub readiness_gates: Vec<PodReadinessGate>,
}

/// Removes the fields that no pass reads.
pub(super) fn slim(mut pod: Pod) -> Pod {
    pod.types = None;
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    pod.metadata.generate_name = None;
    pod.metadata
        .labels
        .iter_mut()
        .for_each(|labels| labels.retain(|label, _| label == LABEL_JOB || label == LABEL_ROLE));
    if let Some(status) = &mut pod.status {
        status.host_ip = None;
        status.host_ips = None;
        status.pod_ips = None;
        for container in status.container_statuses.iter_mut().flatten() {
            container.volume_mounts = None;
            container.resources = None;
        }
    }
    pod
}
