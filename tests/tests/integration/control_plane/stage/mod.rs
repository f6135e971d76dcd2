//! A job on a stage: its namespace, the proxy that its operator talks through, its played pods and
//! coordinators.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use rljob_tests::process::{wait_until, wait_until_still};
use rljob_tests::proxy::{Call, Verb, Write};
use rljob_tests::{Api, Namespace, Proxy};
use serde_json::{Value, json};

use super::cluster;
use super::operator::{LIMIT, Operator, namespace_with};
use super::played::Play;

mod end_state;

pub(super) use end_state::differences;

/// A time without writes after which an operator is at rest: longer than any of its delays between
/// two steps of one change.
const REST: Duration = Duration::from_millis(1500);
/// Cases that run at once.
const LANES: usize = 6;

/// What the operator sees is real, but for what the proxy does to it; pods and coordinators are
/// played.
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
        Self {
            proxy: Proxy::start(cluster()).unwrap(),
            play: Play::start(&namespace),
            operator: None,
            api: cluster().api().unwrap(),
            namespace,
        }
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
        self.start_operator_of("rljob:a");
    }

    /// One whose own image is another.
    pub(super) fn start_operator_of(&mut self, image: &str) {
        self.kill_operator();
        self.operator =
            Some(Operator::start_at(&self.namespace, image, Some(&self.proxy.server()), &[]));
    }

    /// Passes and requests to the API server of the operator that runs.
    pub(super) fn passes_and_requests(&self) -> anyhow::Result<(f64, f64)> {
        self.operator.as_ref().context("no operator runs")?.passes_and_requests()
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
        wait_until(&format!("{name} to run"), LIMIT, || Ok(pod()?["status"]["phase"] == "Running"))
            .unwrap();
        pod().unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Removes a pod as a lost node does, and waits for its successor.
    pub(super) fn lose_pod(&self, name: &str) {
        let before = self.running_pod(name);
        self.api
            .delete(
                &self.path("api/v1", &format!("pods/{name}")),
                &json!({"gracePeriodSeconds": 0}),
            )
            .unwrap();
        let uid = || {
            Ok(self.api.get(&self.path("api/v1", &format!("pods/{name}")))?["metadata"]["uid"]
                != before.as_str())
        };
        wait_until(&format!("the successor of {name}"), LIMIT, uid).unwrap();
        self.running_pod(name);
    }

    pub(super) fn uid(&self) -> String {
        self.job()["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(super) fn patch(&self, spec: &Value) {
        self.api.patch(&self.job_path(), &json!({"spec": spec})).unwrap();
    }

    /// Brings a job that runs to a state, by its name; one that is reached otherwise is left as it
    /// is.
    pub(super) fn bring_to(&self, state: &str) {
        let ends =
            |end| self.play.run.lock().unwrap_or_else(PoisonError::into_inner).end = Some(end);
        match state {
            "draining" => self.patch(&json!({"suspend": true})),
            "suspended" => {
                self.patch(&json!({"suspend": true}));
                self.wait_for("Suspended");
            }
            "failed" => {
                ends("Failed");
                self.wait_for("Stalled");
            }
            "finished" | "removed" => {
                ends("Finished");
                self.wait_for("Succeeded");
            }
            _ => {}
        }
    }

    /// Waits until the operator says of this spec that the condition is `True`.
    pub(super) fn wait_for(&self, condition: &str) {
        let holds = || {
            let job = self.job();
            Ok(job["status"]["observedGeneration"] == job["metadata"]["generation"]
                && is_true(&job, condition))
        };
        wait_until(&format!("{condition} of {}", self.namespace.name), LIMIT, holds)
            .unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", self.job(), self.words()));
    }

    /// What the operator wrote so far in the job's namespace.
    pub(super) fn writes(&self) -> Vec<Write> {
        self.proxy
            .writes()
            .into_iter()
            .filter(|write| write.call.namespace == self.namespace.name)
            .collect()
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
        wait_until(&format!("{fields}"), LIMIT, has)
            .unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", self.job(), self.words()));
    }

    /// Waits until the operator, which has just been started, has asked the coordinator.
    pub(super) fn wait_for_question(&self) {
        let asked = || self.play.run.lock().unwrap_or_else(PoisonError::into_inner).questions;
        let before = asked();
        wait_until("a question to the coordinator", LIMIT, || Ok(asked() > before))
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.words()));
    }

    /// Waits until the operator writes nothing more, and says how often it wrote what: the oracle
    /// of duplicates.
    pub(super) fn rest(&self) -> Vec<Write> {
        wait_until_still("the operator to rest", LIMIT, REST, || Ok(self.writes().len()))
            .unwrap_or_else(|error| panic!("{error:#}\n{}", listed(&self.writes())));
        self.writes()
    }

    /// Objects that have the job's name at their beginning.
    pub(super) fn list(&self, group: &str, resource: &str) -> Vec<Value> {
        let mut list = self.api.get(&self.path(group, resource)).unwrap();
        let Value::Array(items) = list["items"].take() else { return Vec::new() };
        items
            .into_iter()
            .filter(|object| {
                object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("sample"))
            })
            .collect()
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
    job["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|seen| seen["type"] == condition && seen["status"] == "True")
}

/// One write a line; those that changed nothing are left out.
pub(super) fn listed(writes: &[Write]) -> String {
    let told = writes.iter().filter(|write| write.changed || write.code >= 300);
    told.map(|write| format!("{} {}", write.call, write.code)).collect::<Vec<_>>().join("\n")
}

/// How often each object was made and removed. Events tell, and are no state.
pub(super) fn made_and_removed(writes: &[Write], uid: &str) -> BTreeMap<String, usize> {
    let lasting = |write: &&Write| {
        matches!(write.call.verb, Verb::Create | Verb::Delete)
            && write.call.resource != "events"
            && write.code < 300
    };
    let mut counts = BTreeMap::new();
    for write in writes.iter().filter(lasting) {
        *counts
            .entry(write.call.to_string().replace(uid.split('-').next().unwrap_or_default(), "U"))
            .or_default() += 1;
    }
    counts
}
