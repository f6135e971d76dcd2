//! The operator and an API server that was restored from a backup, refuses a resource, or does not
//! respond.

use rljob_tests::process::wait_until;
use rljob_tests::proxy::{Effect, Verb, faults};
use rljob_tests::{Cluster, Kubectl, Namespace};
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::operator::{
    self, LIMIT, Operator, field, namespace_in, patch, wait_for_condition, wait_for_pods,
};

/// A separate cluster with an operator and a job.
fn start(prefix: &str, prepare: impl Fn(&Kubectl)) -> (Cluster, Operator, Namespace) {
    let cluster = Cluster::start(0).unwrap();
    operator::install(&cluster.kubectl()).unwrap();
    super::install_crd(&cluster.kubectl()).unwrap();
    prepare(&cluster.kubectl());
    let operator = Operator::start_in(&cluster, "rljob:a", &[]);
    let namespace = namespace_in(&cluster, prefix, &json!({}));
    wait_for_pods(&namespace, 3);
    (cluster, operator, namespace)
}

#[test]
fn jobs_are_reconciled_after_the_api_server_was_restored_to_an_older_state() {
    let (mut cluster, operator, namespace) = start("restored", |_| ());
    let backup = cluster.back_up().unwrap();
    for replicas in 2..8 {
        patch(&namespace, &json!({"inference": {"replicas": replicas}}));
        wait_for_pods(&namespace, 2 + replicas);
    }
    cluster.restore(&backup).unwrap();
    assert_eq!(field(&namespace, "rljob/sample", ".spec.inference.replicas"), "1");
    operator.wait_for_log("the API server was restored to an older state");
    wait_for_pods(&namespace, 3);
    patch(&namespace, &json!({"inference": {"replicas": 2}}));
    wait_for_pods(&namespace, 4);
}

/// Replaces the verbs of the operator on a resource.
fn set_verbs(kubectl: &Kubectl, resource: &str, verbs: &Value) {
    let mut rules = kubectl.get(&["clusterrole/rljob-operator"]).unwrap()["rules"].take();
    for rule in rules.as_array_mut().unwrap() {
        if rule["resources"] == json!([resource]) {
            rule["verbs"] = verbs.clone();
        }
    }
    let patch = json!({"rules": rules}).to_string();
    let role = "clusterrole/rljob-operator";
    kubectl.run(&["patch", role, "--type=merge", "--patch", &patch]).unwrap();
}

#[test]
fn a_missing_permission_is_reported_by_resource_and_stops_only_what_needs_it() {
    let budgets = "poddisruptionbudgets";
    let (cluster, operator, namespace) =
        start("unreadable", |kubectl| set_verbs(kubectl, budgets, &json!(["create", "patch"])));
    wait_for_condition(&namespace, "Stalled");
    let stalled = field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')]");
    let cause = "cannot get resource \\\"poddisruptionbudgets\\\"";
    assert!(stalled.contains("ChildRejected") && stalled.contains(cause), "{stalled}");
    let (status, checks) = operator.readiness().unwrap();
    assert_eq!(status, 503, "{checks}");
    assert!(checks.contains("[+]watch of pods: ok\n"), "{checks}");
    let failed: Vec<&str> = checks.lines().filter(|line| line.starts_with("[-]")).collect();
    assert!(
        matches!(failed[..], [line] if line.starts_with("[-]watch of poddisruptionbudgets: ")
            && line.contains("forbidden")),
        "{checks}"
    );
    let healthy = |resource: &str| {
        operator.metric(&format!("rljob_watch_healthy{{resource=\"{resource}\"}}")).unwrap() > 0.5
    };
    assert_eq!((healthy(budgets), healthy("pods")), (false, true));

    let all = json!(["create", "delete", "get", "list", "patch", "watch"]);
    set_verbs(&cluster.kubectl(), budgets, &all);
    wait_until("the operator to be ready", LIMIT, || operator.is_ready()).unwrap();
    wait_until("the disruption budget", LIMIT, || {
        Ok(!namespace.kubectl.run(&["get", budgets, "--output=name"])?.is_empty())
    })
    .unwrap();
}

#[test]
fn a_connection_that_went_silent_ends_by_a_timeout() {
    let mut fixture = Fixture::new("half-open", &json!({}));
    let creates = |call: &rljob_tests::proxy::Call| {
        call.verb == Verb::Patch && call.resource == "statefulsets"
    };
    fixture.proxy.inject(faults::first(1, creates, Effect::Hang));
    fixture.start_operator();
    wait_for_pods(&fixture.namespace, 3);
}
