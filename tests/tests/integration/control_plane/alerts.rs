//! Alerts of the chart in a real Prometheus that scrapes a real operator: faults fire them, and the
//! end of a fault resolves them.
//!
//! Prometheus scrapes and evaluates every second, each `for` is shortened to a second, and half an
//! hour to ten seconds; `alerts` tests the rules with their own durations.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Context;
use rljob_tests::Prometheus;
use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::cluster;
use super::fixture::Fixture;
use super::operator::{LIMIT, SYSTEM};
use super::pods::set_status;
use super::simulated_pods::METRICS_PORT;
use crate::alerts::short_rules;
use crate::dashboards::wait_for_data;

mod operators;
mod unstarted;

/// Waits until exactly these alerts fire, while `each` runs before each poll. Prints the time that
/// they take.
fn wait_for_alerts(
    prometheus: &Prometheus,
    expected: &[Value],
    mut each: impl FnMut(),
) -> anyhow::Result<()> {
    let start = Instant::now();
    wait_until(&format!("{expected:?}"), LIMIT, || {
        each();
        Ok(prometheus.firing()? == expected)
    })
    .with_context(|| format!("firing: {:?}", prometheus.firing()))?;
    let names: Vec<_> = expected.iter().map(|labels| labels["alertname"].as_str()).collect();
    println!("alerts: {names:?} after {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Changes of the sample: a run that is long enough, and is soon without progress.
fn watched_job() -> Value {
    json!({"spec": {
        "training": {"steps": 1000}, "failurePolicy": {"hangTimeoutSeconds": 10},
    }})
}

/// A job in training, its operator, and Prometheus.
struct Watched {
    fixture: Fixture,
    prometheus: Prometheus,
}

impl Watched {
    fn start(prefix: &str) -> Self {
        let mut fixture = Fixture::new(prefix, &watched_job());
        fixture.start_operator();
        Self::of(fixture)
    }

    /// A job whose operator has started.
    fn of(fixture: Fixture) -> Self {
        Self::with_rules(fixture, &short_rules(&[]))
    }

    fn with_rules(fixture: Fixture, rules: &Value) -> Self {
        fixture.wait_for("Ready");
        let operator = fixture.metrics_address().unwrap();
        let coordinator = fixture.api.get(&fixture.path("api/v1", "pods/sample-coordinator-0"));
        let coordinator = coordinator.unwrap()["status"]["podIP"].take();
        let coordinator = coordinator.as_str().unwrap().parse().unwrap();
        let labels = json!({"namespace": fixture.namespace.name, "rljob_dev_job": "sample"});
        let pods = [(SocketAddr::new(coordinator, METRICS_PORT), labels)];
        let prometheus =
            Prometheus::with_pods(cluster(), &[(operator, SYSTEM)], &pods, rules).unwrap();
        let watched = Self { fixture, prometheus };
        let is_scraped = || watched.prometheus.has("rljob_job_checkpoint_timestamp_seconds");
        wait_until("a scrape of a job in training", LIMIT, || {
            watched.fixture.pods.run.lock().step += 1;
            Ok(is_scraped().is_ok_and(|is| is) && watched.prometheus.firing()?.is_empty())
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", watched.prometheus.output()));
        watched
    }

    /// [`wait_for_alerts`] of the job, given with their additional labels.
    fn wait_for(&self, expected: &[(&str, Value)], mut each: impl FnMut(&Self)) {
        let labels = |(name, more): &(&str, Value)| {
            let mut labels = json!({
                "alertname": name, "severity": "warning",
                "namespace": self.fixture.namespace.name, "name": "sample",
            });
            super::merge(&mut labels, more);
            labels
        };
        let expected: Vec<Value> = expected.iter().map(labels).collect();
        wait_for_alerts(&self.prometheus, &expected, || each(self))
            .unwrap_or_else(|error| panic!("{error:#}\n{:#}", self.fixture.job()));
    }

    fn train(&self) {
        self.fixture.pods.run.lock().step += 1;
    }

    /// Sets whether a pod and its containers are ready.
    fn set_pod(&self, pod: &str, ready: &str) {
        let condition = |type_: &str| json!({"type": type_, "status": ready});
        let conditions = ["ContainersReady", "Ready"].map(condition);
        set_status(&self.fixture.namespace, pod, &json!({ "conditions": conditions }));
    }

    /// Checks that an alert fires while a pod is not ready.
    fn lose(&self, pod: &str, alert: &str) {
        self.set_pod(pod, "False");
        self.wait_for(&[(alert, json!({}))], Self::train);
        self.set_pod(pod, "True");
        self.wait_for(&[], Self::train);
    }
}

#[test]
fn faults_of_a_run_and_its_operator_fire_their_alerts_until_they_end() {
    let mut watched = Watched::start("alerts");
    let namespace = watched.fixture.namespace.name.clone();
    for (dashboard, namespace) in [("fleet", namespace.as_str()), ("operator", SYSTEM)] {
        wait_for_data(&watched.prometheus, dashboard, (namespace, "sample"));
    }
    let none = json!({});
    watched.wait_for(&[("RLJobNoProgress", none.clone())], |_| {});
    watched.wait_for(&[], Watched::train);

    watched.set_pod("sample-inference-0", "False");
    watched.wait_for(&[("RLJobEngineLost", none.clone())], Watched::train);
    watched.set_pod("sample-inference-0", "True");
    watched.wait_for(&[], Watched::train);

    watched.fixture.pods.run.lock().reward_outage = Some("connection refused");
    watched.wait_for(&[("RLJobRewardUnavailable", none.clone())], Watched::train);
    watched.fixture.pods.run.lock().reward_outage = None;
    watched.wait_for(&[], Watched::train);

    watched.fixture.pods.run.lock().journal_failure = Some("database or disk is full");
    watched.wait_for(&[("RLJobStorageUnavailable", none.clone())], Watched::train);
    watched.fixture.pods.run.lock().journal_failure = None;
    watched.wait_for(&[], Watched::train);

    watched.fixture.pods.run.lock().attempt += 3;
    watched.wait_for(&[("RLJobRestartLoop", none)], Watched::train);

    watched.fixture.pods.run.lock().end = Some("Failed");
    watched.wait_for(&[("RLJobFailed", json!({"reason": "Failed"}))], |_| {});

    watched.fixture.kill_operator();
    let down = json!({"severity": "critical", "namespace": SYSTEM, "name": null});
    watched.wait_for(&[("RLJobOperatorDown", down)], |_| {});
}

#[test]
fn a_silent_coordinator_fires_its_alert_until_it_answers() {
    let watched = Watched::start("alerts-silent");
    watched.fixture.pods.run.lock().is_silent = true;
    watched.wait_for(&[("RLJobCoordinatorUnresponsive", json!({}))], |_| {});
    watched.fixture.pods.run.lock().is_silent = false;
    watched.wait_for(&[], Watched::train);
}

#[test]
fn further_engines_and_groups_fire_their_alerts_until_they_are_back() {
    let mut patch = watched_job();
    let spec = json!({
        "dataset": {"evaluation": {
            "path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer",
        }},
        "evaluation": {"engines": {"replicas": 1}},
        "rewards": [{"name": "scored", "model": {
            "path": "/data/judge", "engines": {"replicas": 1}, "text": "{{completion}}",
        }}],
        "algorithm": {"grpo": {"klCoefficient": 0.1}},
        "trainer": {"groups": [{"name": "frozen", "roles": ["Reference"]}]},
    });
    super::merge(&mut patch, &json!({ "spec": spec }));
    let group = |attempt: u32| {
        json!([{
            "name": "frozen", "attempt": attempt, "restarts": 0, "running": true, "supervisors": [],
        }])
    };
    let mut fixture = Fixture::new("alerts-roles", &patch);
    fixture.pods.run.lock().groups = group(0);
    fixture.start_operator();
    let watched = Watched::of(fixture);
    for (alert, pod) in [
        ("RLJobEvaluationEngineLost", "sample-evaluation-0"),
        ("RLJobRewardEngineLost", "sample-reward-0"),
        ("RLJobGroupLost", "sample-trainer-frozen-0"),
    ] {
        watched.lose(pod, alert);
    }
    watched.fixture.pods.run.lock().groups = group(3);
    let loops = ("RLJobGroupRestartLoop", json!({"group": "frozen"}));
    watched.wait_for(&[loops], Watched::train);
}

#[test]
fn an_engine_of_a_teacher_that_is_lost_fires_its_alert_until_it_is_back() {
    let mut patch = watched_job();
    let teacher = json!({"path": "/data/teacher", "engines": {"replicas": 1}});
    patch["spec"]["algorithm"] = json!({"grpo": null, "distillation": {"teacher": teacher}});
    let mut fixture = Fixture::new("alerts-teacher", &patch);
    fixture.start_operator();
    Watched::of(fixture).lose("sample-teacher-0", "RLJobTeacherEngineLost");
}

#[test]
fn engines_without_requests_fire_their_alert_until_they_have_some() {
    let watched = Watched::start("alerts-idle");
    watched.fixture.pods.run.lock().idle_since = Some(Instant::now());
    let idle = [("RLJobEnginesIdle", json!({"severity": "info"}))];
    watched.wait_for(&idle, Watched::train);
    watched.fixture.pods.run.lock().idle_since = None;
    watched.wait_for(&[], Watched::train);
}

#[test]
fn learners_on_gpus_without_samples_fire_their_alert_until_they_train() {
    let watched = Watched::start("alerts-starved");
    watched.fixture.pods.run.lock().are_learners_starved = true;
    let idle = [("RLJobGpusIdle", json!({"severity": "info"}))];
    watched.wait_for(&idle, Watched::train);
    watched.fixture.pods.run.lock().are_learners_starved = false;
    watched.wait_for(&[], Watched::train);
}

#[test]
fn learners_that_do_not_start_again_fire_their_alert_until_they_train() {
    let watched = Watched::start("alerts-interrupted");
    watched.fixture.pods.run.lock().end = Some("Restarting");
    watched.wait_for(&[("RLJobInterrupted", json!({"reason": "Restarting"}))], |_| {});
    watched.fixture.pods.run.lock().end = None;
    watched.wait_for(&[], Watched::train);
}

#[test]
fn a_run_without_a_new_checkpoint_fires_its_alert_until_it_has_one() {
    let mut fixture = Fixture::new("alerts-unsaved", &watched_job());
    fixture.start_operator();
    let watched = Watched::with_rules(fixture, &short_rules(&[("4 * 3600", "30")]));
    watched.wait_for(&[("RLJobCheckpointTooOld", json!({}))], Watched::train);
    watched.fixture.pods.run.lock().checkpoints = vec!["step-1.attempt-0"];
    watched.wait_for(&[], Watched::train);
}

/// The operator waits ten minutes before it reports engines without the current weights: the test
/// moves the times from which it counts.
#[test]
fn engines_without_the_current_weights_fire_their_alert_until_they_have_them() {
    let mut fixture = Fixture::new("alerts-stale", &watched_job());
    fixture.pods.run.lock().engine_state = Some("Syncing");
    fixture.start_operator();
    let watched = Watched::of(fixture);
    let path = watched.fixture.job_path();
    let before = "2026-01-01T00:00:00Z";
    let ready = ["ContainersReady", "Ready"]
        .map(|type_| json!({"type": type_, "status": "True", "lastTransitionTime": before}));
    let status = json!({ "conditions": ready });
    set_status(&watched.fixture.namespace, "sample-inference-0", &status);
    let mut conditions = watched.fixture.job()["status"]["conditions"].take();
    for condition in conditions.as_array_mut().unwrap() {
        if condition["type"] == "WeightsSynced" {
            assert_eq!(condition["reason"], "Syncing", "{condition}");
            condition["lastTransitionTime"] = json!(before);
        }
    }
    let status = json!({"status": {"conditions": conditions}});
    watched.fixture.api.patch(&format!("{path}/status"), &status).unwrap();
    watched.wait_for(&[("RLJobWeightsStale", json!({}))], Watched::train);
    watched.fixture.pods.run.lock().engine_state = None;
    watched.wait_for(&[], Watched::train);
}
