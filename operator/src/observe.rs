//! Reads what exists of a job, once a pass. No interpretation but sorting: own children by role, and objects that have a child's name and belong to somebody else.
//!
//! Secrets are never read.

use std::collections::BTreeMap;

use futures::future::{try_join_all, try_join3};
use futures::try_join;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use rljob_crds::names::{COORDINATOR_PORT, EXIT_RUN_DIRECTORY_IN_USE, LABEL_JOB, LABEL_ROLE};
use rljob_crds::status::RLJobStatus;
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::CoordinatorStatus;

use crate::decide::{Facts, RoleCounts, Roles};
use crate::desired::{Pinned, Role, meta};
use crate::pods::{self, PodFacts};
use crate::status;
use crate::validate::ValidatedJob;

/// What exists of a job.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The run configuration, if it is there.
    pub config_map: Option<ConfigMap>,
    /// The StatefulSets that are there.
    pub stateful_sets: BTreeMap<Role, StatefulSet>,
    /// Pods by role, by name; terminating ones included.
    pub pods: BTreeMap<Role, Vec<Pod>>,
    /// `Kind name` of every object that has a child's name and is not this job's.
    pub foreign: Vec<String>,
}

/// Reads everything of a job.
///
/// # Errors
/// Any request that fails.
pub async fn observe(client: &Client, job: &ValidatedJob) -> kube::Result<Observed> {
    let namespace = job.namespace.as_str();
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let stateful_sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (config_map_name, selector) = (meta::config_map_name(job), ListParams::default().labels(&format!("{LABEL_JOB}={}", job.name)));
    let role_names = Role::ALL.map(|role| meta::role_name(job, role));
    let (config_map, sets, pods, mut foreign) = try_join!(
        config_maps.get_opt(&config_map_name),
        try_join_all(role_names.iter().map(|name| stateful_sets.get_opt(name))),
        pods.list(&selector),
        foreign(client, job, &role_names),
    )?;
    let (config_map, stranger) = own_or_foreign(job, config_map);
    foreign.extend(stranger);
    let mut observed = Observed { config_map, foreign, ..Observed::default() };
    for (role, set) in Role::ALL.into_iter().zip(sets) {
        let (own, stranger) = own_or_foreign(job, set);
        observed.foreign.extend(stranger);
        observed.stateful_sets.extend(own.map(|set| (role, set)));
    }
    observed.sort_pods(pods.items);
    Ok(observed)
}

/// Objects of the kinds that need not be read whole.
async fn foreign(client: &Client, job: &ValidatedJob, role_names: &[String; 3]) -> kube::Result<Vec<String>> {
    let services = Api::<Service>::namespaced(client.clone(), &job.namespace);
    let policies = Api::<NetworkPolicy>::namespaced(client.clone(), &job.namespace);
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), &job.namespace);
    let budget_name = meta::role_name(job, Role::Inference);
    let (services, policy, budget) = try_join3(
        try_join_all(role_names.iter().map(|name| services.get_metadata_opt(name))),
        policies.get_metadata_opt(&job.name),
        budgets.get_metadata_opt(&budget_name),
    )
    .await?;
    let mut found: Vec<String> =
        services.into_iter().flatten().filter(|object| !is_own(job, &object.metadata)).map(|object| named::<Service>(&object.metadata)).collect();
    found.extend(policy.filter(|object| !is_own(job, &object.metadata)).map(|object| named::<NetworkPolicy>(&object.metadata)));
    found.extend(budget.filter(|object| !is_own(job, &object.metadata)).map(|object| named::<PodDisruptionBudget>(&object.metadata)));
    Ok(found)
}

fn own_or_foreign<K: Resource<DynamicType = ()>>(job: &ValidatedJob, object: Option<K>) -> (Option<K>, Option<String>) {
    match object {
        Some(object) if is_own(job, object.meta()) => (Some(object), None),
        Some(object) => (None, Some(named::<K>(object.meta()))),
        None => (None, None),
    }
}

fn is_own(job: &ValidatedJob, metadata: &ObjectMeta) -> bool {
    metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true) && owner.uid == job.uid)
}

fn named<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta) -> String {
    format!("{} {}", K::kind(&()), metadata.name.as_deref().unwrap_or_default())
}

impl Observed {
    /// Keeps the pods that one of the own StatefulSets controls, by role.
    fn sort_pods(&mut self, pods: Vec<Pod>) {
        for pod in pods {
            let role = pod.labels().get(LABEL_ROLE).and_then(|role| Role::parse(role));
            let set = role.and_then(|role| self.stateful_sets.get(&role)).and_then(ResourceExt::uid);
            let controlled = pod.owner_references().iter().any(|owner| owner.controller == Some(true) && Some(&owner.uid) == set.as_ref());
            if let Some(role) = role.filter(|_| controlled) {
                self.pods.entry(role).or_default().push(pod);
            }
        }
        for role in self.pods.values_mut() {
            role.sort_by_key(pods::ordinal);
        }
    }

    /// Whether there is anything left to remove.
    pub fn has_children(&self) -> bool {
        self.config_map.is_some() || !self.stateful_sets.is_empty()
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

    /// The first pod that no node can take, and why.
    fn blocked(&self) -> Option<String> {
        self.pods.values().flatten().find_map(|pod| {
            let conditions = pod.status.as_ref()?.conditions.iter().flatten();
            let refused = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable"))?;
            Some(format!("{} cannot be scheduled: {}", pod.name_any(), refused.message.as_deref().unwrap_or("no node fits")))
        })
    }

    /// The pods as plain facts.
    pub fn pod_facts(&self) -> Vec<PodFacts> {
        self.pods.iter().flat_map(|(role, all)| all.iter().map(|pod| pods::read(pod, *role, self.wants(*role, pods::ordinal(pod))))).collect()
    }

    /// Whether the role's StatefulSet wants a pod of that number.
    pub fn wants(&self, role: Role, ordinal: u32) -> bool {
        i64::from(ordinal) < i64::from(self.counts(role).wanted)
    }

    /// What the templates of the next pass keep.
    pub fn pinned(&self) -> Pinned {
        Pinned::from_live(self.config_map.as_ref(), &self.stateful_sets)
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
        let engines = self.pods.get(&Role::Inference).into_iter().flatten().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let endpoint = |pod: &Pod| EngineEndpoint { name: pod.name_any(), url: meta::engine_url(job, &pod.name_any()) };
        Facts {
            suspend: job.spec.suspend,
            generation: job.generation,
            recorded: status::recorded(old),
            coordinator: identity.as_deref().and_then(report),
            coordinator_identity: identity,
            directory_in_use: self.directory_in_use(),
            blocked: self.blocked(),
            incidents: Vec::new(),
            engines: engines.map(endpoint).collect(),
            roles: Roles { inference: self.counts(Role::Inference), coordinator: self.counts(Role::Coordinator), trainer: self.counts(Role::Trainer) },
        }
    }

    fn counts(&self, role: Role) -> RoleCounts {
        let pods = self.pods.get(&role).map(Vec::as_slice).unwrap_or_default();
        let wanted = self.stateful_sets.get(&role).and_then(|set| set.spec.as_ref()?.replicas);
        RoleCounts { wanted: wanted.unwrap_or(0), existing: count(pods.iter()), ready: count(pods.iter().filter(|pod| pods::is_up(pod))) }
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::validated;
    use serde_json::json;

    fn pod(name: &str, role: &str, owner: &str, more: &serde_json::Value) -> Pod {
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
        serde_json::from_value(pod).unwrap()
    }

    fn observed() -> Observed {
        let set = |uid: &str, replicas: i32| {
            let set = json!({ "metadata": { "uid": uid }, "spec": { "replicas": replicas, "selector": {}, "template": {} } });
            serde_json::from_value::<StatefulSet>(set).unwrap()
        };
        let stateful_sets = BTreeMap::from([(Role::Inference, set("engines", 3)), (Role::Coordinator, set("coordinators", 1))]);
        let mut observed = Observed { stateful_sets, ..Observed::default() };
        let (here, going) = (json!(null), json!("2027-01-15T08:00:00Z"));
        observed.sort_pods(vec![
            pod("sums-inference-10", "inference", "engines", &here),
            pod("sums-inference-2", "inference", "engines", &here),
            pod("sums-inference-1", "inference", "engines", &going),
            pod("sums-inference-0", "inference", "somebody else", &here),
            pod("sums-coordinator-0", "coordinator", "coordinators", &here),
            pod("sums-trainer-0", "trainer", "no set of ours", &here),
        ]);
        observed
    }

    #[test]
    fn only_own_pods_count_and_a_terminating_engine_leaves_the_list() {
        let facts = observed().facts(&validated(), &RLJobStatus::default(), |_| None);
        let names: Vec<&str> = facts.engines.iter().map(|engine| engine.name.as_str()).collect();
        assert_eq!(names, ["sums-inference-2", "sums-inference-10"]);
        assert_eq!(facts.engines[0].url, "http://sums-inference-2.sums-inference.lab.svc:30000");
        let counts = |wanted, existing, ready| RoleCounts { wanted, existing, ready };
        assert_eq!(facts.roles, Roles { inference: counts(3, 3, 2), coordinator: counts(1, 1, 1), trainer: counts(0, 0, 0) });
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
        observed.pods.get_mut(&Role::Coordinator).unwrap()[0].status = Some(serde_json::from_value(status).unwrap());
        assert_eq!(observed.directory_in_use().as_deref(), Some("it belongs to lab/other"));
        assert_eq!(observed.blocked().as_deref(), Some("sums-coordinator-0 cannot be scheduled: 1 Insufficient nvidia.com/gpu"));
    }

    #[test]
    fn the_coordinator_is_its_pods_uid_and_address() {
        assert_eq!(observed().coordinator(), Some(("uid of sums-coordinator-0".to_owned(), Some("http://[fd00::7]:8080".to_owned()))));
        assert_eq!(Observed::default().coordinator(), None);
    }

    #[test]
    fn an_object_is_ours_by_its_controlling_owners_uid() {
        let owned = |uid: &str, controller: bool| {
            serde_json::from_value(
                json!({ "name": "sums-run", "ownerReferences": [{ "apiVersion": "a/v1", "kind": "K", "name": "n", "uid": uid, "controller": controller }] }),
            )
            .unwrap()
        };
        let job = validated();
        assert!(is_own(&job, &owned(&job.uid, true)));
        assert!(!is_own(&job, &owned(&job.uid, false)));
        assert!(!is_own(&job, &owned("another", true)));
        assert!(!is_own(&job, &ObjectMeta::default()));
    }
}
