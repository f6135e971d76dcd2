//! Coordinators that do not answer: silent, in a crash loop, or never reachable; reports of one
//! that does.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::operator::{LIMIT, wait_for_pods};
use super::pods::set_status;

fn condition(fixture: &Fixture, type_: &str) -> Value {
    let job = fixture.job();
    let conditions = job["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == type_).unwrap().clone()
}

fn wait_for_ready(fixture: &Fixture, status: &str, reason: &str) -> String {
    let is = || {
        let ready = condition(fixture, "Ready");
        Ok(ready["status"] == status && ready["reason"] == reason)
    };
    wait_until(&format!("Ready={status}, {reason}"), LIMIT, is)
        .unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", fixture.job(), fixture.output()));
    condition(fixture, "Ready")["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_coordinator_that_stops_answering_makes_the_job_not_ready_until_it_answers() {
    let fixture = Fixture::running("silent", &json!({}));
    fixture.pods.run.lock().is_silent = true;
    let message = wait_for_ready(&fixture, "False", "CoordinatorUnresponsive");
    assert!(
        message.starts_with("the coordinator has not answered since 20")
            && message.contains("503 Service Unavailable"),
        "{message}"
    );
    assert_eq!(condition(&fixture, "Stalled")["status"], "False");
    wait_for_pods(&fixture.namespace, 3);
    fixture.pods.run.lock().is_silent = false;
    assert_eq!(wait_for_ready(&fixture, "True", "Running"), "training");
}

/// Without a kubelet, the test writes the pod's status.
#[test]
fn a_coordinator_in_a_crash_loop_fails_the_run_with_its_last_message() {
    let policy = json!({"spec": {"failurePolicy": {"maxRestarts": 2}}});
    let fixture = Fixture::running("crash-loop", &policy);
    fixture.pods.run.lock().is_silent = true;
    let message = "error: the journal /rljob/run/journal.sqlite is damaged\n";
    let ended = json!({
        "exitCode": 1, "reason": "Error", "message": message,
        "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z",
    });
    let container = json!({
        "name": "coordinator", "image": "rljob:a", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended},
    });
    set_status(
        &fixture.namespace,
        "sample-coordinator-0",
        &json!({"containerStatuses": [container]}),
    );
    fixture.wait_for("Stalled");
    let succeeded = condition(&fixture, "Succeeded");
    assert_eq!(
        (&succeeded["status"], &succeeded["reason"], &succeeded["message"]),
        (
            &json!("False"),
            &json!("CoordinatorFailed"),
            &json!(
                "the coordinator restarted 3 times without an answer; failurePolicy.maxRestarts is \
                 2: sample-coordinator-0 exited with code 1 (Error): error: the journal \
                 /rljob/run/journal.sqlite is damaged"
            )
        )
    );
    wait_for_pods(&fixture.namespace, 0);
}

/// Without a kubelet, the test writes the pod's status.
#[test]
fn a_rule_applies_to_failures_after_it_was_set() {
    let fixture = Fixture::running("late-rule", &json!({}));
    let exit = |finished: jiff::Timestamp, restarts: u32| {
        let ended = json!({
            "exitCode": 3, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": format!("{finished:.0}"),
        });
        let container = json!({
            "name": "engine", "image": "rljob:a", "imageID": "", "ready": true,
            "restartCount": restarts, "lastState": {"terminated": ended},
            "state": {"running": {"startedAt": format!("{finished:.0}")}},
        });
        let status = json!({"containerStatuses": [container]});
        set_status(&fixture.namespace, "sample-inference-0", &status);
    };
    let now = jiff::Timestamp::now();
    exit(now - jiff::SignedDuration::from_secs(60), 1);
    let rule = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}});
    fixture.patch(&json!({"failurePolicy": {"rules": [rule]}}));
    let is_recorded = || Ok(fixture.job()["status"]["failureRules"]["since"].is_string());
    wait_until("the rule in the status", LIMIT, is_recorded).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(condition(&fixture, "Succeeded")["status"], "Unknown", "{:#}", fixture.job());
    exit(jiff::Timestamp::now(), 2);
    fixture.wait_for("Stalled");
    let message = condition(&fixture, "Succeeded")["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("failurePolicy.rules[0] fails the job"), "{message}");
}

#[test]
fn suspending_a_job_whose_coordinator_never_answered_deletes_its_pods_at_once() {
    let mut fixture = Fixture::new("mute", &json!({"spec": {"drainTimeoutSeconds": 600}}));
    fixture.pods.run.lock().is_silent = true;
    fixture.start_operator();
    wait_for_pods(&fixture.namespace, 3);
    fixture.wait_for_status(&json!({"epoch": 1}));
    fixture.patch(&json!({"suspend": true}));
    fixture.wait_for("Suspended");
    wait_for_pods(&fixture.namespace, 0);
}

#[test]
fn a_run_that_completes_no_step_for_longer_than_its_limit_is_not_ready() {
    let policy = json!({"spec": {"failurePolicy": {"hangTimeoutSeconds": 10}}});
    let fixture = Fixture::running("no-progress", &policy);
    let message = wait_for_ready(&fixture, "False", "NoProgress");
    assert!(message.starts_with("no step has been completed since 20"), "{message}");
    assert!(message.ends_with("; the learners wait for samples"), "{message}");
    assert_eq!(condition(&fixture, "Stalled")["status"], "False");
    wait_for_pods(&fixture.namespace, 3);
    fixture.pods.run.lock().step += 1;
    assert_eq!(wait_for_ready(&fixture, "True", "Running"), "training");
}

#[test]
fn a_run_that_does_not_train_before_its_startup_deadline_fails_and_frees_its_pods() {
    let limit = json!({"spec": {"startupDeadlineSeconds": 3}});
    let mut fixture = Fixture::new("startup", &limit);
    fixture.pods.run.lock().is_silent = true;
    fixture.start_operator();
    wait_for_pods(&fixture.namespace, 3);
    fixture.wait_for("Stalled");
    let succeeded = condition(&fixture, "Succeeded");
    assert_eq!(
        (&succeeded["status"], &succeeded["reason"]),
        (&json!("False"), &json!("StartupDeadlineExceeded"))
    );
    wait_for_pods(&fixture.namespace, 0);
}

#[test]
fn the_memory_plan_of_learners_and_what_they_use_are_in_the_status() {
    let fixture = Fixture::running("memory", &json!({}));
    let memory = || fixture.job()["status"]["memory"].take();
    assert_eq!(memory(), Value::Null);
    let mut plan = json!({
        "parts": [
            {"name": "weights", "bytes": 9_u64 << 30}, {"name": "activations", "bytes": i64::MAX},
        ],
        "totalBytes": i64::MAX, "usableBytes": 131_u64 << 30, "fits": false,
        "sharding": "Gradients", "recomputedLayers": 8, "selectiveLayers": 20, "layers": 28,
    });
    fixture.pods.run.lock().memory = plan.clone();
    wait_until("the plan", LIMIT, || Ok(memory() == plan)).unwrap();
    // The first step changes the progress, which is written once a minute: a restart is written at
    // once, with everything else.
    let mut run = fixture.pods.run.lock();
    run.metrics = json!({"step": 1, "attempt": 0, "peakMemoryBytes": 50_u64 << 30});
    run.attempt += 1;
    drop(run);
    plan["peakBytes"] = json!(50_u64 << 30);
    wait_until("the peak", LIMIT, || Ok(memory() == plan)).unwrap();
}
