//! The chart's PodMonitors and alerts on nodes: a real Prometheus, with the configuration that the
//! Prometheus Operator generates, discovers the operator's pods and those of a job, and faults of
//! pods fire alerts in time. Trainer pods serve no metrics: the coordinator serves those of
//! learners. `alerts` has the faults of a job that no other test needs.

use std::time::{Duration, Instant};

use rljob_tests::partition::Partition;
use rljob_tests::process::wait_until;
use rljob_tests::procfs::PodProcess;
use rljob_tests::prometheus::OPERATOR_NAMESPACE as SYSTEM;
use rljob_tests::{Api, Cluster, Prometheus};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{LIMIT, Run};
use crate::alerts::short_rules;
use crate::chart::render;
use crate::control_plane::merge;
use crate::dashboards::wait_for_data;

/// The `for` of an alert and two scrapes, of a second each.
pub(super) const ALERT_LIMIT: Duration = Duration::from_secs(3);
/// [`ALERT_LIMIT`] of tests that run beside others, which delay scrapes.
pub(super) const SHARED_LIMIT: Duration = Duration::from_secs(10);

/// The chart's PodMonitors.
fn monitors() -> Vec<Value> {
    let objects = render(&json!({
        "podMonitor": {"enabled": true, "jobs": true, "interval": "1s"},
        "jobs": {"scrapers": {"namespaceSelector": {"kubernetes.io/metadata.name": "monitoring"}}},
    }));
    objects.into_iter().filter(|object| object["kind"] == "PodMonitor").collect()
}

/// A job and the Prometheus that scrapes it.
pub(super) struct Monitored<'a> {
    cluster: &'a Cluster,
    api: Api,
    run: &'a Run<'a>,
    prometheus: Prometheus,
    /// Time limit from a fault to its alert.
    limit: Duration,
}

/// Runs the test with a job of two engines in training, which recovers from the faults.
pub(super) fn prometheus_finds_the_pods_and_fires_alerts(cluster: &Cluster, run: &Run<'_>) {
    let monitored = Monitored::start(cluster, run, &short_rules(&[]), ALERT_LIMIT);
    monitored.each_pod_is_a_target_that_is_up();
    monitored.each_role_has_series_with_its_labels();
    wait_for_data(&monitored.prometheus, "job", (&run.namespace.name, run.job));
    monitored.a_lost_pod_fires_its_alert("inference", "RLJobEngineLost", &json!({}));
    monitored.an_unreachable_coordinator_fires_its_alert();
    monitored.operators_that_may_not_list_pods_fire_their_alerts();
}

/// Processes of the operator's pods.
fn operators(cluster: &Cluster) -> Vec<PodProcess> {
    let processes = cluster.pod_processes("").into_iter();
    processes.filter(|it| it.command_line.contains("rljob-operator ")).collect()
}

impl<'a> Monitored<'a> {
    pub(super) fn start(
        cluster: &'a Cluster,
        run: &'a Run<'a>,
        rules: &Value,
        limit: Duration,
    ) -> Self {
        let prometheus = Prometheus::with_monitors(cluster, &monitors(), rules).unwrap();
        Self { cluster, api: cluster.api().unwrap(), run, prometheus, limit }
    }

    /// Names and addresses of the pods of a namespace that a label selector matches.
    fn pods(&self, namespace: &str, selector: &str) -> Vec<(String, String)> {
        let kubectl = self.cluster.kubectl().in_namespace(namespace);
        let pods = kubectl.get(&["pods", "--selector", selector]).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let pods = pods["items"].as_array().unwrap().iter();
        pods.map(|pod| (text(&pod["metadata"]["name"]), text(&pod["status"]["podIP"]))).collect()
    }

    /// Labels of the targets of the operator and of the job, in the order of pods.
    fn expected_targets(&self) -> Vec<Value> {
        let (namespace, job) = (&self.run.namespace.name, self.run.job);
        let operators = self.pods(SYSTEM, "app.kubernetes.io/name=rljob-operator");
        let operators = operators.into_iter().map(|(pod, ip)| {
            json!({
                "job": "rljob-system/rljob-operator", "endpoint": "metrics",
                "instance": format!("{ip}:8082"), "namespace": SYSTEM, "pod": pod,
                "container": "operator",
            })
        });
        let roles = [("coordinator", "coordinator", 8080), ("inference", "engine", 30000)];
        let pods = roles.into_iter().flat_map(|(role, container, port)| {
            let selector = format!("rljob.dev/job={job},rljob.dev/role={role}");
            let pods = self.pods(namespace, &selector).into_iter();
            pods.map(move |(pod, ip)| {
                json!({
                    "job": "rljob-system/rljob-operator-jobs", "endpoint": "http",
                    "instance": format!("{ip}:{port}"), "namespace": namespace, "pod": pod,
                    "container": container, "rljob_dev_job": job, "rljob_dev_role": role,
                })
            })
        });
        let mut all: Vec<Value> = operators.chain(pods).collect();
        all.sort_by_key(|labels| labels["pod"].to_string());
        all
    }

    fn each_pod_is_a_target_that_is_up(&self) {
        let expected = self.expected_targets();
        let mut found = Vec::new();
        let is_complete = || {
            let targets = self.prometheus.targets()?.into_iter().filter(|target| {
                [SYSTEM, &self.run.namespace.name]
                    .map(Value::from)
                    .contains(&target["labels"]["namespace"])
            });
            let up = targets.filter(|target| target["health"] == "up");
            found = up.map(|target| target["labels"].clone()).collect();
            found.sort_by_key(|labels| labels["pod"].to_string());
            Ok(found == expected)
        };
        wait_until("all targets to be up", LIMIT, is_complete).unwrap_or_else(|error| {
            let output = self.prometheus.output();
            panic!("{error:#}\nup: {found:#?}\nexpected: {expected:#?}\n{output}")
        });
        self.run.log("all targets are up");
    }

    fn each_role_has_series_with_its_labels(&self) {
        let (namespace, job) = (&self.run.namespace.name, self.run.job);
        let operator = json!({
            "job": "rljob-system/rljob-operator", "namespace": namespace, "name": job,
            "role": "inference",
        });
        let of_pod = |role: &str| {
            json!({
                "job": "rljob-system/rljob-operator-jobs", "namespace": namespace,
                "rljob_dev_job": job, "rljob_dev_role": role,
            })
        };
        let of_the_job = format!("namespace=\"{namespace}\"");
        for (metric, expected) in [
            // The operator's label `namespace` is that of the job.
            ("rljob_job_replicas_ready{role=\"inference\",", operator),
            ("rljob_step{", of_pod("coordinator")),
            ("rljob_learner_seconds_total{phase=\"train\",", of_pod("coordinator")),
            ("sglang:generation_tokens_total{", of_pod("inference")),
        ] {
            let by = "job, namespace, name, role, rljob_dev_job, rljob_dev_role";
            let query = format!("group by ({by}) ({metric}{of_the_job}}})");
            wait_until(&query, LIMIT, || Ok(self.prometheus.series(&query)? > 0)).unwrap();
            assert_eq!(self.prometheus.labels(&query).unwrap(), [expected], "{query}");
        }
    }

    /// The job.
    pub(super) fn job(&self) -> Value {
        let (namespace, job) = (&self.run.namespace.name, self.run.job);
        let path = format!("/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs/{job}");
        self.api.get(&path).unwrap()
    }

    /// Waits until a condition of the job has this reason.
    pub(super) fn wait_for_reason(&self, type_: &str, reason: &str) {
        wait_until(&format!("{type_} to have the reason {reason}"), LIMIT, || {
            let conditions = self.job()["status"]["conditions"].take();
            let mut conditions = conditions.as_array().into_iter().flatten();
            Ok(conditions.any(|it| it["type"] == type_ && it["reason"] == reason))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{:#}", self.job()["status"]));
        self.run.log(&format!("{type_}: {reason}"));
    }

    /// Waits until an alert fires, or fires no longer. `patch` changes the labels of an alert of
    /// the job.
    pub(super) fn wait_for_alert(&self, alert: &str, patch: &Value, fires: bool) {
        let mut labels = json!({
            "alertname": alert, "severity": "warning",
            "namespace": self.run.namespace.name, "name": self.run.job,
        });
        merge(&mut labels, patch);
        wait_until(&format!("{labels}, firing: {fires}"), LIMIT, || {
            Ok(self.prometheus.firing()?.contains(&labels) == fires)
        })
        .unwrap_or_else(|error| {
            panic!("{error:#}\n{:?}\n{}", self.prometheus.firing(), self.prometheus.output())
        });
    }

    /// [`Self::wait_for_alert`], in time after what the alert reports.
    pub(super) fn alert_fires_in_time(&self, alert: &str, patch: &Value, start: Instant) {
        self.wait_for_alert(alert, patch, true);
        let elapsed = start.elapsed();
        println!("alerts: {alert} after {:.1} s", elapsed.as_secs_f64());
        assert!(elapsed <= self.limit, "{alert} fired after {elapsed:?}");
    }

    /// The status reports a fault, and its alert fires in time.
    pub(super) fn reason_fires_its_alert(&self, reason: &str, alert: &str, patch: &Value) {
        self.wait_for_reason("Ready", reason);
        self.alert_fires_in_time(alert, patch, Instant::now());
    }

    /// Deletes the first pod of a role by force. Without quota for its replacement, it stays lost
    /// until the alert fires.
    pub(super) fn a_lost_pod_fires_its_alert(&self, role: &str, alert: &str, patch: &Value) {
        let (namespace, job) = (&self.run.namespace.name, self.run.job);
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
            "spec": {"hard": {"pods": "0"}},
        });
        self.run.namespace.kubectl.apply(&quota.to_string()).unwrap();
        let pod = format!("/api/v1/namespaces/{namespace}/pods/{job}-{role}-0");
        let start = Instant::now();
        self.api.delete(&pod, &json!({"gracePeriodSeconds": 0})).unwrap();
        self.alert_fires_in_time(alert, patch, start);
        self.run.namespace.kubectl.run(&["delete", "resourcequota/none"]).unwrap();
        self.wait_for_alert(alert, patch, false);
    }

    /// A partition of both operators from the coordinator. A stopped coordinator is no such fault:
    /// its liveness probe ends it before the operator calls it unresponsive.
    fn an_unreachable_coordinator_fires_its_alert(&self) {
        let coordinator = self.pods(&self.run.namespace.name, "rljob.dev/role=coordinator");
        let address = coordinator[0].1.parse().unwrap();
        let operators = operators(self.cluster).into_iter();
        let start = Instant::now();
        let partitions: Vec<_> =
            operators.map(|it| Partition::between(it.pid, address).unwrap()).collect();
        assert_eq!(partitions.len(), 2, "operators");
        let (reason, alert) = ("CoordinatorUnresponsive", "RLJobCoordinatorUnresponsive");
        self.wait_for_reason("Ready", reason);
        println!("alerts: {reason} after {:.1} s", start.elapsed().as_secs_f64());
        self.alert_fires_in_time(alert, &json!({}), Instant::now());
        drop(partitions);
        self.wait_for_alert(alert, &json!({}), false);
    }

    /// Kills both operators, whose role has lost the permission: none leads until the Lease of the
    /// killed leader ends, and their watch of pods fails until the permission is back.
    fn operators_that_may_not_list_pods_fire_their_alerts(&self) {
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/rljob-operator";
        let rules = self.api.get(path).unwrap()["rules"].take();
        let set = |rules: &Value| {
            let replace = json!([{"op": "replace", "path": "/rules", "value": rules}]);
            self.api.edit(path, &replace).unwrap();
        };
        let is_of_pods = |rule: &&Value| rule["resources"] == json!(["pods"]);
        let others: Vec<&Value> =
            rules.as_array().unwrap().iter().filter(|rule| !is_of_pods(rule)).collect();
        assert_eq!(others.len() + 1, rules.as_array().unwrap().len(), "{rules}");
        set(&json!(others));
        let start = Instant::now();
        for operator in operators(self.cluster) {
            kill_process(operator.pid, Signal::KILL).unwrap();
        }
        let down = json!({"severity": "critical", "namespace": SYSTEM, "name": null});
        self.alert_fires_in_time("RLJobOperatorDown", &down, start);
        let failing = json!({"namespace": SYSTEM, "name": null, "resource": "pods"});
        let query = "max(rljob_watch_healthy{resource=\"pods\"}) == 0";
        wait_until("a watch that fails", LIMIT, || Ok(self.prometheus.series(query)? > 0)).unwrap();
        self.alert_fires_in_time("RLJobOperatorWatchFailing", &failing, Instant::now());
        set(&rules);
        self.wait_for_alert("RLJobOperatorWatchFailing", &failing, false);
        self.wait_for_alert("RLJobOperatorDown", &down, false);
        println!("alerts: none of operators after {:.1} s", start.elapsed().as_secs_f64());
    }
}
