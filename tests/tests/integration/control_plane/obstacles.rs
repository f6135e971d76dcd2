//! Obstacles of a running job: an invalid spec, foreign objects. The operator creates nothing, but
//! the run still ends, drains and frees its pods.

use serde_json::json;

use super::fixture::Fixture;
use super::operator::{field, wait_for_pods};

const STALLED: &str = ".status.conditions[?(@.type=='Stalled')]['status','reason']";
const SUCCEEDED: &str = ".status.conditions[?(@.type=='Succeeded')]['status','reason']";

/// A running job whose storage is a hostPath, under an operator that rejects it.
fn with_invalid_spec(prefix: &str) -> Fixture {
    let mut fixture = Fixture::running(prefix, &json!({"spec": {"drainTimeoutSeconds": 5}}));
    fixture.start_strict_operator();
    fixture.wait_for("Stalled");
    assert_eq!(read(&fixture, STALLED), "True InvalidSpec");
    fixture
}

/// A running job whose headless Service belongs to another owner.
fn with_foreign_object(prefix: &str) -> Fixture {
    let fixture = Fixture::running(prefix, &json!({"spec": {"drainTimeoutSeconds": 5}}));
    let disown = json!([{"op": "remove", "path": "/metadata/ownerReferences"}]);
    fixture.api.edit(&fixture.path("api/v1", "services/sample-trainer"), &disown).unwrap();
    fixture.wait_for("Stalled");
    assert_eq!(read(&fixture, STALLED), "True ForeignObject");
    fixture
}

fn read(fixture: &Fixture, path: &str) -> String {
    field(&fixture.namespace, "rljob/sample", path)
}

fn completes(fixture: &Fixture) {
    wait_for_pods(&fixture.namespace, 3);
    fixture.pods.run.lock().end = Some("Finished");
    fixture.wait_for("Succeeded");
    wait_for_pods(&fixture.namespace, 0);
}

fn drains_and_resumes(mut fixture: Fixture, remove_obstacle: impl FnOnce(&mut Fixture)) {
    fixture.patch(&json!({"suspend": true}));
    fixture.wait_for("Suspended");
    wait_for_pods(&fixture.namespace, 0);
    remove_obstacle(&mut fixture);
    fixture.patch(&json!({"suspend": false}));
    fixture.wait_for("Ready");
    wait_for_pods(&fixture.namespace, 3);
}

fn exceeds_its_deadline(fixture: &Fixture) {
    fixture.patch(&json!({"activeDeadlineSeconds": 1}));
    wait_for_pods(&fixture.namespace, 0);
    assert_eq!(read(fixture, SUCCEEDED), "False DeadlineExceeded");
}

fn replaces_a_lost_pod(fixture: &Fixture) {
    fixture.lose_pod("sample-coordinator-0");
    fixture.wait_for_status(&json!({"epoch": 2}));
    wait_for_pods(&fixture.namespace, 3);
}

#[test]
fn a_running_job_with_an_invalid_spec_completes() {
    completes(&with_invalid_spec("invalid-ends"));
}

#[test]
fn a_running_job_with_an_invalid_spec_drains_and_resumes_when_it_is_allowed() {
    drains_and_resumes(with_invalid_spec("invalid-drains"), Fixture::start_operator);
}

#[test]
fn a_running_job_with_an_invalid_spec_fails_at_its_deadline() {
    exceeds_its_deadline(&with_invalid_spec("invalid-late"));
}

#[test]
fn a_running_job_with_an_invalid_spec_continues_after_the_loss_of_its_coordinator() {
    replaces_a_lost_pod(&with_invalid_spec("invalid-loses"));
}

#[test]
fn a_running_job_with_a_foreign_object_completes() {
    completes(&with_foreign_object("foreign-ends"));
}

#[test]
fn a_running_job_with_a_foreign_object_drains_and_resumes_without_it() {
    drains_and_resumes(with_foreign_object("foreign-drains"), |fixture| {
        let path = fixture.path("api/v1", "services/sample-trainer");
        fixture.api.delete(&path, &json!({})).unwrap();
    });
}

#[test]
fn a_running_job_with_a_foreign_object_fails_at_its_deadline() {
    exceeds_its_deadline(&with_foreign_object("foreign-late"));
}

#[test]
fn a_running_job_with_a_foreign_object_continues_after_the_loss_of_its_coordinator() {
    replaces_a_lost_pod(&with_foreign_object("foreign-loses"));
}
