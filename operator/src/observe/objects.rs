//! Objects of a job: own children by name, pods by role, and foreign objects that have a child's
//! name.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use rljob_crds::names::{COORDINATOR_PORT, EXIT_RUN_DIRECTORY_IN_USE, LABEL_ROLE};

use crate::cache::{ObservedChild, Pod};
use crate::children::{ChildName, Kind};
use crate::decide::RoleCounts;
use crate::desired::pin::LiveSet;
use crate::desired::{Role, meta};
use crate::pods::{self, PodFacts};
use crate::validate::Job;

pub type ObservedChildren = BTreeMap<ChildName, Arc<ObservedChild>>;
pub type ObservedSets = BTreeMap<Role, LiveSet>;

/// The objects of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    /// The job's own children, except the Secret.
    pub(super) children: ObservedChildren,
    /// The StatefulSets among them.
    pub(super) sets: ObservedSets,
    /// Pods by role and ordinal, terminating ones included.
    pub(super) pods: BTreeMap<Role, Vec<Arc<Pod>>>,
    /// `Kind name` of every object that has a child's name and another owner.
    pub(super) foreign: Vec<String>,
}

/// The coordinator's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorPod {
    pub uid: String,
    /// Base URL, once the pod has an address.
    pub url: Option<String>,
    /// Restarts of its container.
    pub restarts: u32,
}

impl Objects {
    pub(super) fn sort(
        job: &Job,
        found: Vec<(ChildName, Arc<ObservedChild>)>,
        pods: Vec<Arc<Pod>>,
    ) -> Self {
        let mut objects = Self::default();
        for (name, child) in found {
            if child.owner.as_deref() == Some(job.uid.as_str()) {
                objects.children.insert(name, child);
            } else {
                objects.foreign.push(format!("{} {}", name.0, name.1));
            }
        }
        let mut owners = BTreeMap::new();
        for role in Role::ALL {
            let name = (Kind::StatefulSet, meta::role_name(job, role));
            if let Some(child) = objects.children.get(&name) {
                owners.insert(role, child.uid.clone());
                objects.sets.extend(child.set.clone().map(|set| (role, set)));
            }
        }
        objects.sort_pods(&owners, pods);
        objects
    }

    /// Keeps the pods that one of the job's StatefulSets controls, by role.
    fn sort_pods(&mut self, owners: &BTreeMap<Role, Box<str>>, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            let role = pod.labels().get(LABEL_ROLE).and_then(|role| Role::parse(role));
            let set = role.and_then(|role| owners.get(&role));
            let is_controlled =
                set.is_some() && crate::cache::owner(&pod.metadata) == set.map(|uid| &**uid);
            if let Some(role) = role.filter(|_| is_controlled) {
                self.pods.entry(role).or_default().push(pod);
            }
        }
        for pods in self.pods.values_mut() {
            pods.sort_by_key(|pod| pods::ordinal(pod));
        }
    }

    pub(super) fn coordinator(&self) -> Option<CoordinatorPod> {
        let pod = self.pods.get(&Role::Coordinator)?.first()?;
        let restarts = pods::restarts(pod, Role::Coordinator);
        Some(CoordinatorPod { uid: pod.uid()?, url: url(pod, COORDINATOR_PORT), restarts })
    }

    pub(super) fn pod_facts(&self) -> Vec<PodFacts> {
        self.pods
            .iter()
            .flat_map(|(role, pods)| {
                pods.iter().map(|pod| pods::read(pod, *role, self.wants(*role, pods::ordinal(pod))))
            })
            .collect()
    }

    /// Whether the role's StatefulSet wants a pod of this ordinal.
    pub(super) fn wants(&self, role: Role, ordinal: u32) -> bool {
        self.sets.get(&role).is_some_and(|set| i64::from(ordinal) < i64::from(set.replicas))
    }

    pub(super) fn counts(&self, role: Role, was_suspended: bool) -> RoleCounts {
        let pods = self.pods.get(&role).map(Vec::as_slice).unwrap_or_default();
        let (num_pods, set) = (count(pods.iter()), self.sets.get(&role));
        // Pods may be observed later than the size of their set. Until the set's controller has
        // seen that size, pods may exist. A suspended job has none, and an edit of its spec that
        // the controller has not seen yet creates none.
        let counted = set.map_or(0, |set| {
            if set.settled || was_suspended { set.existing } else { set.existing.max(1) }
        });
        RoleCounts {
            wanted: set.map_or(0, |set| set.replicas),
            existing: num_pods.max(counted),
            ready: count(pods.iter().filter(|pod| pods::is_up(pod))),
        }
    }

    /// Termination message of a coordinator that found another run in the run directory.
    pub(super) fn directory_in_use(&self) -> Option<String> {
        let pod = self.pods.get(&Role::Coordinator)?.first()?;
        let containers = pod.status.as_ref()?.container_statuses.iter().flatten();
        let exit = containers
            .flat_map(|container| [&container.state, &container.last_state])
            .flatten()
            .filter_map(|state| state.terminated.as_ref())
            .find(|exit| exit.exit_code == EXIT_RUN_DIRECTORY_IN_USE)?;
        let lines = exit.message.as_deref().unwrap_or_default().lines();
        let last_line = lines.rev().find(|line| !line.trim().is_empty());
        let message = last_line.unwrap_or("the run directory belongs to another run");
        Some(message.trim_start_matches("error: ").to_owned())
    }

    /// The first pod that cannot be scheduled, and the reason.
    pub(super) fn blocked(&self) -> Option<String> {
        self.pods.values().flatten().find_map(|pod| {
            let conditions = pod.status.as_ref()?.conditions.iter().flatten();
            let unschedulable = conditions.into_iter().find(|condition| {
                condition.type_ == "PodScheduled"
                    && condition.reason.as_deref() == Some("Unschedulable")
            })?;
            let message = unschedulable.message.as_deref().unwrap_or("no node fits");
            Some(format!("{} cannot be scheduled: {message}", pod.name_any()))
        })
    }

    /// Start of the longest wait of a scheduled pod for its volumes: an object that it mounts is
    /// missing.
    pub(super) fn unmounted_since(&self) -> Option<Timestamp> {
        let waits_since = |pod: &Arc<Pod>| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let find = |type_: &str, status: &str| {
                conditions
                    .iter()
                    .find(|condition| condition.type_ == type_ && condition.status == status)
            };
            let scheduled = find("PodScheduled", "True")
                .filter(|_| pod.metadata.deletion_timestamp.is_none())?;
            find("PodReadyToStartContainers", "False")?;
            Some(scheduled.last_transition_time.as_ref()?.0)
        };
        self.pods.values().flatten().filter_map(waits_since).min()
    }
}

/// Base URL of a pod that has an address.
pub(super) fn url(pod: &Pod, port: u16) -> Option<String> {
    let address = pod.status.as_ref()?.pod_ip.as_ref().filter(|address| !address.is_empty())?;
    Some(if address.contains(':') {
        format!("http://[{address}]:{port}")
    } else {
        format!("http://{address}:{port}")
    })
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}
