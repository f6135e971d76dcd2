//! The chart's PodMonitors and alerts on nodes: a real Prometheus, with the configuration that the
//! Prometheus Operator generates, discovers the operator's pods and those of a job, and faults of
//! pods fire alerts in time. Trainer pods serve no metrics: the coordinator serves those of
//! learners.

use std::time::{Duration, Instant};

use rljob_tests::partition::Partition;
use rljob_tests::process::wait_until;
use rljob_tests::prometheus::OPERATOR_NAMESPACE as SYSTEM;
use rljob_tests::{Api, Cluster, Prometheus};
use serde_json::{Value, json};

use super::{LIMIT, Run};
use crate::alerts::short_rules;
use crate::chart::render;
use crate::dashboards::wait_for_data;

/// The `for` of an alert and two scrapes, of a second each.
const ALERT_LIMIT: Duration = Duration::from_secs(3);

/// The chart's PodMonitors.
fn monitors() -> Vec<Value> {
    let objects = render(&json!({
        "podMonitor": {"enabled": true, "jobs": true, "interval": "1s"},
        "jobs": {"scrapers": {"namespaceSelector": {"kubernetes.io/metadata.name": "monitoring"}}},
    }));
    objects.into_iter().filter(|object| object["kind"] == "PodMonitor").collect()
}

/// A job in training and the Prometheus that scrapes it.
struct Monitored<'a> {
    cluster: &'a Cluster,
    api: Api,
    run: &'a Run<'a>,
    prometheus: Prometheus,
}

/// Runs the test with a job of two engines in training, which recovers from the faults.
pub(super) fn prometheus_finds_the_pods_and_fires_alerts(cluster: &Cluster, run: &Run<'_>) {
    let prometheus = Prometheus::with_monitors(cluster, &monitors(), &short_rules(&[])).unwrap();
    let monitored = Monitored { cluster, api: cluster.api().unwrap(), run, prometheus };
    monitored.each_pod_is_a_target_that_is_up();
    monitored.each_role_has_series_with_its_labels();
    wait_for_data(&monitored.prometheus, "job", (&run.namespace.name, run.job));
    monitored.a_lost_engine_fires_its_alert();
    monitored.an_unreachable_coordinator_fires_its_alert();
}

impl Monitored<'_> {
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

    /// Waits until an alert of the job fires, or fires no longer.
    fn wait_for_alert(&self, alert: &str, fires: bool) {
        let labels = json!({
            "alertname": alert, "severity": "warning",
            "namespace": self.run.namespace.name, "name": self.run.job,
        });
        wait_until(&format!("{alert}, firing: {fires}"), LIMIT, || {
            Ok(self.prometheus.firing()?.contains(&labels) == fires)
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.prometheus.output()));
    }

    /// [`Self::wait_for_alert`], in time after what the alert reports.
    fn alert_fires_in_time(&self, alert: &str, start: Instant) {
        self.wait_for_alert(alert, true);
        let elapsed = start.elapsed();
        println!("alerts: {alert} after {:.1} s", elapsed.as_secs_f64());
        assert!(elapsed <= ALERT_LIMIT, "{alert} fired after {elapsed:?}");
    }

    /// Without a node for its replacement, the engine stays lost.
    fn a_lost_engine_fires_its_alert(&self) {
        let nodes = |verb: &str| {
            self.cluster.kubectl().run(&[verb, "node-1", "node-2"]).unwrap();
        };
        nodes("cordon");
        let (namespace, job) = (&self.run.namespace.name, self.run.job);
        let pod = format!("/api/v1/namespaces/{namespace}/pods/{job}-inference-0");
        let start = Instant::now();
        self.api.delete(&pod, &json!({"gracePeriodSeconds": 0})).unwrap();
        self.alert_fires_in_time("RLJobEngineLost", start);
        nodes("uncordon");
        self.wait_for_alert("RLJobEngineLost", false);
    }

    /// A partition of both operators from the coordinator. A stopped coordinator is no such fault:
    /// its liveness probe ends it before the operator calls it unresponsive.
    fn an_unreachable_coordinator_fires_its_alert(&self) {
        let coordinator = self.pods(&self.run.namespace.name, "rljob.dev/role=coordinator");
        let address = coordinator[0].1.parse().unwrap();
        let processes = self.cluster.pod_processes("").into_iter();
        let operators = processes.filter(|it| it.command_line.contains("rljob-operator "));
        let start = Instant::now();
        let partitions: Vec<_> =
            operators.map(|it| Partition::between(it.pid, address).unwrap()).collect();
        assert_eq!(partitions.len(), 2, "operators");
        let (namespace, job) = (&self.run.namespace.name, self.run.job);
        let path = format!("/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs/{job}");
        wait_until("an unresponsive coordinator", LIMIT, || {
            let conditions = self.api.get(&path)?["status"]["conditions"].take();
            let mut reasons = conditions.as_array().into_iter().flatten().map(|it| &it["reason"]);
            Ok(reasons.any(|reason| reason == "CoordinatorUnresponsive"))
        })
        .unwrap();
        println!("alerts: CoordinatorUnresponsive after {:.1} s", start.elapsed().as_secs_f64());
        self.alert_fires_in_time("RLJobCoordinatorUnresponsive", Instant::now());
        drop(partitions);
        self.wait_for_alert("RLJobCoordinatorUnresponsive", false);
    }
}
