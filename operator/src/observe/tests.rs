//! What is sorted from objects, and what facts they give.

use super::*;
use crate::decide::{RoleCounts, Roles};
use crate::validate::test_support::validated;
use rljob_crds::names::LABEL_JOB;
use rljob_crds::status::RLJobStatus;
use serde_json::json;

fn pod(name: &str, role: &str, owner: &str, more: &serde_json::Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {
            "name": name, "uid": format!("uid of {name}"), "labels": { LABEL_JOB: "sums", LABEL_ROLE: role },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "any", "uid": owner, "controller": true }],
        },
        "spec": {},
        "status": { "podIP": "fd00::7", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    if more.is_string() {
        pod["metadata"]["deletionTimestamp"] = more.clone();
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn child(
    kind: Kind,
    name: &str,
    uid: &str,
    owner: &str,
    more: &serde_json::Value,
) -> (ChildName, Arc<Live>) {
    let mut object = json!({ "metadata": { "name": name, "uid": uid, "generation": 1,
        "ownerReferences": [{ "apiVersion": "a/v1", "kind": "K", "name": "n", "uid": owner, "controller": true }] } });
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ((kind, name.to_owned()), Arc::new(Live::new(kind, &serde_json::from_value(object).unwrap())))
}

fn set(name: &str, uid: &str, replicas: i32) -> (ChildName, Arc<Live>) {
    let more = json!({ "spec": { "replicas": replicas }, "status": { "replicas": 1, "observedGeneration": 1 } });
    child(Kind::StatefulSet, name, uid, &validated().uid, &more)
}

fn observed() -> Observed {
    let (here, going) = (json!(null), json!("2027-01-15T08:00:00Z"));
    let pods = vec![
        pod("sums-inference-10", "inference", "engines", &here),
        pod("sums-inference-2", "inference", "engines", &here),
        pod("sums-inference-1", "inference", "engines", &going),
        pod("sums-inference-0", "inference", "somebody else", &here),
        pod("sums-coordinator-0", "coordinator", "coordinators", &here),
        pod("sums-trainer-0", "trainer", "no set of ours", &here),
    ];
    Observed::sort(
        &validated(),
        vec![set("sums-inference", "engines", 3), set("sums-coordinator", "coordinators", 1)],
        pods,
    )
}

#[test]
fn only_own_pods_count_and_a_terminating_engine_leaves_the_list() {
    let mut job = validated();
    job.spec.inference.replicas = 11;
    let facts = observed().facts(&job, &RLJobStatus::default(), |_| None);
    let names: Vec<&str> = facts.engines.iter().map(|engine| engine.name.as_str()).collect();
    assert_eq!(names, ["sums-inference-2", "sums-inference-10"]);
    let mut fewer = validated();
    fewer.spec.inference.replicas = 2;
    assert_eq!(
        observed().facts(&fewer, &RLJobStatus::default(), |_| None).engines,
        [],
        "they are to leave"
    );
    assert_eq!(facts.engines[0].url, "http://[fd00::7]:30000");
    let counts = |wanted, existing, ready| RoleCounts { wanted, existing, ready };
    assert_eq!(
        facts.roles,
        Roles {
            inference: counts(3, 3, 2),
            coordinator: counts(1, 1, 1),
            trainer: counts(0, 0, 0)
        }
    );
}

#[test]
fn pods_that_are_not_seen_yet_are_not_taken_for_gone() {
    let existing = |replicas: i32, counted: i32, observed: i64, was_suspended: bool| {
        let more = json!({ "spec": { "replicas": replicas }, "status": { "replicas": counted, "observedGeneration": observed } });
        let set = child(Kind::StatefulSet, "sums-trainer", "trainers", &validated().uid, &more);
        Observed::sort(&validated(), vec![set], Vec::new())
            .counts(Role::Trainer, was_suspended)
            .existing
    };
    let counts = [
        existing(0, 0, 1, false),
        existing(0, 2, 1, false),
        existing(0, 0, 0, false),
        existing(0, 0, 0, true),
    ];
    assert_eq!(
        counts,
        [0, 2, 1, 0],
        "settled, with two pods, not looked at yet, edited while suspended"
    );
}

#[test]
fn what_a_pod_cannot_do_is_said_in_its_own_words() {
    let mut observed = observed();
    assert_eq!((observed.directory_in_use(), observed.blocked()), (None, None));
    let message = "a log line\nerror: it belongs to lab/other\n";
    let status = json!({
        "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient nvidia.com/gpu" }],
        "containerStatuses": [{ "name": "coordinator", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "lastState": { "terminated": { "exitCode": 78, "message": message } } }],
    });
    let pod = &mut observed.pods.get_mut(&Role::Coordinator).unwrap()[0];
    Arc::make_mut(pod).status = Some(serde_json::from_value(status).unwrap());
    assert_eq!(observed.directory_in_use().as_deref(), Some("it belongs to lab/other"));
    assert_eq!(
        observed.blocked().as_deref(),
        Some("sums-coordinator-0 cannot be scheduled: 1 Insufficient nvidia.com/gpu")
    );
}

#[test]
fn a_pod_that_waits_for_its_volumes_is_seen() {
    let mut observed = observed();
    assert_eq!(observed.unmounted_since(), None);
    let status = json!({ "conditions": [
        { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z" },
        { "type": "PodReadyToStartContainers", "status": "False" },
    ] });
    let pod = &mut observed.pods.get_mut(&Role::Inference).unwrap()[1];
    Arc::make_mut(pod).status = Some(serde_json::from_value(status).unwrap());
    assert_eq!(observed.unmounted_since(), Some("2027-01-15T08:00:00Z".parse().unwrap()));
}

#[test]
fn the_coordinator_is_its_pods_uid_and_address() {
    assert_eq!(
        observed().coordinator(),
        Some(("uid of sums-coordinator-0".to_owned(), Some("http://[fd00::7]:8080".to_owned())))
    );
    assert_eq!(Observed::default().coordinator(), None);
}

#[test]
fn a_child_is_ours_by_its_controlling_owners_uid() {
    let job = validated();
    let found = [("sums-run", job.uid.as_str()), ("sums", "another")]
        .map(|(name, owner)| child(Kind::ConfigMap, name, "u", owner, &json!({})));
    let observed = Observed::sort(&job, found.into(), Vec::new());
    let own: Vec<String> =
        observed.children.keys().map(|(kind, name)| format!("{kind} {name}")).collect();
    assert_eq!(
        (own, observed.foreign),
        (vec!["ConfigMap sums-run".to_owned()], vec!["ConfigMap sums".to_owned()])
    );
}
