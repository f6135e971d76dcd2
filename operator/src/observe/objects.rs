//! Objects of a job: own children by name, pods by role, and objects of other owners that have a
//! child's name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use rljob_crds::names::{COORDINATOR_PORT, EXIT_RUN_DIRECTORY_IN_USE, LABEL_ROLE};

use crate::cache::{ObservedChild, Pod};
use crate::children::{ChildName, Kind};
use crate::decide::{RoleCounts, Waiting};
use crate::desired::pin::LiveSet;
use crate::desired::{Role, meta};
use crate::pods::{self, PodFacts};
use crate::validate::Job;

/// Most pods whose events are read in a pass.
const MAX_UNEXPLAINED: usize = 4;

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
    /// `Kind name` of every object that has a child's name and another owner than an RLJob.
    pub(super) foreign: Vec<String>,
    /// The same for children of a deleted job of this name, until the garbage collector has deleted
    /// them.
    pub(super) leftovers: Vec<String>,
    /// Time since which a StatefulSet lacks pods, if this operator saw the start.
    pub(super) lacking_since: Option<Timestamp>,
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

/// An object that waits for a cause that its status does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unexplained {
    pub(super) name: String,
    pub(super) uid: String,
    /// Start of the wait, if the status has it.
    pub(super) since: Option<Timestamp>,
}

impl Objects {
    pub(super) fn sort(
        job: &Job,
        found: impl IntoIterator<Item = (ChildName, Arc<ObservedChild>)>,
        pods: Vec<Arc<Pod>>,
    ) -> Self {
        let mut objects = Self::default();
        for (name, child) in found {
            if child.owner.as_deref() == Some(job.uid.as_str()) {
                objects.children.insert(name, child);
            } else if child.is_of_job {
                objects.leftovers.push(format!("{} {}", name.0, name.1));
            } else {
                objects.foreign.push(format!("{} {}", name.0, name.1));
            }
        }
        let mut owners = BTreeMap::new();
        for role in Role::of(&job.spec) {
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

    /// Counts of pods of engines as counts of engines. An engine exists while it has a pod, and is
    /// ready when it has all of them and they are up.
    pub(super) fn in_engines(
        &self,
        role: Role,
        pods: RoleCounts,
        pods_per_engine: u32,
    ) -> RoleCounts {
        let mut engines = BTreeMap::<u32, u32>::new();
        for pod in self.pods.get(&role).into_iter().flatten() {
            let index = pods::ordinal(pod).checked_div(pods_per_engine).unwrap_or_default();
            let num_up = engines.entry(index).or_default();
            *num_up = num_up.saturating_add(u32::from(pods::is_up(pod)));
        }
        let needed = |pods: i32| pods.unsigned_abs().div_ceil(pods_per_engine.max(1));
        let in_engines = |pods: i32| i32::try_from(needed(pods)).unwrap_or(i32::MAX);
        RoleCounts {
            wanted: in_engines(pods.wanted),
            existing: in_engines(pods.existing).max(count(engines.keys())),
            ready: count(engines.values().filter(|num_up| **num_up >= pods_per_engine)),
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
        let log = rljob_logging::readable(exit.message.as_deref().unwrap_or_default());
        let last_line = log.lines().rev().find(|line| !line.trim().is_empty());
        let message = last_line.unwrap_or("the run directory belongs to another run");
        Some(message.trim_start_matches("error: ").to_owned())
    }

    /// What keeps pods from running, in their status or in a warning event: of each role the first
    /// cause that needs the user, else the first one. Those that need the user come first.
    pub(super) fn waiting(&self, warnings: Vec<Waiting>) -> Vec<Waiting> {
        let of_role = |pods: &Vec<Arc<Pod>>| {
            // The first minimum.
            let causes = pods.iter().filter_map(|pod| pods::waiting(pod));
            causes.min_by_key(|cause| !cause.needs_user)
        };
        let mut causes: Vec<_> = self.pods.values().filter_map(of_role).chain(warnings).collect();
        causes.sort_by_key(|cause| !cause.needs_user);
        causes
    }

    /// The objects whose warning events may explain why a pod does not start: scheduled pods
    /// without volumes, or a StatefulSet with fewer pods than it wants. Pods of a node that share
    /// a volume also share the kubelet's attempts to mount it, and each failed attempt is an event
    /// of one of them.
    pub(super) fn unexplained(&self, job: &Job) -> Vec<Unexplained> {
        let unmounted = self.pods.values().flatten().filter_map(|pod| {
            let since = Some(waits_for_volumes_since(pod)?);
            Some(Unexplained { name: pod.name_any(), uid: pod.uid()?, since })
        });
        let unmounted: Vec<_> = unmounted.take(MAX_UNEXPLAINED).collect();
        if !unmounted.is_empty() {
            return unmounted;
        }
        let lacking = self.lacking_set(job);
        let since = self.lacking_since;
        lacking.map(|(name, uid)| Unexplained { name, uid, since }).into_iter().collect()
    }

    /// Name and UID of the first StatefulSet that lacks pods.
    pub(super) fn lacking_set(&self, job: &Job) -> Option<(String, String)> {
        let lacks_pods =
            |set: &LiveSet, pods: usize| set.settled && i64::from(set.replicas) > pods as i64;
        let lacking = self
            .sets
            .iter()
            .find(|(role, set)| lacks_pods(set, self.pods.get(role).map_or(0, Vec::len)));
        let role = lacking?.0;
        let name = meta::role_name(job, *role);
        let child = self.children.get(&(Kind::StatefulSet, name.clone()))?;
        Some((name, child.uid.to_string()))
    }

    /// Start of the longest wait of a scheduled pod for its volumes: an object that it mounts is
    /// missing.
    pub(super) fn unmounted_since(&self) -> Option<Timestamp> {
        let pods = self.pods.values().flatten();
        pods.filter_map(|pod| waits_for_volumes_since(pod)).min()
    }
}

/// Time since which a scheduled pod waits for its volumes.
fn waits_for_volumes_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let find = |type_: &str, status: &str| {
        conditions.iter().find(|condition| condition.type_ == type_ && condition.status == status)
    };
    let scheduled =
        find("PodScheduled", "True").filter(|_| pod.metadata.deletion_timestamp.is_none())?;
    find("PodReadyToStartContainers", "False")?;
    Some(scheduled.last_transition_time.as_ref()?.0)
}

/// Address of a pod's port.
pub(super) fn address(pod: &Pod, port: u16) -> Option<SocketAddr> {
    let address = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some(SocketAddr::new(address, port))
}

/// Base URL of a pod that has an address.
pub(super) fn url(pod: &Pod, port: u16) -> Option<String> {
    let address = pod.status.as_ref()?.pod_ip.as_ref().filter(|address| !address.is_empty())?;
    Some(if address.contains(':') {
        format!("https://[{address}]:{port}")
    } else {
        format!("https://{address}:{port}")
    })
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}
