//! The part of Kueue in these tests: installs its CRDs and flavors, and writes the status of
//! Workloads as Kueue's scheduler and controllers do.

use std::sync::OnceLock;

use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;
use rljob_tests::{Api, Helm, Kubectl};
use serde_json::{Value, json};

use super::super::fixture::Fixture;
use super::super::operator::{ACCOUNT, LIMIT, SYSTEM};
use super::super::{cluster, merge};

/// LocalQueue of the jobs.
pub(super) const QUEUE: &str = "research";

/// A patch that puts the job into the queue.
pub(in super::super) fn queued(patch: &Value) -> Value {
    let mut queued = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": QUEUE}}});
    merge(&mut queued, patch);
    queued
}

/// Installs the CRDs and two flavors.
pub(in super::super) fn install_crds(kubectl: &Kubectl) {
    let file = workspace().join("tests/kueue/crds.yaml").display().to_string();
    kubectl.run(&["apply", "--server-side", "--filename", &file]).unwrap();
    let kinds = ["workloads", "resourceflavors", "workloadpriorityclasses"];
    for kind in kinds.map(|kind| format!("{kind}.kueue.x-k8s.io")) {
        kubectl.wait_for_definition(&kind).unwrap();
        let list = ["get", &kind, "--all-namespaces"];
        wait_until(&format!("{kind} to be served"), LIMIT, || Ok(kubectl.run(&list).is_ok()))
            .unwrap();
    }
    for flavor in ["spot", "reserved"] {
        let toleration = json!({"key": "pool", "operator": "Equal", "value": flavor});
        let flavor = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor",
            "metadata": {"name": flavor},
            "spec": {"nodeLabels": {"pool": flavor}, "tolerations": [toleration]},
        });
        kubectl.apply(&flavor.to_string()).unwrap();
    }
}

/// Installs the CRDs, two flavors, and the operator's permissions, once.
fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let kubectl = cluster().kubectl();
        install_crds(&kubectl);
        let helm = Helm::offline(SYSTEM).unwrap();
        let chart = Helm::chart();
        let template = [
            "template",
            "rljob",
            &chart,
            "--set=kueue.enabled=true",
            "--show-only=templates/rbac-jobs.yaml",
            "--show-only=templates/rbac-kueue.yaml",
        ];
        kubectl.apply(&helm.run(&template).unwrap()).unwrap();
        let account = format!("--as={ACCOUNT}");
        let can = |resource: &str| kubectl.run(&["auth", "can-i", "get", resource, &account]);
        wait_until("the operator's permissions to be effective", LIMIT, || {
            let resources = ["workloads.kueue.x-k8s.io", "resourceflavors.kueue.x-k8s.io"];
            Ok(resources.into_iter().all(|resource| can(resource).is_ok()))
        })
        .unwrap();
    });
}

/// Kueue for one job.
pub(in super::super) struct Kueue {
    api: Api,
    path: String,
}

impl Kueue {
    pub(in super::super) fn of(fixture: &Fixture) -> Self {
        install();
        Self::at(fixture.api.clone(), &fixture.namespace.name)
    }

    /// Kueue for the job of a namespace.
    pub(in super::super) fn at(api: Api, namespace: &str) -> Self {
        let path = format!("/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads");
        Self { api, path }
    }

    /// The job's Workload.
    pub(in super::super) fn workload(&self) -> Option<Value> {
        let mut list = self.api.get(&self.path).unwrap();
        let Value::Array(mut items) = list["items"].take() else { return None };
        assert!(items.len() < 2, "a job has several Workloads: {items:#?}");
        items.pop()
    }

    pub(in super::super) fn wait_for_workload(&self) {
        wait_until("the Workload", LIMIT, || Ok(self.workload().is_some())).unwrap();
    }

    /// Waits for a Workload with another UID.
    pub(super) fn wait_for_another(&self, uid: &str) {
        let is_another =
            || Ok(self.workload().is_some_and(|workload| workload["metadata"]["uid"] != uid));
        wait_until("another Workload", LIMIT, is_another).unwrap();
    }

    fn text(&self, pointer: &str) -> String {
        let workload = self.workload().unwrap();
        workload.pointer(pointer).and_then(Value::as_str).unwrap().to_owned()
    }

    pub(super) fn name(&self) -> String {
        self.text("/metadata/name")
    }

    pub(super) fn uid(&self) -> String {
        self.text("/metadata/uid")
    }

    /// Applies fields of the status, with conditions given as type, status, reason and message, to
    /// the newest version: the operator writes the status too.
    fn set(&self, fields: &Value, conditions: &[[&str; 4]]) {
        let write = || self.try_set(fields, conditions).map(|_| true);
        wait_until("the write of the status", LIMIT, write).unwrap();
    }

    fn try_set(&self, fields: &Value, conditions: &[[&str; 4]]) -> anyhow::Result<Value> {
        let workload = self.workload().unwrap();
        let mut all = workload["status"]["conditions"].as_array().cloned().unwrap_or_default();
        for [type_, status, reason, message] in conditions {
            all.retain(|old| old["type"] != *type_);
            all.push(json!({
                "type": type_, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": format!("{:.0}", jiff::Timestamp::now()),
            }));
        }
        let mut status = json!({"conditions": all});
        merge(&mut status, fields);
        let name = workload["metadata"]["name"].as_str().unwrap();
        let version = &workload["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        self.api.patch(&format!("{}/{name}/status", self.path), &patch)
    }

    /// Leaves the Workload in its queue.
    pub(super) fn reject(&self, reason: &str, message: &str) {
        self.set(&json!({}), &[["QuotaReserved", "False", reason, message]]);
    }

    /// Admits the Workload with pods on one flavor, and fewer engines if given.
    pub(in super::super) fn admit(&self, flavor: &str, engines: Option<u64>) {
        self.admit_with(flavor, |assignment| {
            if let Some(engines) = engines.filter(|_| assignment["name"] == "inference") {
                assignment["count"] = engines.into();
            }
        });
    }

    /// Admits the Workload with changed assignments.
    pub(super) fn admit_with(&self, flavor: &str, change: impl Fn(&mut Value)) {
        let workload = self.workload().unwrap();
        let sets = workload["spec"]["podSets"].as_array().unwrap();
        let assignment = |set: &Value| {
            let flavors = json!({"cpu": flavor, "memory": flavor});
            let mut assignment =
                json!({"name": set["name"], "count": set["count"], "flavors": flavors});
            change(&mut assignment);
            assignment
        };
        let assignments: Vec<Value> = sets.iter().map(assignment).collect();
        self.set(
            &json!({"admission": {"clusterQueue": "all", "podSetAssignments": assignments}}),
            &[
                ["QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue all"],
                ["Evicted", "False", "QuotaReserved", "Previously: "],
                ["Admitted", "True", "Admitted", "The workload is admitted"],
            ],
        );
    }

    pub(in super::super) fn evict(&self, reason: &str, message: &str) {
        self.set(&json!({}), &[["Evicted", "True", reason, message]]);
    }

    /// Status, reason and message of a condition of the Workload.
    pub(super) fn condition(&self, type_: &str) -> [String; 3] {
        let workload = self.workload().unwrap_or_default();
        let mut conditions = workload["status"]["conditions"].as_array().into_iter().flatten();
        let found = conditions.find(|condition| condition["type"] == type_);
        let found = found.cloned().unwrap_or_default();
        ["status", "reason", "message"]
            .map(|part| found[part].as_str().unwrap_or_default().to_owned())
    }

    pub(in super::super) fn wait_for(&self, type_: &str, expected: [&str; 3]) {
        wait_until(&format!("{type_} of the Workload to be {expected:?}"), LIMIT, || {
            Ok(self.condition(type_) == expected)
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{:#?}", self.workload()));
    }
}
