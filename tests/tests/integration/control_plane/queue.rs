//! Jobs in queues of Kueue. The API server has Kueue's CRDs; the test plays Kueue: it admits and
//! evicts Workloads as Kueue's scheduler and controllers do.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use self::kueue::{Kueue, QUEUE, queued};
use super::fixture::Fixture;
use super::operator::{LIMIT, field, wait_for_pods};

mod eviction;
pub(super) mod kueue;
mod priority;
mod required;
mod resize;
mod topology;

/// Status, reason and message of a condition of the job.
fn condition(fixture: &Fixture, type_: &str) -> [String; 3] {
    let job = fixture.job();
    let mut conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == type_);
    let found = found.cloned().unwrap_or_default();
    ["status", "reason", "message"].map(|part| found[part].as_str().unwrap_or_default().to_owned())
}

fn wait_for_condition(fixture: &Fixture, type_: &str, expected: [&str; 3]) {
    wait_until(&format!("{type_} to be {expected:?}"), LIMIT, || {
        Ok(condition(fixture, type_) == expected)
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", fixture.job(), fixture.output()));
}

/// Starts a job in a queue and waits until its Workload exists.
fn start(prefix: &str, patch: &Value) -> (Fixture, Kueue) {
    let mut fixture = Fixture::new(prefix, &queued(patch));
    let kueue = Kueue::of(&fixture);
    fixture.start_queued_operator();
    kueue.wait_for_workload();
    (fixture, kueue)
}

/// Starts a job in a queue and waits until it trains on nodes of the flavor `spot`.
fn running(prefix: &str, patch: &Value) -> (Fixture, Kueue) {
    let (fixture, kueue) = start(prefix, patch);
    kueue.admit("spot", None);
    fixture.wait_for("Ready");
    (fixture, kueue)
}

#[test]
fn a_workload_has_the_pods_that_the_job_would_start() {
    let patch = json!({"spec": {"inference": {"replicas": 2}, "trainer": {"replicas": 3}}});
    let (fixture, kueue) = start("workload", &patch);
    // The status is written before children are created, and this one is created last.
    let last = fixture.path("apis/apps/v1", "statefulsets/sample-coordinator");
    wait_until("the last StatefulSet", LIMIT, || Ok(fixture.api.get(&last).is_ok())).unwrap();
    let mut workload = kueue.workload().unwrap();
    let metadata = workload["metadata"].take();
    let job = fixture.job();
    let name = metadata["name"].as_str().unwrap();
    assert!(name.starts_with("rljob-sample-") && name.len() == 18, "{name}");
    assert_eq!(
        metadata["ownerReferences"],
        json!([{
            "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "sample",
            "uid": job["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
        }])
    );
    assert_eq!(metadata["labels"]["kueue.x-k8s.io/job-uid"], job["metadata"]["uid"]);
    assert_eq!(metadata.get("finalizers"), None);
    let template = |role: &str| {
        let set = fixture.path("apis/apps/v1", &format!("statefulsets/sample-{role}"));
        fixture.api.get(&set).unwrap()["metadata"]["annotations"]["rljob.dev/pod-template"].take()
    };
    let set = |role: &str, count: u32| {
        let template: Value = serde_json::from_str(template(role).as_str().unwrap()).unwrap();
        json!({"name": role, "count": count, "template": template})
    };
    let sets = json!([set("inference", 2), set("coordinator", 1), set("trainer", 3)]);
    assert_eq!(
        workload["spec"],
        json!({"active": true, "queueName": QUEUE, "podSets": sets}),
        "{workload:#}"
    );
}

#[test]
fn a_job_has_pods_only_after_its_admission_and_on_the_assigned_nodes() {
    let (fixture, kueue) = start("admission", &json!({}));
    let name = kueue.name();
    let waits = format!("waiting for Kueue to admit Workload {name} from LocalQueue {QUEUE}");
    wait_for_condition(&fixture, "Suspended", ["True", "Queued", &waits]);
    kueue.reject("WaitingForQuota", "insufficient unused quota for cpu");
    let waits =
        format!("Workload {name} waits: WaitingForQuota: insufficient unused quota for cpu");
    for (type_, status) in [("Suspended", "True"), ("Succeeded", "Unknown"), ("Ready", "False")] {
        wait_for_condition(&fixture, type_, [status, "Queued", &waits]);
    }
    wait_for_condition(&fixture, "Reconciling", ["True", "Queued", &waits]);
    assert_eq!(fixture.job()["status"]["startTime"], Value::Null);
    fixture.wait_until_idle();
    wait_for_pods(&fixture.namespace, 0);

    kueue.admit("spot", None);
    fixture.wait_for("Ready");
    wait_for_condition(&fixture, "Suspended", ["False", "NotSuspended", "not suspended"]);
    for role in ["inference", "coordinator", "trainer"] {
        let pod = fixture.path("api/v1", &format!("pods/sample-{role}-0"));
        let pod = fixture.api.get(&pod).unwrap();
        assert_eq!(pod["spec"]["nodeSelector"], json!({"pool": "spot"}));
        let toleration = json!({"key": "pool", "operator": "Equal", "value": "spot"});
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        assert!(tolerations.contains(&toleration), "{tolerations:?}");
        assert_eq!(pod["metadata"]["labels"]["kueue.x-k8s.io/podset"], role);
    }
    kueue.wait_for("PodsReady", ["True", "Started", "all pods are ready"]);
    let job = fixture.job();
    assert_eq!(job["metadata"]["generation"], 1, "the operator changed the spec: {job:#}");
    let writers = job["metadata"]["managedFields"].as_array().unwrap();
    let of_operator = writers.iter().filter(|writer| writer["manager"] == "rljob.dev/operator");
    for writer in of_operator {
        assert_eq!(writer["subresource"], "status", "{writer:#}");
    }
    fixture.lose_pod("sample-trainer-0");
    fixture.wait_until_idle();
    assert_eq!(
        field(&fixture.namespace, "pod/sample-trainer-0", ".spec.nodeSelector.pool"),
        "spot"
    );
}

#[test]
fn a_finished_job_finishes_its_workload_and_a_resumed_one_is_queued_again() {
    let (fixture, kueue) = running("finish", &json!({}));
    fixture.bring_to("finished");
    wait_for_pods(&fixture.namespace, 0);
    let message = condition(&fixture, "Succeeded")[2].clone();
    kueue.wait_for("Finished", ["True", "Succeeded", &message]);
    let first = kueue.uid();
    fixture.wait_until_idle();

    fixture.pods.run.lock().end = None;
    fixture.patch(&json!({"training": {"steps": 5}}));
    fixture.wait_for("Suspended");
    kueue.wait_for_another(&first);
    kueue.admit("spot", None);
    fixture.wait_for("Ready");
    fixture.bring_to("failed");
    wait_for_pods(&fixture.namespace, 0);
    let message = condition(&fixture, "Succeeded")[2].clone();
    kueue.wait_for("Finished", ["True", "Failed", &message]);
}

#[test]
fn a_suspended_job_has_no_quota_and_is_queued_when_it_resumes() {
    let (fixture, kueue) = running("suspended", &json!({}));
    let first = kueue.uid();
    fixture.bring_to("suspended");
    wait_until("the Workload to be deleted", LIMIT, || Ok(kueue.workload().is_none())).unwrap();
    assert_eq!(condition(&fixture, "Suspended")[1], "Suspended");
    fixture.wait_until_idle();
    fixture.patch(&json!({"suspend": false}));
    kueue.wait_for_another(&first);
    wait_for_pods(&fixture.namespace, 0);
    kueue.admit("spot", None);
    fixture.wait_for("Ready");
}

#[test]
fn a_deleted_job_leaves_no_workload() {
    let (fixture, kueue) = running("deleted", &json!({}));
    fixture.namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
    wait_until("the Workload to be deleted", LIMIT, || Ok(kueue.workload().is_none())).unwrap();
    wait_for_pods(&fixture.namespace, 0);
}

#[test]
fn children_and_workload_are_deleted_after_the_ttl() {
    let (fixture, kueue) = running("ttl", &json!({"spec": {"ttlSecondsAfterFinished": 0}}));
    fixture.bring_to("finished");
    wait_until("the Workload to be deleted", LIMIT, || Ok(kueue.workload().is_none())).unwrap();
    let left = || Ok(fixture.list("apis/apps/v1", "statefulsets").is_empty());
    wait_until("the StatefulSets to be deleted", LIMIT, left).unwrap();
}

#[test]
fn of_two_jobs_that_each_fit_alone_one_runs_and_the_other_has_no_pods() {
    let (first, quota) = start("first", &json!({}));
    let (second, waiting) = start("second", &json!({}));
    quota.admit("spot", None);
    waiting.reject("WaitingForQuota", "insufficient quota");
    first.wait_for("Ready");
    second.wait_until_idle();
    wait_for_pods(&second.namespace, 0);
    first.bring_to("finished");
    quota.wait_for("Finished", ["True", "Succeeded", &condition(&first, "Succeeded")[2]]);
    wait_for_pods(&first.namespace, 0);
    waiting.admit("spot", None);
    second.wait_for("Ready");
}

#[test]
fn without_the_operators_flag_the_label_has_no_effect() {
    let mut fixture = Fixture::new("no-kueue", &queued(&json!({})));
    let kueue = Kueue::of(&fixture);
    fixture.start_operator();
    fixture.wait_for("Ready");
    assert_eq!(kueue.workload(), None);
}
