//! Tests of sorting and of the derived facts.

use k8s_openapi::api::core::v1::PodStatus;
use rljob_crds::names::{LABEL_JOB, LABEL_ROLE};
use rljob_protocol::status::{CoordinatorStatus, EngineCondition, EngineState};
use serde_json::{Value, json};

use super::objects::Unexplained;
use super::*;
use crate::cache::Pod;
use crate::children::Kind;
use crate::decide::test_support::{at, report};
use crate::decide::{Epoch, Obstacle, RoleCounts, Roles, Waiting};
use crate::desired::Role;
use crate::pods::test_support;
use crate::validate::test_support::validated;

fn pod(name: &str, role: &str, owner: &str, deletion: &Value) -> Arc<Pod> {
    let owner = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "any",
        "uid": owner,
        "controller": true,
    });
    let mut pod = json!({
        "metadata": {
            "name": name,
            "uid": format!("uid of {name}"),
            "labels": { LABEL_JOB: "sums", LABEL_ROLE: role },
            "ownerReferences": [owner],
        },
        "spec": {},
        "status": { "podIP": "fd00::7", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    if deletion.is_string() {
        pod["metadata"]["deletionTimestamp"] = deletion.clone();
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn child(
    kind: Kind,
    name: &str,
    uid: &str,
    owner: &str,
    fields: &Value,
) -> (ChildName, Arc<ObservedChild>) {
    let owner = json!({
        "apiVersion": "a/v1",
        "kind": "K",
        "name": "n",
        "uid": owner,
        "controller": true,
    });
    let mut object = json!({
        "metadata": { "name": name, "uid": uid, "generation": 1, "ownerReferences": [owner] },
    });
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let child = ObservedChild::new(kind, &serde_json::from_value(object).unwrap());
    ((kind, name.to_owned()), Arc::new(child))
}

fn set(name: &str, uid: &str, replicas: i32) -> (ChildName, Arc<ObservedChild>) {
    let fields = json!({
        "spec": { "replicas": replicas },
        "status": { "replicas": 1, "observedGeneration": 1 },
    });
    child(Kind::StatefulSet, name, uid, &validated().uid, &fields)
}

fn objects() -> Objects {
    let (none, deletion) = (json!(null), json!("2027-01-15T08:00:00Z"));
    let pods = vec![
        pod("sums-inference-10", "inference", "engines", &none),
        pod("sums-inference-2", "inference", "engines", &none),
        pod("sums-inference-1", "inference", "engines", &deletion),
        pod("sums-inference-0", "inference", "another owner", &none),
        pod("sums-coordinator-0", "coordinator", "coordinators", &none),
        pod("sums-trainer-0", "trainer", "no set of the job", &none),
    ];
    let sets =
        vec![set("sums-inference", "engines", 3), set("sums-coordinator", "coordinators", 1)];
    Objects::sort(&validated(), sets, pods)
}

fn observed(objects: Objects, job: &Job, remembered: Remembered) -> Observed {
    objects.into_observed(job, &RLJobStatus::default(), None, remembered, at(0))
}

#[test]
fn engines_that_span_pods_are_counted_and_listed_once() {
    let none = json!(null);
    let engine = |ordinal: u32, deletion: &Value| {
        pod(&format!("sums-inference-{ordinal}"), "inference", "engines", deletion)
    };
    let deletion = json!("2027-01-15T08:00:00Z");
    let pods = vec![
        engine(0, &none),
        engine(1, &none),
        engine(2, &none),
        engine(3, &deletion),
        engine(5, &none),
    ];
    let sets = vec![set("sums-inference", "engines", 6)];
    let mut job = validated();
    job.spec.inference =
        serde_json::from_value(json!({"sglang": {}, "replicas": 3, "podsPerReplica": 2})).unwrap();
    let facts = observed(Objects::sort(&job, sets, pods), &job, Remembered::default()).facts;
    let names: Vec<&str> = facts.engines.iter().map(|engine| engine.name.as_str()).collect();
    assert_eq!(names, ["sums-inference-0", "sums-inference-2"], "the first pods that exist");
    assert_eq!(facts.roles.inference, RoleCounts { wanted: 3, existing: 3, ready: 1 });
}

#[test]
fn only_own_pods_count_and_terminating_engines_are_not_listed() {
    let mut job = validated();
    job.spec.inference.replicas = 11;
    let facts = observed(objects(), &job, Remembered::default()).facts;
    let names: Vec<&str> = facts.engines.iter().map(|engine| engine.name.as_str()).collect();
    assert_eq!(names, ["sums-inference-2", "sums-inference-10"]);
    assert_eq!(facts.engines[0].url, "https://[fd00::7]:30000");
    job.spec.inference.replicas = 2;
    let engines = observed(objects(), &job, Remembered::default()).facts.engines;
    assert_eq!(engines, [], "the spec does not want them");
    let counts = |wanted, existing, ready| RoleCounts { wanted, existing, ready };
    let expected = Roles {
        inference: counts(3, 3, 2),
        evaluation: counts(0, 0, 0),
        reward: counts(0, 0, 0),
        teacher: counts(0, 0, 0),
        coordinator: counts(1, 1, 1),
        trainer: counts(0, 0, 0),
        group: counts(0, 0, 0),
        verifier: counts(0, 0, 0),
    };
    assert_eq!(facts.roles, expected);
}

#[test]
fn pods_that_are_not_observed_yet_count_as_existing() {
    let existing = |replicas: i32, counted: i32, generation: i64, was_suspended: bool| {
        let fields = json!({
            "spec": { "replicas": replicas },
            "status": { "replicas": counted, "observedGeneration": generation },
        });
        let set = child(Kind::StatefulSet, "sums-trainer", "trainers", &validated().uid, &fields);
        Objects::sort(&validated(), vec![set], Vec::new())
            .counts(Role::Trainer, was_suspended)
            .existing
    };
    let counts = [
        existing(0, 0, 1, false),
        existing(0, 2, 1, false),
        existing(0, 0, 0, false),
        existing(0, 0, 0, true),
    ];
    let cases = "settled, two pods, generation not observed, edited while suspended";
    assert_eq!(counts, [0, 2, 1, 0], "{cases}");
}

#[test]
fn a_run_directory_in_use_and_an_unschedulable_pod_are_reported_with_their_messages() {
    let mut objects = objects();
    assert_eq!((objects.directory_in_use(), objects.waiting(Vec::new())), (None, vec![]));
    let log = concat!(
        "a log line\n",
        r#"{"timestamp":"t","level":"ERROR","message":"it belongs to lab/other","#,
        "\"role\":\"coordinator\"}\n",
    );
    let terminated = json!({ "exitCode": 78, "message": log });
    let status = json!({
        "conditions": [{
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "1 Insufficient nvidia.com/gpu",
        }],
        "containerStatuses": [{
            "name": "coordinator", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "lastState": { "terminated": terminated },
        }],
    });
    let pod = &mut objects.pods.get_mut(&Role::Coordinator).unwrap()[0];
    Arc::make_mut(pod).status = Some(serde_json::from_value(status).unwrap());
    assert_eq!(objects.directory_in_use().as_deref(), Some("it belongs to lab/other"));
    let unschedulable = objects.waiting(Vec::new());
    let messages: Vec<_> = unschedulable.iter().map(|waiting| waiting.message.as_str()).collect();
    let expected = "sums-coordinator-0 cannot be scheduled: 1 Insufficient nvidia.com/gpu";
    assert_eq!(messages, [expected]);
    let quota = Waiting {
        name: "sums-trainer".to_owned(),
        reason: "FailedCreate".to_owned(),
        message: "exceeded quota".to_owned(),
        needs_user: true,
    };
    let both = [vec![quota.clone()], unschedulable].concat();
    assert_eq!(objects.waiting(vec![quota]), both, "only a person can help");
}

#[test]
fn pods_that_wait_for_their_volumes_are_reported() {
    let mut objects = objects();
    assert_eq!((objects.unmounted_since(), objects.unexplained(&validated())), (None, Vec::new()));
    let status = json!({ "conditions": [
        { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z" },
        { "type": "PodReadyToStartContainers", "status": "False" },
    ] });
    let status: Option<PodStatus> = Some(serde_json::from_value(status).unwrap());
    let since: Timestamp = "2027-01-15T08:00:00Z".parse().unwrap();
    for (role, index) in [(Role::Inference, 1), (Role::Coordinator, 0)] {
        let pod = &mut objects.pods.get_mut(&role).unwrap()[index];
        Arc::make_mut(pod).status.clone_from(&status);
    }
    assert_eq!(objects.unmounted_since(), Some(since));
    let unexplained = |name: &str| Unexplained {
        name: name.to_owned(),
        uid: format!("uid of {name}"),
        since: Some(since),
    };
    let expected = vec![unexplained("sums-inference-2"), unexplained("sums-coordinator-0")];
    assert_eq!(objects.unexplained(&validated()), expected);
}

#[test]
fn the_coordinator_is_identified_by_uid_and_address() {
    let expected = CoordinatorPod {
        uid: "uid of sums-coordinator-0".to_owned(),
        url: Some("https://[fd00::7]:8080".to_owned()),
        restarts: 0,
    };
    assert_eq!(objects().coordinator(), Some(expected));
    assert_eq!(Objects::default().coordinator(), None);
}

#[test]
fn a_child_is_identified_by_the_uid_of_its_controlling_owner() {
    let job = validated();
    let found = [("sums-run", job.uid.as_str()), ("sums", "another")]
        .map(|(name, owner)| child(Kind::ConfigMap, name, "u", owner, &json!({})));
    let facts_of = observed(Objects::sort(&job, found, Vec::new()), &job, Remembered::default());
    let own: Vec<String> =
        facts_of.children.keys().map(|(kind, name)| format!("{kind} {name}")).collect();
    assert_eq!(own, ["ConfigMap sums-run"]);
    let expected = Obstacle::foreign_objects(&["ConfigMap sums".to_owned()]);
    assert_eq!(facts_of.facts.obstacle, expected);
}

#[test]
fn a_child_of_a_deleted_job_of_the_same_name_is_awaited() {
    let job = validated();
    let owner = json!({
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "sums", "uid": "deleted",
        "controller": true,
    });
    let metadata = json!({"name": "sums-run", "uid": "u", "ownerReferences": [owner]});
    let leftover =
        child(Kind::ConfigMap, "sums-run", "u", "deleted", &json!({ "metadata": metadata }));
    let facts_of =
        |found| observed(Objects::sort(&job, found, Vec::new()), &job, Remembered::default()).facts;
    let expected = Obstacle::leftovers(&["ConfigMap sums-run".to_owned()]);
    assert_eq!(facts_of(vec![leftover.clone()]).obstacle, expected);
    let foreign = child(Kind::Service, "sums-trainer", "v", "another", &json!({}));
    let expected = Obstacle::foreign_objects(&["Service sums-trainer".to_owned()]);
    assert_eq!(facts_of(vec![leftover, foreign]).obstacle, expected, "the user must act");
}

#[test]
fn the_facts_have_epoch_report_and_incidents() {
    let job = validated();
    let (seen, other) =
        (test_support::pod("sums-inference-0"), test_support::pod("sums-trainer-0"));
    let remembered = || Remembered {
        pods: crate::pods::stable(&[seen.clone(), other.clone()]),
        ..Remembered::default()
    };
    let facts = observed(objects(), &job, remembered()).facts;
    let holder = Some("uid of sums-coordinator-0".to_owned());
    assert_eq!(facts.epoch, Epoch { number: 1, holder: holder.clone() });
    assert_eq!(facts.recorded.epoch, Epoch::default());
    assert!(facts.coordinator_unasked);
    let incidents: Vec<&str> = facts.incidents.iter().map(|entry| entry.pod.as_str()).collect();
    let case = "a deleted engine and a vanished one; the trainers' set is not observed";
    assert_eq!(incidents, ["sums-inference-1", "sums-inference-0"], "{case}");

    let old = RLJobStatus { epoch: 3, coordinator_uid: holder, ..RLJobStatus::default() };
    let engine = EngineState {
        name: "sums-inference-2".to_owned(),
        state: EngineCondition::Unreachable,
        version: None,
        silent_seconds: Some(300),
        uid: None,
        unsuitable: None,
    };
    let report = CoordinatorStatus { engines: vec![engine], ..report() };
    let with_report = |epoch| {
        let report = CoordinatorStatus { epoch: Some(epoch), ..report.clone() };
        let remembered =
            Remembered { report: Some(report), was_asked: true, ..Remembered::default() };
        let mut objects = objects();
        for pod in objects.pods.get_mut(&Role::Inference).unwrap() {
            let conditions = Arc::make_mut(pod).status.as_mut().unwrap().conditions.as_mut();
            let ready = &mut conditions.unwrap()[0];
            ready.last_transition_time =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(-100)));
        }
        objects.into_observed(&job, &old, None, remembered, at(0))
    };
    let current = with_report(3);
    assert!(current.facts.report().is_some() && !current.facts.coordinator_unasked);
    assert_eq!(current.pod_plan.removals[0].name, "sums-inference-2");
    let reasons: Vec<&str> =
        current.facts.incidents.iter().map(|entry| entry.reason.as_str()).collect();
    assert_eq!(reasons, ["Deleted", "EngineHung"]);
    let outdated = with_report(2);
    assert_eq!((outdated.facts.report(), outdated.pod_plan.removals.len()), (None, 0));
}
