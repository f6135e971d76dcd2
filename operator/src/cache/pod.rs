//! A pod in what passes look at. There are more pods than anything else, and a whole one takes
//! three times as much.

use k8s_openapi::api::core::v1::{PodReadinessGate, PodStatus};
use kube::api::Object;
use rljob_crds::names::{LABEL_JOB, LABEL_ROLE};
use serde::{Deserialize, Serialize};

/// A pod.
pub type Pod = Object<Place, PodStatus>;

/// Of its spec: where it runs, and what gates its readiness.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// The node it is on.
    pub node_name: Option<String>,
    /// Conditions without which it is not ready.
    #[serde(default)]
    pub readiness_gates: Vec<PodReadinessGate>,
}

/// The pod without what no pass looks at.
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
