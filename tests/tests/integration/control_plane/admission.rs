//! Mutability of every field of the spec, while the run has pods and while it is suspended; and
//! updates of objects that an older or newer CRD admitted.

use std::collections::BTreeSet;
use std::fs;

use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;
use rljob_tests::{Api, Cluster, Namespace};
use serde_json::{Value, json};

use super::operator::{
    self, LIMIT, OWN, Operator, field, namespace_in, namespace_with, patch, wait_for_condition,
    wait_for_pods,
};
use super::{cluster, merge};

/// States of a job in which a field may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutability {
    Always,
    WhileSuspended,
    /// Frozen once the run has started.
    Never,
}

const FROZEN: &str = "the run has started: to change this field, set spec.suspend to true, wait \
    for condition Suspended";
const FIXED: &str = "the run has started: spec.model, spec.lora, the location of spec.storage, the \
    kind of spec.algorithm, and whether ppo has a valueHead and valueNormalization, cannot change";
const FINISHED: &str = "the run has finished: its spec cannot change";

/// A change of every field of the spec and of `inference`.
#[expect(clippy::too_many_lines, reason = "one table of cases")]
fn changes() -> Vec<(Mutability, Value)> {
    use Mutability::{Always, Never, WhileSuspended};
    let inference = |fields: Value| json!({ "inference": fields });
    vec![
        (Never, json!({"managedBy": "example.com/other"})),
        (Never, json!({"model": {"path": "/models/other"}})),
        (Never, json!({"storage": {"hostPath": {"path": "/srv/other"}}})),
        (Never, json!({"lora": {"rank": 8}})),
        (
            Never,
            json!({
                "algorithm": {"grpo": null, "sft": {}},
                "dataset": {"train": {"completion": "{{answer}}"}},
            }),
        ),
        (
            Never,
            json!({
                "algorithm": {"grpo": null, "orpo": {}},
                "dataset": {"train": {"chosen": "{{good}}", "rejected": "{{bad}}"}},
            }),
        ),
        (WhileSuspended, json!({"algorithm": {"grpo": {"groupSize": 4}}})),
        (
            WhileSuspended,
            json!({
                "volumes": [{"name": "data", "mountPath": "/data", "configMap": {"name": "data"}}],
            }),
        ),
        (WhileSuspended, json!({"dataset": {"train": {"path": "/data/other.jsonl"}}})),
        (WhileSuspended, json!({"rewards": [{"name": "correct", "math": {}}]})),
        (WhileSuspended, json!({"rewards": [{"name": "loops", "repetition": {"ngramSize": 4}}]})),
        (WhileSuspended, json!({"restoreFrom": {"rljob": {"name": "other", "step": 4}}})),
        (WhileSuspended, json!({"rollbackTo": {"step": 2}})),
        (WhileSuspended, json!({"tracking": {"mlflow": {"uri": "http://mlflow:5000"}}})),
        (
            WhileSuspended,
            json!({"tracking": {"openTelemetry": {"endpoint": "http://collector:4318"}}}),
        ),
        (WhileSuspended, json!({"scheduling": {"priorityClassName": "high"}})),
        (WhileSuspended, json!({"scheduling": {"gang": {"native": {}}}})),
        (
            WhileSuspended,
            json!({"scheduling": {"topology": {"inference": {"preferred": "example.com/rack"}}}}),
        ),
        (WhileSuspended, json!({"rollout": {"temperature": 0.7}})),
        (
            WhileSuspended,
            json!({"rollout": {"workflow": {"multiTurn": {"feedback": "Try again."}}}}),
        ),
        (WhileSuspended, json!({"rollout": {"workflow": {"agent": {"command": ["agent"]}}}})),
        (
            WhileSuspended,
            json!({"rollout": {"workflow": {"tools": {"tools": [
                {"name": "add", "description": "Adds.", "http": {"url": "http://tools.lab"}},
            ]}}}}),
        ),
        (WhileSuspended, json!({"optimizer": {"learningRate": 1e-5}})),
        (WhileSuspended, json!({"training": {"steps": 9}})),
        (WhileSuspended, json!({"trainer": {"replicas": 2}})),
        (
            WhileSuspended,
            json!({
                "algorithm": {"grpo": {"klCoefficient": 0.1}},
                "trainer": {"groups": [{"name": "frozen", "roles": ["Reference"]}]},
            }),
        ),
        (WhileSuspended, json!({"coordinator": {"resources": {"limits": {"memory": "1Gi"}}}})),
        (
            WhileSuspended,
            json!({"rewards": [{"name": "tests", "code": {}}], "verifiers": {"maxReplicas": 2}}),
        ),
        (
            WhileSuspended,
            json!({
                "dataset": {"evaluation": {
                    "path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer",
                }},
                "evaluation": {"engines": {"replicas": 2}},
            }),
        ),
        (
            WhileSuspended,
            json!({"rewards": [{"name": "scored", "model": {
                "path": "/data/judge", "engines": {"replicas": 2}, "text": "{{completion}}",
            }}]}),
        ),
        (WhileSuspended, json!({"weightSync": {"method": "Distributed"}})),
        (WhileSuspended, inference(json!({"sglang": {}}))),
        (WhileSuspended, inference(json!({"sglang": {"extraArgs": ["--context-length=4096"]}}))),
        (WhileSuspended, inference(json!({"embedded": {}}))),
        (WhileSuspended, inference(json!({"resources": {"limits": {"amd.com/gpu": 1}}}))),
        (WhileSuspended, inference(json!({"template": {"spec": {"nodeSelector": {"a": "b"}}}}))),
        (WhileSuspended, inference(json!({"image": "example.com/engine:1"}))),
        (WhileSuspended, inference(json!({"resources": {"limits": {"memory": "2Gi"}}}))),
        (Always, inference(json!({"replicas": 2}))),
        (WhileSuspended, inference(json!({"minReplicas": 1}))),
        (WhileSuspended, inference(json!({"podsPerReplica": 2}))),
        (WhileSuspended, inference(json!({"maxRunningRequests": 64}))),
        (Always, json!({"checkpoint": {"everySteps": 2}})),
        (Always, json!({"failurePolicy": {"maxRestarts": 9}})),
        (Always, json!({"drainTimeoutSeconds": 60})),
        (Always, json!({"activeDeadlineSeconds": 3600})),
        (Always, json!({"startupDeadlineSeconds": 3600})),
        (Always, json!({"ttlSecondsAfterFinished": 60})),
    ]
}

/// Field names of a part of the spec in crds/rljob.yaml.
fn fields(part: &str) -> BTreeSet<String> {
    let schema = crd().pointer(&format!("{SPEC}{part}/properties")).unwrap().clone();
    schema.as_object().unwrap().keys().cloned().collect()
}

const VERSION: &str = "/spec/versions/0/schema/openAPIV3Schema";
const SPEC: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";

fn crd() -> Value {
    serde_yaml::from_str(&fs::read_to_string(workspace().join("crds/rljob.yaml")).unwrap()).unwrap()
}

#[test]
fn every_field_has_a_change_in_the_table() {
    let changes = changes();
    let keys = |part: &Value| part.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let (top, inference): (Vec<_>, Vec<_>) = changes
        .iter()
        .map(|(_, change)| (keys(change), change.get("inference").map(keys).unwrap_or_default()))
        .unzip();
    let named = |names: Vec<Vec<String>>, more: &[&str]| {
        names
            .into_iter()
            .flatten()
            .chain(more.iter().map(|name| (*name).to_owned()))
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        (named(top, &["suspend"]), named(inference, &[])),
        (fields(""), fields("/properties/inference")),
        "a field is not in the table"
    );
}

#[test]
fn every_field_is_mutable_or_rejected_as_documented() {
    let changes = changes();
    let namespace = namespace_with("fields", &json!({}));
    let api = cluster().api().unwrap();
    let path = format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs/sample", namespace.name);
    let answer = |change: &Value| {
        api.patch(&format!("{path}?dryRun=All"), &json!({ "spec": change }))
            .map_err(|error| format!("{error:#}"))
    };
    let check = |state: &str, may: &dyn Fn(Mutability, &Value) -> bool| {
        for (when, change) in &changes {
            match (may(*when, change), answer(change)) {
                (true, answer) => assert!(answer.is_ok(), "{state}: {change}: {answer:?}"),
                (false, answer) => {
                    let message = answer.expect_err(&format!("{state}: {change} was accepted"));
                    let expected = [FROZEN, FIXED, FINISHED, "spec.managedBy is immutable"];
                    assert!(
                        expected.iter().any(|expected| message.contains(expected)),
                        "{state}: {change}: {message}"
                    );
                }
            }
        }
    };
    let set_status = |status: Value| {
        api.patch(&format!("{path}/status"), &json!({ "status": status })).map(drop).unwrap();
    };
    check("not started", &|_, change| change.get("managedBy").is_none());
    set_status(json!({"startTime": "2026-01-01T00:00:00Z"}));
    check("running", &|may, _| may == Mutability::Always);
    api.patch(&path, &json!({"spec": {"suspend": true}})).unwrap();
    check("draining", &|may, _| may == Mutability::Always);
    let condition = json!({
        "type": "Suspended", "status": "True", "reason": "Suspended", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    set_status(json!({"conditions": [condition.clone()]}));
    set_status(json!({"checkpoints": [{"step": 2, "path": "checkpoints/step-2.attempt-0"}]}));
    check("suspended", &|may, _| may != Mutability::Never);
    set_status(json!({"progress": {"step": 2, "totalSteps": 3}}));
    let lowered = answer(&json!({"training": {"steps": 1}})).unwrap_err();
    assert!(lowered.contains("at least the number of steps that are done"), "{lowered}");
    answer(&json!({"training": {"steps": 2}})).unwrap();
    let resumed = json!({"suspend": false, "training": {"steps": 9}});
    assert!(answer(&resumed).is_ok(), "one apply may edit and resume");
    set_status(json!({"completionTime": "2026-01-01T00:00:00Z"}));
    check("finished", &|may, _| may == Mutability::Always);
    let succeeded = json!({
        "type": "Succeeded", "status": "True", "reason": "Completed", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    set_status(json!({"conditions": [condition, succeeded]}));
    check("succeeded", &|may, change| {
        may == Mutability::Always || change["training"]["steps"] == 9
    });
    let fewer = answer(&json!({"training": {"steps": 2}})).unwrap_err();
    assert!(fewer.contains(FINISHED), "{fewer}");
}

#[test]
fn a_suspended_run_goes_back_only_to_a_checkpoint_of_its_status() {
    let namespace = namespace_with("rollback", &json!({"spec": {"suspend": true}}));
    let api = cluster().api().unwrap();
    let path = format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs/sample", namespace.name);
    let answer = |step: u32| {
        let change = json!({"spec": {"rollbackTo": {"step": step}}});
        let answer = api.patch(&format!("{path}?dryRun=All"), &change);
        answer.map(drop).map_err(|error| format!("{error:#}"))
    };
    let set_status = |status: Value| {
        api.patch(&format!("{path}/status"), &json!({ "status": status })).map(drop).unwrap();
    };
    answer(2).unwrap();
    let condition = json!({
        "type": "Suspended", "status": "True", "reason": "Suspended", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    set_status(json!({"startTime": "2026-01-01T00:00:00Z", "conditions": [condition]}));
    let expected = "spec.rollbackTo.step must be the step of a checkpoint in status.checkpoints";
    let unknown = answer(2).unwrap_err();
    assert!(unknown.contains(expected), "{unknown}");
    set_status(json!({"checkpoints": [{"step": 2, "path": "checkpoints/step-2.attempt-0"}]}));
    let unknown = answer(1).unwrap_err();
    assert!(unknown.contains(expected), "{unknown}");
    answer(2).unwrap();
}

#[test]
fn a_run_cannot_change_its_kind_of_critic() {
    let ppo = json!({"spec": {"algorithm": {"grpo": null, "ppo": {}}}});
    let namespace = namespace_with("critic", &ppo);
    let api = cluster().api().unwrap();
    let path = format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs/sample", namespace.name);
    let answer = |field: &str| {
        let change = json!({"spec": {"algorithm": {"ppo": {field: {}}}}});
        api.patch(&format!("{path}?dryRun=All"), &change)
    };
    let fields = ["valueHead", "valueNormalization"];
    for field in fields {
        answer(field).unwrap();
    }
    start_and_suspend(&api, &path);
    for field in fields {
        let rejected = format!("{:#}", answer(field).unwrap_err());
        assert!(rejected.contains(FIXED), "{field}: {rejected}");
    }
}

/// Gives a job the status of a started run that is suspended, whose spec may change.
fn start_and_suspend(api: &Api, path: &str) {
    api.patch(path, &json!({"spec": {"suspend": true}})).unwrap();
    let condition = json!({
        "type": "Suspended", "status": "True", "reason": "Suspended", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({"startTime": "2026-01-01T00:00:00Z", "conditions": [condition]});
    api.patch(&format!("{path}/status"), &json!({ "status": status })).unwrap();
}

#[test]
fn a_started_run_keeps_its_epochs_or_gets_more() {
    let training = json!({"spec": {"training": {"steps": null, "epochs": 3}}});
    let namespace = namespace_with("epochs", &training);
    let api = cluster().api().unwrap();
    let path = format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs/sample", namespace.name);
    let answer = |training: Value| {
        let change = json!({"spec": {"training": training}});
        api.patch(&format!("{path}?dryRun=All"), &change)
    };
    let shorter = [json!({"epochs": 2}), json!({"epochs": null, "steps": 100})];
    for training in shorter.clone() {
        answer(training).unwrap();
    }
    start_and_suspend(&api, &path);
    answer(json!({"epochs": 4})).unwrap();
    for training in shorter {
        let rejected = format!("{:#}", answer(training.clone()).unwrap_err());
        let expected = "spec.training.epochs cannot be lowered, and a run keeps either steps or";
        assert!(rejected.contains(expected), "{training}: {rejected}");
    }
}

/// The CRD without the cross-field rules, one limit and one field.
fn older_crd() -> Value {
    let mut crd = crd();
    let remove = |crd: &mut Value, part: &str, field: &str| {
        crd.pointer_mut(part).unwrap().as_object_mut().unwrap().remove(field).map(drop).unwrap();
    };
    remove(&mut crd, VERSION, "x-kubernetes-validations");
    remove(&mut crd, SPEC, "x-kubernetes-validations");
    remove(&mut crd, &format!("{SPEC}/properties/checkpoint/properties/keepLast"), "maximum");
    remove(&mut crd, &format!("{SPEC}/properties"), "drainTimeoutSeconds");
    crd
}

/// Violates a cross-field rule and a limit.
fn old_spec() -> Value {
    json!({"weightSync": {"everySteps": 2}, "checkpoint": {"keepLast": 5000}})
}

fn uids(namespace: &Namespace) -> String {
    namespace
        .kubectl
        .run(&["get", "pods", OWN, "--output=jsonpath={.items[*].metadata.uid}"])
        .unwrap()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one lifecycle")]
fn a_job_that_an_older_crd_admitted_keeps_its_pods_and_can_be_fixed() {
    let cluster = Cluster::start(0).unwrap();
    let kubectl = cluster.kubectl();
    operator::install(&kubectl).unwrap();
    super::install_crd(&kubectl).unwrap();
    kubectl.run_with_input(&["replace", "--filename=-"], &older_crd().to_string()).unwrap();
    let breaks = |namespace: &Namespace| {
        namespace.kubectl.run(&[
            "patch",
            "rljob/sample",
            "--type=merge",
            "--patch",
            &json!({"spec": old_spec()}).to_string(),
        ])
    };
    let old = namespace_in(&cluster, "old", &json!({}));
    wait_until("the older CRD to be effective", LIMIT, || Ok(breaks(&old).is_ok())).unwrap();
    let operator = Operator::start_in(&cluster, "rljob:a", &[]);
    let namespace = namespace_in(&cluster, "upgraded", &json!({}));
    wait_for_pods(&namespace, 3);
    wait_until("the epoch of the coordinator pod", LIMIT, || {
        Ok(operator::status(&namespace)?["epoch"] == 1)
    })
    .unwrap();
    drop(operator);
    breaks(&namespace).unwrap();
    let before = uids(&namespace);

    super::install_crd(&kubectl).unwrap();
    let mut bad = super::job();
    merge(&mut bad, &json!({"metadata": {"name": "bad"}, "spec": old_spec()}));
    let is_rejected = || {
        namespace
            .kubectl
            .run_with_input(&["create", "--dry-run=server", "--filename=-"], &bad.to_string())
            .is_err()
    };
    wait_until("the new CRD to be effective", LIMIT, || Ok(is_rejected())).unwrap();
    assert_eq!(
        field(&namespace, "rljob/sample", ".spec.drainTimeoutSeconds"),
        "300",
        "a new field has its default"
    );
    namespace.kubectl.run(&["label", "rljob/sample", "example.com/team=a"]).unwrap();
    let operator = Operator::start_in(&cluster, "rljob:b", &[]);
    wait_for_condition(&namespace, "Stalled");
    let message =
        field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message");
    assert!(
        message.starts_with(
            "spec.weightSync.everySteps: must be at most rollout.maxStaleness + 1 = 1"
        ),
        "{message}"
    );
    assert_eq!(uids(&namespace), before, "the new rule deleted pods");

    patch(&namespace, &json!({"suspend": true, "drainTimeoutSeconds": 1}));
    wait_for_condition(&namespace, "Suspended");
    wait_for_pods(&namespace, 0);
    patch(
        &namespace,
        &json!({"suspend": false, "weightSync": {"everySteps": 1}, "checkpoint": {"keepLast": 3}}),
    );
    wait_for_pods(&namespace, 3);
    wait_for_condition(&namespace, "Stalled=False");
    let error = format!("{:#}", breaks(&namespace).unwrap_err());
    assert!(
        error.contains("weightSync.everySteps must be at most rollout.maxStaleness + 1")
            && error.contains("spec.checkpoint.keepLast"),
        "{error}"
    );
    assert!(
        !operator.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        operator.output()
    );
}

#[test]
fn a_job_with_unknown_fields_of_a_newer_crd_is_left_unchanged() {
    let cluster = Cluster::start(0).unwrap();
    let kubectl = cluster.kubectl();
    operator::install(&kubectl).unwrap();
    super::install_crd(&kubectl).unwrap();
    let mut newer = crd();
    newer.pointer_mut(&format!("{SPEC}/properties")).unwrap()["later"] = json!({"type": "string"});
    kubectl.run_with_input(&["replace", "--filename=-"], &newer.to_string()).unwrap();
    let unparsable = namespace_in(&cluster, "unparsable", &json!({}));
    let has_the_field = || {
        patch(&unparsable, &json!({"later": "is kept"}));
        Ok(field(&unparsable, "rljob/sample", ".spec.later") == "is kept")
    };
    wait_until("the newer CRD to be effective", LIMIT, has_the_field).unwrap();
    let operator = Operator::start_in(&cluster, "rljob:a", &[]);
    let known = namespace_in(&cluster, "known", &json!({}));
    wait_for_pods(&known, 3);
    assert!(
        operator.output().contains("skipping an RLJob that cannot be parsed"),
        "{}",
        operator.output(),
    );
    assert_eq!(uids(&unparsable), "", "the operator created pods for a job that it cannot parse");
    patch(&unparsable, &json!({"later": null}));
    wait_for_pods(&unparsable, 3);
}

/// Labels and host names have at most 63 characters; those of pods and the labels that Kubernetes
/// adds to them are the longest.
#[test]
fn long_and_similar_names_do_not_collide() {
    let namespace = Namespace::create(cluster(), "names").unwrap();
    let longest = format!("a{}z", "-0".repeat(19));
    let names = [longest.as_str(), "a", "a-run", "a-inference", "a-coordinator-0"];
    assert_eq!(longest.len(), 40);
    let _operator = Operator::start(&namespace, "rljob:a");
    for name in names {
        let mut job = super::job();
        merge(
            &mut job,
            &json!({"metadata": {"name": name}, "spec": {"inference": {"replicas": 2}}}),
        );
        namespace.kubectl.apply(&job.to_string()).unwrap();
    }
    for name in names {
        let selector = format!("--selector=rljob.dev/job={name}");
        let pods = || {
            namespace.kubectl.run(&[
                "get",
                "pods",
                &selector,
                "--output=jsonpath={range .items[*]}{.metadata.name} {end}",
            ])
        };
        let expected = ["coordinator-0", "inference-0", "inference-1", "trainer-0"]
            .map(|pod| format!("{name}-{pod} "))
            .concat();
        wait_until(&format!("the pods of {name}"), LIMIT, || Ok(pods()? == expected)).unwrap();
        let uid = field(&namespace, &format!("pod/{name}-coordinator-0"), ".metadata.uid");
        let known =
            || Ok(field(&namespace, &format!("rljob/{name}"), ".status.coordinatorUid") == uid);
        wait_until(&format!("the coordinator of {name}"), LIMIT, known).unwrap();
    }
}
