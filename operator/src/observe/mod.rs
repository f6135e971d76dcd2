//! What exists of a job, once a pass, from the [`cache`](crate::cache). No interpretation but sorting: own children by name, pods by role, and objects that have a
//! child's name and belong to somebody else.
//!
//! Only a name that the cache does not hold is asked for: before a child is made, an object without the job's label may have its name. Secrets are never read.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::GetParams;
use kube::{Client, ResourceExt};
use rljob_crds::failure_policy::FailureRole;
use rljob_crds::names::{CONDITION_SUSPENDED, COORDINATOR_PORT, EXIT_RUN_DIRECTORY_IN_USE, LABEL_ROLE};
use rljob_crds::status::RLJobStatus;
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::CoordinatorStatus;

use crate::cache::{Cache, Live};
use crate::children::{ChildName, Kind, readable};
use crate::decide::{Exit, Facts, RoleCounts, Roles, Wanted};
use crate::desired::pin::LiveSet;
use crate::desired::{Pinned, Role, meta};
use crate::pods::{self, PodFacts};
use crate::status;
use crate::validate::ValidatedJob;

/// What exists of a job.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The own children, but for the Secret.
    pub children: BTreeMap<ChildName, Arc<Live>>,
    /// The StatefulSets among them.
    pub sets: BTreeMap<Role, LiveSet>,
    /// Pods by role, by name; terminating ones included.
    pub pods: BTreeMap<Role, Vec<Arc<Pod>>>,
    /// `Kind name` of every object that has a child's name and is not this job's.
    pub foreign: Vec<String>,
}

/// What exists of a job. With a client, names that the cache does not hold are asked for.
///
/// # Errors
/// Any request that fails.
pub async fn observe(cache: &Cache, client: Option<&Client>, job: &ValidatedJob) -> kube::Result<Observed> {
    let mut found = Vec::new();
    let mut unknown = Vec::new();
    for name in readable(job) {
        match cache.child(&job.namespace, &name) {
            Some(live) => found.push((name, live)),
            None => unknown.push(name),
        }
    }
    if let Some(client) = client {
        let asked = try_join_all(unknown.into_iter().map(|name| look_up(client, &job.namespace, name))).await?;
        found.extend(asked.into_iter().flatten());
    }
    Ok(Observed::sort(job, found, cache.pods(&job.namespace, &job.name)))
}

/// What the API server has under a name. It may answer from its cache: what is then made is made only if there is nothing yet.
async fn look_up(client: &Client, namespace: &str, (kind, name): ChildName) -> kube::Result<Option<(ChildName, Arc<Live>)>> {
    match kind.api(client, Some(namespace)).get_with(&name, &GetParams::at("0")).await {
        Ok(object) => Ok(Some(((kind, name), Arc::new(Live::new(kind, &object))))),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Observed {
    fn sort(job: &ValidatedJob, found: Vec<(ChildName, Arc<Live>)>, pods: Vec<Arc<Pod>>) -> Self {
        let mut observed = Self::default();
        for (name, live) in found {
            if live.owner.as_deref() == Some(job.uid.as_str()) {
                observed.children.insert(name, live);
            } else {
                observed.foreign.push(format!("{} {}", name.0, name.1));
            }
        }
        let mut owners = BTreeMap::new();
        for role in Role::ALL {
            if let Some(live) = observed.children.get(&(Kind::StatefulSet, meta::role_name(job, role))) {
                owners.insert(role, live.uid.clone());
                observed.sets.extend(live.set.clone().map(|set| (role, set)));
            }
        }
        observed.sort_pods(&owners, pods);
        observed
    }

    /// Keeps the pods that one of the own StatefulSets controls, by role.
    fn sort_pods(&mut self, owners: &BTreeMap<Role, Box<str>>, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            let role = pod.labels().get(LABEL_ROLE).and_then(|role| Role::parse(role));
            let set = role.and_then(|role| owners.get(&role));
            let controlled = set.is_some() && crate::cache::owner(&pod.metadata) == set.map(|uid| &**uid);
            if let Some(role) = role.filter(|_| controlled) {
                self.pods.entry(role).or_default().push(pod);
            }
        }
        for role in self.pods.values_mut() {
            role.sort_by_key(|pod| pods::ordinal(pod));
        }
    }

    /// Whether there is anything left to remove.
    pub fn has_children(&self) -> bool {
        self.children.keys().any(|(kind, _)| matches!(kind, Kind::ConfigMap | Kind::StatefulSet))
    }

    /// What a coordinator said that ended because the run directory belongs to another run.
    fn directory_in_use(&self) -> Option<String> {
        let pod = self.pods.get(&Role::Coordinator)?.first()?;
        let containers = pod.status.as_ref()?.container_statuses.iter().flatten();
        let ends = containers.flat_map(|container| [&container.state, &container.last_state]).flatten().filter_map(|state| state.terminated.as_ref());
        let end = ends.into_iter().find(|end| end.exit_code == EXIT_RUN_DIRECTORY_IN_USE)?;
        let words = end.message.as_deref().and_then(|text| text.lines().rev().find(|line| !line.trim().is_empty()));
        Some(words.unwrap_or("the run directory belongs to another run").trim_start_matches("error: ").to_owned())
    }

    /// How containers ended that failed, the newest end of each. One whose pod is to go was told to end.
    fn exits(&self) -> Vec<Exit> {
        let pods = self.pods.iter().flat_map(|(role, pods)| pods.iter().map(move |pod| (*role, pod)));
        let staying = pods.filter(|(_, pod)| pod.metadata.deletion_timestamp.is_none());
        staying.filter_map(|(role, pod)| exit(role, pod)).collect()
    }

    /// The first pod that no node can take, and why.
    fn blocked(&self) -> Option<String> {
        self.pods.values().flatten().find_map(|pod| {
            let conditions = pod.status.as_ref()?.conditions.iter().flatten();
            let refused = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable"))?;
            Some(format!("{} cannot be scheduled: {}", pod.name_any(), refused.message.as_deref().unwrap_or("no node fits")))
        })
    }

    /// Since when a pod that has a node waits for its volumes: something that it mounts is missing.
    pub fn unmounted_since(&self) -> Option<Timestamp> {
        let waits = |pod: &Arc<Pod>| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let find = |type_: &str, status: &str| conditions.iter().find(|condition| condition.type_ == type_ && condition.status == status);
            let scheduled = find("PodScheduled", "True").filter(|_| pod.metadata.deletion_timestamp.is_none())?;
            find("PodReadyToStartContainers", "False")?;
            Some(scheduled.last_transition_time.as_ref()?.0)
        };
        self.pods.values().flatten().filter_map(waits).min()
    }

    /// The pods as plain facts.
    pub fn pod_facts(&self) -> Vec<PodFacts> {
        self.pods.iter().flat_map(|(role, all)| all.iter().map(|pod| pods::read(pod, *role, self.wants(*role, pods::ordinal(pod))))).collect()
    }

    /// Whether the role's StatefulSet wants a pod of that number.
    pub fn wants(&self, role: Role, ordinal: u32) -> bool {
        i64::from(ordinal) < i64::from(self.counts(role, false).wanted)
    }

    /// What the templates keep where this is wanted.
    pub fn pinned(&self, wanted: Wanted) -> Pinned {
        let run_config = self.children.iter().find_map(|((kind, _), live)| live.run_config.as_deref().filter(|_| *kind == Kind::ConfigMap));
        Pinned::from_live(run_config, &self.sets, wanted)
    }

    /// The coordinator pod: its UID, and its base URL once it has an address.
    pub fn coordinator(&self) -> Option<(String, Option<String>)> {
        let pod = self.pods.get(&Role::Coordinator)?.first()?;
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone()).filter(|address| !address.is_empty());
        let host = address.map(|address| if address.contains(':') { format!("[{address}]") } else { address });
        Some((pod.uid()?, host.map(|host| format!("http://{host}:{COORDINATOR_PORT}"))))
    }

    /// The facts that decisions rest on. `report` is what the coordinator of that pod UID said last.
    pub fn facts(&self, job: &ValidatedJob, old: &RLJobStatus, report: impl FnOnce(&str) -> Option<CoordinatorStatus>) -> Facts {
        let identity = self.coordinator().map(|(uid, _)| uid);
        let was_suspended = old.conditions.iter().any(|condition| condition.type_ == CONDITION_SUSPENDED && condition.status == "True");
        // An engine that is to leave is on the list no more, before its pod goes.
        let stays = |pod: &Pod| i64::from(pods::ordinal(pod)) < i64::from(job.spec.inference.replicas);
        let engines = self.pods.get(&Role::Inference).into_iter().flatten().filter(|pod| pod.metadata.deletion_timestamp.is_none() && stays(pod));
        let endpoint = |pod: &Arc<Pod>| EngineEndpoint { name: pod.name_any(), url: meta::engine_url(job, &pod.name_any()) };
        Facts {
            suspend: job.spec.suspend,
            generation: job.generation,
            recorded: status::recorded(old),
            coordinator: identity.as_deref().and_then(report),
            coordinator_identity: identity,
            directory_in_use: self.directory_in_use(),
            blocked: self.blocked(),
            incidents: Vec::new(),
            exit: None,
            exits: self.exits(),
            engines: engines.map(endpoint).collect(),
            roles: Roles {
                inference: self.counts(Role::Inference, was_suspended),
                coordinator: self.counts(Role::Coordinator, was_suspended),
                trainer: self.counts(Role::Trainer, was_suspended),
            },
        }
    }

    fn counts(&self, role: Role, was_suspended: bool) -> RoleCounts {
        let pods = self.pods.get(&role).map(Vec::as_slice).unwrap_or_default();
        let (seen, set) = (count(pods.iter()), self.sets.get(&role));
        // Pods may be seen later than their set's size: until its controller has acted on that, some may be there. A job that was suspended had none, and an edit of
        // its spec, which its sets' controller has yet to see, makes none.
        let counted = set.map_or(0, |set| if set.settled || was_suspended { set.existing } else { set.existing.max(1) });
        let ready = count(pods.iter().filter(|pod| pods::is_up(pod)));
        RoleCounts { wanted: set.map_or(0, |set| set.replicas), existing: seen.max(counted), ready }
    }
}

fn exit(role: Role, pod: &Pod) -> Option<Exit> {
    let containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    let mut ends = containers.flat_map(|container| [&container.state, &container.last_state]).flatten().filter_map(|state| state.terminated.as_ref());
    let end = ends.find(|end| end.exit_code != 0)?;
    let role = match role {
        Role::Inference => FailureRole::Inference,
        Role::Coordinator => FailureRole::Coordinator,
        Role::Trainer => FailureRole::Trainer,
    };
    Some(Exit {
        role,
        name: pod.name_any(),
        reason: end.reason.clone().unwrap_or_default(),
        exit_code: end.exit_code,
        message: end.message.clone().unwrap_or_default(),
    })
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::validated;
    use rljob_crds::names::LABEL_JOB;
    use serde_json::json;

    fn pod(name: &str, role: &str, owner: &str, more: &serde_json::Value) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {
                "name": name, "uid": format!("uid of {name}"), "labels": { LABEL_JOB: "sums", LABEL_ROLE: role },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "any", "uid": owner, "controller": true }],
            },
            "status": { "podIP": "fd00::7", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        if more.is_string() {
            pod["metadata"]["deletionTimestamp"] = more.clone();
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn child(kind: Kind, name: &str, uid: &str, owner: &str, more: &serde_json::Value) -> (ChildName, Arc<Live>) {
        let mut object = json!({ "metadata": { "name": name, "uid": uid, "generation": 1,
            "ownerReferences": [{ "apiVersion": "a/v1", "kind": "K", "name": "n", "uid": owner, "controller": true }] } });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ((kind, name.to_owned()), Arc::new(Live::new(kind, &serde_json::from_value(object).unwrap())))
    }

    fn set(name: &str, uid: &str, replicas: i32) -> (ChildName, Arc<Live>) {
        let more = json!({ "spec": { "replicas": replicas }, "status": { "replicas": 1, "observedGeneration": 1 } });
        child(Kind::StatefulSet, name, uid, &validated().uid, &more)
    }

    fn observed() -> Observed {
        let (here, going) = (json!(null), json!("2027-01-15T08:00:00Z"));
        let pods = vec![
            pod("sums-inference-10", "inference", "engines", &here),
            pod("sums-inference-2", "inference", "engines", &here),
            pod("sums-inference-1", "inference", "engines", &going),
            pod("sums-inference-0", "inference", "somebody else", &here),
            pod("sums-coordinator-0", "coordinator", "coordinators", &here),
            pod("sums-trainer-0", "trainer", "no set of ours", &here),
        ];
        Observed::sort(&validated(), vec![set("sums-inference", "engines", 3), set("sums-coordinator", "coordinators", 1)], pods)
    }

    #[test]
    fn only_own_pods_count_and_a_terminating_engine_leaves_the_list() {
        let mut job = validated();
        job.spec.inference.replicas = 11;
        let facts = observed().facts(&job, &RLJobStatus::default(), |_| None);
        let names: Vec<&str> = facts.engines.iter().map(|engine| engine.name.as_str()).collect();
        assert_eq!(names, ["sums-inference-2", "sums-inference-10"]);
        let mut fewer = validated();
        fewer.spec.inference.replicas = 2;
        assert_eq!(observed().facts(&fewer, &RLJobStatus::default(), |_| None).engines, [], "they are to leave");
        assert_eq!(facts.engines[0].url, "http://sums-inference-2.sums-inference.lab.svc:30000");
        let counts = |wanted, existing, ready| RoleCounts { wanted, existing, ready };
        assert_eq!(facts.roles, Roles { inference: counts(3, 3, 2), coordinator: counts(1, 1, 1), trainer: counts(0, 0, 0) });
    }

    #[test]
    fn pods_that_are_not_seen_yet_are_not_taken_for_gone() {
        let existing = |replicas: i32, counted: i32, observed: i64, was_suspended: bool| {
            let more = json!({ "spec": { "replicas": replicas }, "status": { "replicas": counted, "observedGeneration": observed } });
            let set = child(Kind::StatefulSet, "sums-trainer", "trainers", &validated().uid, &more);
            Observed::sort(&validated(), vec![set], Vec::new()).counts(Role::Trainer, was_suspended).existing
        };
        let counts = [existing(0, 0, 1, false), existing(0, 2, 1, false), existing(0, 0, 0, false), existing(0, 0, 0, true)];
        assert_eq!(counts, [0, 2, 1, 0], "settled, with two pods, not looked at yet, edited while suspended");
    }

    #[test]
    fn what_a_pod_cannot_do_is_said_in_its_own_words() {
        let mut observed = observed();
        assert_eq!((observed.directory_in_use(), observed.blocked()), (None, None));
        let message = "a log line\nerror: it belongs to lab/other\n";
        let status = json!({
            "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient nvidia.com/gpu" }],
            "containerStatuses": [{ "name": "coordinator", "image": "", "imageID": "", "ready": false, "restartCount": 1,
                "lastState": { "terminated": { "exitCode": 78, "message": message } } }],
        });
        let pod = &mut observed.pods.get_mut(&Role::Coordinator).unwrap()[0];
        Arc::make_mut(pod).status = Some(serde_json::from_value(status).unwrap());
        assert_eq!(observed.directory_in_use().as_deref(), Some("it belongs to lab/other"));
        assert_eq!(observed.blocked().as_deref(), Some("sums-coordinator-0 cannot be scheduled: 1 Insufficient nvidia.com/gpu"));
    }

    #[test]
    fn a_pod_that_waits_for_its_volumes_is_seen() {
        let mut observed = observed();
        assert_eq!(observed.unmounted_since(), None);
        let status = json!({ "conditions": [
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z" },
            { "type": "PodReadyToStartContainers", "status": "False" },
        ] });
        let pod = &mut observed.pods.get_mut(&Role::Inference).unwrap()[1];
        Arc::make_mut(pod).status = Some(serde_json::from_value(status).unwrap());
        assert_eq!(observed.unmounted_since(), Some("2027-01-15T08:00:00Z".parse().unwrap()));
    }

    #[test]
    fn a_container_that_failed_is_told_of_unless_its_pod_is_to_go() {
        let mut observed = observed();
        let ended = |code: i32| json!({ "exitCode": code, "reason": if code == 137 { "OOMKilled" } else { "Error" }, "message": "last words" });
        for (pod, code) in observed.pods.get_mut(&Role::Inference).unwrap().iter_mut().zip([0, 137, 1]) {
            let container =
                json!({ "name": "inference", "image": "", "imageID": "", "ready": false, "restartCount": 1, "lastState": { "terminated": ended(code) } });
            Arc::make_mut(pod).status = Some(serde_json::from_value(json!({ "containerStatuses": [container] })).unwrap());
        }
        let going = Arc::make_mut(&mut observed.pods.get_mut(&Role::Inference).unwrap()[2]);
        going.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2027-01-15T08:00:00Z")).unwrap());
        let expected = Exit {
            role: FailureRole::Inference,
            name: "sums-inference-2".to_owned(),
            reason: "OOMKilled".to_owned(),
            exit_code: 137,
            message: "last words".to_owned(),
        };
        assert_eq!(observed.exits(), [expected]);
    }

    #[test]
    fn the_coordinator_is_its_pods_uid_and_address() {
        assert_eq!(observed().coordinator(), Some(("uid of sums-coordinator-0".to_owned(), Some("http://[fd00::7]:8080".to_owned()))));
        assert_eq!(Observed::default().coordinator(), None);
    }

    #[test]
    fn a_child_is_ours_by_its_controlling_owners_uid() {
        let job = validated();
        let found = [("sums-run", job.uid.as_str()), ("sums", "another")].map(|(name, owner)| child(Kind::ConfigMap, name, "u", owner, &json!({})));
        let observed = Observed::sort(&job, found.into(), Vec::new());
        let own: Vec<String> = observed.children.keys().map(|(kind, name)| format!("{kind} {name}")).collect();
        assert_eq!((own, observed.foreign), (vec!["ConfigMap sums-run".to_owned()], vec!["ConfigMap sums".to_owned()]));
    }
}
