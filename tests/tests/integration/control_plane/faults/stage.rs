//! A job on a stage: its namespace, the proxy that its operator talks through, its played pods and coordinators; and its end state, to be compared with another's.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rljob_tests::process::wait_until;
use rljob_tests::proxy::{Call, Verb, Write};
use rljob_tests::{Api, Namespace, Proxy};
use serde_json::{Map, Value, json};

use super::super::cluster;
use super::super::operator::{LIMIT, Operator, namespace_with};
use super::super::played::Play;

/// A time without writes after which an operator is at rest: longer than any of its delays between two steps of one change.
const REST: Duration = Duration::from_millis(1500);
/// Cases that run at once.
const LANES: usize = 6;
/// What an operator makes of a job, and the job; by group, resource.
const KINDS: [(&str, &str); 8] = [
    ("apis/rljob.dev/v1alpha1", "rljobs"),
    ("apis/apps/v1", "statefulsets"),
    ("api/v1", "services"),
    ("api/v1", "configmaps"),
    ("api/v1", "secrets"),
    ("apis/networking.k8s.io/v1", "networkpolicies"),
    ("apis/policy/v1", "poddisruptionbudgets"),
    ("api/v1", "pods"),
];

/// What the operator sees is real, but for what the proxy does to it; pods and coordinators are played.
pub(super) struct Stage {
    pub(super) proxy: Proxy,
    pub(super) play: Play,
    operator: Option<Operator>,
    pub(super) api: Api,
    pub(super) namespace: Namespace,
}

impl Stage {
    /// The job `sample`, changed by a merge patch; no operator yet.
    pub(super) fn set(prefix: &str, patch: &Value) -> Self {
        let namespace = namespace_with(prefix, patch);
        Self { proxy: Proxy::start(cluster()).unwrap(), play: Play::start(&namespace), operator: None, api: cluster().api().unwrap(), namespace }
    }

    /// A job that makes steps, as far as its operator is told.
    pub(super) fn running(prefix: &str, patch: &Value) -> Self {
        let mut stage = Self::set(prefix, patch);
        stage.start_operator();
        stage.wait_for("Ready");
        stage
    }

    /// Starts an operator; one that was there is killed.
    pub(super) fn start_operator(&mut self) {
        self.kill_operator();
        self.operator = Some(Operator::start_at(&self.namespace, "rljob:a", Some(&self.proxy.server())));
    }

    pub(super) fn kill_operator(&mut self) {
        self.operator = None;
    }

    /// What the operator has said.
    pub(super) fn words(&self) -> String {
        self.operator.as_ref().map(Operator::words).unwrap_or_default()
    }

    pub(super) fn path(&self, group: &str, resource: &str) -> String {
        format!("/{group}/namespaces/{}/{resource}", self.namespace.name)
    }

    pub(super) fn job_path(&self) -> String {
        self.path("apis/rljob.dev/v1alpha1", "rljobs/sample")
    }

    pub(super) fn job(&self) -> Value {
        self.api.get(&self.job_path()).unwrap()
    }

    /// The version of the job now.
    pub(super) fn version(&self) -> String {
        self.job()["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    /// The uid of a pod, once it runs.
    pub(super) fn running_pod(&self, name: &str) -> String {
        let pod = || self.api.get(&self.path("api/v1", &format!("pods/{name}")));
        wait_until(&format!("{name} to run"), LIMIT, || Ok(pod()?["status"]["phase"] == "Running")).unwrap();
        pod().unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Removes a pod as a lost node does, and waits for its successor.
    pub(super) fn lose_pod(&self, name: &str) {
        let before = self.running_pod(name);
        self.api.delete(&self.path("api/v1", &format!("pods/{name}")), &json!({"gracePeriodSeconds": 0})).unwrap();
        let uid = || Ok(self.api.get(&self.path("api/v1", &format!("pods/{name}")))?["metadata"]["uid"] != before.as_str());
        wait_until(&format!("the successor of {name}"), LIMIT, uid).unwrap();
        self.running_pod(name);
    }

    pub(super) fn uid(&self) -> String {
        self.job()["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(super) fn patch(&self, spec: &Value) {
        self.api.patch(&self.job_path(), &json!({"spec": spec})).unwrap();
    }

    /// Waits until the operator says of this spec that the condition is `True`.
    pub(super) fn wait_for(&self, condition: &str) {
        let holds = || {
            let job = self.job();
            Ok(job["status"]["observedGeneration"] == job["metadata"]["generation"] && is_true(&job, condition))
        };
        wait_until(&format!("{condition} of {}", self.namespace.name), LIMIT, holds)
            .unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", self.job(), self.words()));
    }

    /// What the operator wrote so far in the job's namespace.
    pub(super) fn writes(&self) -> Vec<Write> {
        self.proxy.writes().into_iter().filter(|write| write.call.namespace == self.namespace.name).collect()
    }

    /// Means those writes.
    pub(super) fn own_writes(&self) -> impl Fn(&Call) -> bool + Send + 'static {
        let namespace = self.namespace.name.clone();
        move |call| call.is_write() && call.namespace == namespace
    }

    /// Waits until the status has these fields.
    pub(super) fn wait_for_status(&self, fields: &Value) {
        let has = || {
            let status = self.job()["status"].take();
            Ok(fields.as_object().into_iter().flatten().all(|(name, value)| status[name] == *value))
        };
        wait_until(&format!("{fields}"), LIMIT, has).unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", self.job(), self.words()));
    }

    /// Waits until the operator, which has just been started, has asked the coordinator.
    pub(super) fn wait_for_question(&self) {
        let asked = || self.play.run.lock().unwrap_or_else(PoisonError::into_inner).questions;
        let before = asked();
        wait_until("a question to the coordinator", LIMIT, || Ok(asked() > before)).unwrap_or_else(|error| panic!("{error:#}\n{}", self.words()));
    }

    /// Waits until the operator writes nothing more, and says how often it wrote what: the oracle of duplicates.
    pub(super) fn rest(&self) -> Vec<Write> {
        let (mut before, mut since, start) = (self.writes().len(), Instant::now(), Instant::now());
        wait_until("the operator to rest", LIMIT, || {
            let now = self.writes().len();
            if now != before {
                (before, since) = (now, Instant::now());
            }
            Ok(since.elapsed() >= REST)
        })
        .unwrap_or_else(|error| panic!("{error:#} after {:.0} s\n{}", start.elapsed().as_secs_f64(), listed(&self.writes())));
        self.writes()
    }

    /// Everything of the job, without what differs between two runs that are equal.
    pub(super) fn end_state(&self) -> BTreeMap<String, Value> {
        let job = self.job();
        let (uid, namespace) = (job["metadata"]["uid"].as_str().unwrap(), self.namespace.name.as_str());
        let mut state = BTreeMap::new();
        for (group, resource) in KINDS {
            for mut object in self.list(group, resource) {
                normalise(&mut object, resource);
                let text = object.to_string().replace(uid, "UID").replace(uid.split('-').next().unwrap(), "U").replace(namespace, "NAMESPACE");
                let object: Value = serde_json::from_str(&text).unwrap();
                state.insert(format!("{resource}/{}", object["metadata"]["name"].as_str().unwrap()), object);
            }
        }
        state
    }

    /// Waits until everything is as in this end state.
    pub(super) fn wait_to_be(&self, state: &BTreeMap<String, Value>, what: &str) {
        let is = || Ok(differences(&self.end_state(), state).is_empty());
        wait_until("the end state", LIMIT, is)
            .unwrap_or_else(|error| panic!("{what}: {error:#}\n{:#?}\n{}\n{}", differences(&self.end_state(), state), listed(&self.writes()), self.words()));
    }

    /// Objects that have the job's name at their beginning.
    pub(super) fn list(&self, group: &str, resource: &str) -> Vec<Value> {
        let mut list = self.api.get(&self.path(group, resource)).unwrap();
        let Value::Array(items) = list["items"].take() else { return Vec::new() };
        items.into_iter().filter(|object| object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("sample"))).collect()
    }
}

/// Goes through the cases, as many at once as wait for each other's servers anyway.
pub(super) fn in_lanes<T: Send>(cases: Vec<T>, run: impl Fn(T) + Sync) {
    let cases = Mutex::new(cases.into_iter());
    let next = || cases.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(case) = next() {
                    run(case);
                }
            });
        }
    });
}

pub(super) fn is_true(job: &Value, condition: &str) -> bool {
    job["status"]["conditions"].as_array().into_iter().flatten().any(|seen| seen["type"] == condition && seen["status"] == "True")
}

/// One write a line; those that changed nothing are left out.
pub(super) fn listed(writes: &[Write]) -> String {
    let told = writes.iter().filter(|write| write.changed || write.code >= 300);
    told.map(|write| format!("{} {}", write.call, write.code)).collect::<Vec<_>>().join("\n")
}

/// Where two end states differ, a line each.
pub(super) fn differences(seen: &BTreeMap<String, Value>, expected: &BTreeMap<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    for name in seen.keys().chain(expected.keys().filter(|name| !seen.contains_key(*name))) {
        let of = |state: &BTreeMap<String, Value>| state.get(name).cloned().unwrap_or_default();
        compare(name, &of(seen), &of(expected), &mut found);
    }
    found
}

fn compare(path: &str, seen: &Value, expected: &Value, found: &mut Vec<String>) {
    match (seen, expected) {
        (Value::Object(seen), Value::Object(expected)) => {
            for key in seen.keys().chain(expected.keys().filter(|key| !seen.contains_key(*key))) {
                let of = |fields: &Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
                compare(&format!("{path}.{key}"), &of(seen), &of(expected), found);
            }
        }
        (Value::Array(seen), Value::Array(expected)) if seen.len() == expected.len() => {
            for (index, (seen, expected)) in seen.iter().zip(expected).enumerate() {
                compare(&format!("{path}[{index}]"), seen, expected, found);
            }
        }
        _ if seen == expected => {}
        _ => found.push(format!("{path}: {seen} is not {expected}")),
    }
}

/// How often each object was made and removed. Events tell, and are no state.
pub(super) fn made_and_removed(writes: &[Write], uid: &str) -> BTreeMap<String, usize> {
    let lasting = |write: &&Write| matches!(write.call.verb, Verb::Create | Verb::Delete) && write.call.resource != "events" && write.code < 300;
    let mut counts = BTreeMap::new();
    for write in writes.iter().filter(lasting) {
        *counts.entry(write.call.to_string().replace(uid.split('-').next().unwrap_or_default(), "U")).or_default() += 1;
    }
    counts
}

/// Removes what depends on time and identity, and what other programs keep in a status.
fn normalise(object: &mut Value, resource: &str) {
    let keep_status = resource == "rljobs";
    let fields = object.as_object_mut().unwrap();
    if !keep_status {
        fields.remove("status");
    }
    if resource == "secrets" {
        let keys: Map<String, Value> = fields["data"].as_object().unwrap().keys().map(|key| (key.clone(), json!("token"))).collect();
        fields["data"] = Value::Object(keys);
    }
    if let Some(annotations) = fields["metadata"]["annotations"].as_object_mut() {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration"); // what a person said first, not what is
    }
    if resource == "pods" {
        fields.remove("spec"); // it is that of the StatefulSet, with its own uid in names
    }
    scrub(object);
}

/// Identities and versions go; of a time it stays that it is set.
fn scrub(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // Incidents tell what happened on the way.
            for name in [
                "incidents",
                "rljob.dev/sha256",
                "uid",
                "resourceVersion",
                "generation",
                "observedGeneration",
                "managedFields",
                "creationTimestamp",
                "controller-revision-hash",
                "coordinatorUid",
            ] {
                fields.remove(name);
            }
            fields.values_mut().for_each(scrub);
        }
        // 2026-11-21T23:17:20Z
        Value::String(text) if text.len() == 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T' => *value = json!("a time"),
        Value::Array(items) => items.iter_mut().for_each(scrub),
        _ => {}
    }
}
