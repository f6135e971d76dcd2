//! Health of live jobs in every state, by Argo CD's and Flux's own libraries.

use std::fs;

use rljob_tests::files::workspace;
use rljob_tests::gitops::{ARGOCD_CM, Health, health};
use rljob_tests::process::wait_until;
use serde_json::json;

use super::read;
use crate::control_plane::fixture::Fixture;
use crate::control_plane::operator::{LIMIT, apply_job};
use crate::control_plane::queue::kueue::{Kueue, queued};

/// Status and message by Argo CD, status by kstatus, and status by expressions that wait for
/// success. A message is given up to its first colon.
type Row<'a> = (&'a str, &'a str, &'a str, &'a str);

fn row(health: &Health) -> Row<'_> {
    let message = health.argocd.message.split(':').next().unwrap_or_default();
    (&health.argocd.status, message, &health.kstatus.status, &health.expressions)
}

const UNSEEN: &str = "waiting for the operator to observe the spec";

/// Waits until a job is judged as `expected`, and returns its health.
fn wait_for(fixture: &Fixture, expected: Row<'_>) -> Health {
    let (mut version, mut seen) = (String::new(), None);
    wait_until(&format!("{expected:?}"), LIMIT, || {
        let job = fixture.job();
        let current = job["metadata"]["resourceVersion"].to_string();
        if current != version {
            seen = Some(health(&job)?);
            version = current;
        }
        Ok(seen.as_ref().is_some_and(|seen| row(seen) == expected))
    })
    .unwrap_or_else(|error| {
        panic!("{error:#}\n{seen:?}\n{:#}\n{}", fixture.job(), fixture.output())
    });
    seen.unwrap()
}

fn progressing(message: &str) -> Row<'_> {
    ("Progressing", message, "InProgress", "InProgress")
}

fn degraded(message: &str) -> Row<'_> {
    ("Degraded", message, "Failed", "Failed")
}

const RUNNING: Row<'_> = ("Healthy", "Running", "Current", "InProgress");
const SUSPENDED: Row<'_> = ("Suspended", "Suspended", "Current", "InProgress");
const SUCCEEDED: Row<'_> = ("Healthy", "Completed", "Current", "Current");

#[test]
fn a_job_is_judged_by_its_state_from_its_creation_to_its_success_and_deletion() {
    let mut fixture = Fixture::new("health", &json!({}));
    wait_for(&fixture, progressing(UNSEEN));
    fixture.pods.run.lock().is_silent = true;
    fixture.start_operator();
    wait_for(&fixture, progressing("Starting"));
    fixture.pods.run.lock().is_silent = false;
    let health = wait_for(&fixture, RUNNING);
    assert!(health.argocd.message.starts_with("Running: training"), "{health:?}");

    // A spec that the operator has not seen.
    fixture.kill_operator();
    fixture.patch(&json!({"inference": {"replicas": 2}}));
    wait_for(&fixture, progressing(UNSEEN));
    fixture.start_operator();
    wait_for(&fixture, RUNNING);

    fixture.pods.run.lock().is_silent = true;
    fixture.patch(&json!({"suspend": true}));
    wait_for(&fixture, progressing("Draining"));
    let pod = fixture.path("api/v1", "pods/sample-trainer-0");
    hold(&fixture, &pod, &HELD);
    fixture.pods.run.lock().is_silent = false;
    wait_for(&fixture, progressing("Releasing"));
    hold(&fixture, &pod, &[]);
    wait_for(&fixture, SUSPENDED);
    fixture.patch(&json!({"suspend": false}));
    wait_for(&fixture, RUNNING);

    fixture.pods.run.lock().end = Some("Finished");
    wait_for(&fixture, SUCCEEDED);
    fixture.pods.run.lock().end = None;
    fixture.patch(&json!({"training": {"steps": 5}}));
    wait_for(&fixture, RUNNING);

    is_judged_while_it_is_deleted_and_recreated(&fixture);
}

/// A finalizer of an object that the test keeps until it has seen a state.
const HELD: [&str; 1] = ["tests.rljob.dev/hold"];

fn hold(fixture: &Fixture, path: &str, finalizers: &[&str]) {
    fixture.api.patch(path, &json!({"metadata": {"finalizers": finalizers}})).unwrap();
}

/// Finalizers keep the deleted job and one of its children until the test has seen them.
fn is_judged_while_it_is_deleted_and_recreated(fixture: &Fixture) {
    let (job, child) = (fixture.job_path(), fixture.path("api/v1", "configmaps/sample-run"));
    for path in [&job, &child] {
        hold(fixture, path, &HELD);
    }
    fixture.api.delete(&job, &json!({})).unwrap();
    wait_for(fixture, ("Progressing", "Pending deletion", "Terminating", "InProgress"));
    hold(fixture, &job, &[]);
    wait_until("the deletion", LIMIT, || Ok(fixture.api.get(&job).is_err())).unwrap();
    apply_job(&fixture.namespace, &json!({}));
    wait_for(fixture, progressing("AwaitingDeletion"));
    hold(fixture, &child, &[]);
    wait_for(fixture, RUNNING);
}

#[test]
fn a_job_that_waits_progresses_and_a_failed_run_is_degraded() {
    let fixture = Fixture::running("health-waits", &json!({}));
    fixture.pods.run.lock().reward_outage = Some("connection refused");
    wait_for(&fixture, progressing("RewardUnavailable"));
    fixture.pods.run.lock().reward_outage = None;
    wait_for(&fixture, RUNNING);
    fixture.pods.run.lock().journal_failure = Some("database or disk is full");
    wait_for(&fixture, progressing("StorageUnavailable"));
    fixture.pods.run.lock().journal_failure = None;
    wait_for(&fixture, RUNNING);
    fixture.pods.run.lock().end = Some("Restarting");
    wait_for(&fixture, progressing("Restarting"));
    fixture.pods.run.lock().end = None;
    wait_for(&fixture, RUNNING);
    fixture.pods.run.lock().is_silent = true;
    wait_for(&fixture, progressing("CoordinatorUnresponsive"));
    fixture.pods.run.lock().is_silent = false;
    wait_for(&fixture, RUNNING);
    fixture.pods.run.lock().end = Some("Failed");
    wait_for(&fixture, degraded("Failed"));
}

#[test]
fn a_queued_job_is_suspended_for_argo_cd_and_progresses_for_flux() {
    let mut fixture = Fixture::new("health-queued", &queued(&json!({})));
    let kueue = Kueue::of(&fixture);
    fixture.start_queued_operator();
    wait_for(&fixture, ("Suspended", "Queued", "InProgress", "InProgress"));
    kueue.wait_for_workload();
    kueue.admit("spot", None);
    wait_for(&fixture, RUNNING);
}

#[test]
fn a_job_without_progress_progresses() {
    let policy = json!({"spec": {"failurePolicy": {"hangTimeoutSeconds": 10}}});
    let fixture = Fixture::running("health-no-progress", &policy);
    wait_for(&fixture, progressing("NoProgress"));
}

#[test]
fn a_job_that_needs_a_person_is_degraded_until_it_is_changed() {
    let patch = json!({"spec": {"training": {"minibatches": 5}}});
    let mut fixture = Fixture::new("health-invalid", &patch);
    fixture.start_operator();
    let health = wait_for(&fixture, degraded("InvalidSpec"));
    assert!(health.argocd.message.contains("minibatches"), "{health:?}");
    fixture.patch(&json!({"training": {"minibatches": 1}}));
    wait_for(&fixture, RUNNING);
    let disown = json!([{"op": "remove", "path": "/metadata/ownerReferences"}]);
    fixture.api.edit(&fixture.path("api/v1", "services/sample-trainer"), &disown).unwrap();
    wait_for(&fixture, degraded("ForeignObject"));
}

#[test]
fn a_job_whose_objects_or_pods_are_denied_is_degraded() {
    for (resource, reason) in [("services", "ChildRejected"), ("pods", "PodsCannotStart")] {
        let mut fixture = Fixture::new("health-denied", &json!({}));
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
            "spec": {"hard": {resource: "0"}},
        });
        fixture.namespace.kubectl.apply(&quota.to_string()).unwrap();
        fixture.start_operator();
        let health = wait_for(&fixture, degraded(reason));
        assert!(health.argocd.message.contains("is forbidden"), "{health:?}");
    }
}

#[test]
fn a_job_with_a_coordinator_of_another_release_is_degraded() {
    let fixture = Fixture::running("health-release", &json!({}));
    fixture.pods.run.lock().end = Some("PhaseOfAnotherRelease");
    let health = wait_for(&fixture, degraded("ProtocolUnsupported"));
    assert!(health.argocd.message.contains("PhaseOfAnotherRelease"), "{health:?}");
    fixture.pods.run.lock().end = None;
    wait_for(&fixture, RUNNING);
}

#[test]
fn the_config_map_of_argo_cd_has_the_health_check() {
    let script = read("manifests/gitops/argocd/health.lua");
    let indented: String = script
        .lines()
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") })
        .collect();
    let committed = read(ARGOCD_CM);
    let key = "  resource.customizations.health.rljob.dev_RLJob: |\n";
    let (start, _) = committed.split_once(key).unwrap();
    let expected = format!("{start}{key}{indented}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(workspace().join(ARGOCD_CM), &expected).unwrap();
    } else {
        assert_eq!(committed, expected, "run this test with UPDATE=1 and review the difference");
    }
}
