//! Lifecycle of status, epochs and pods: start, operator restart, suspension, coordinator
//! replacement.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::operator::{
    LIMIT, Operator, field, namespace_with, patch, status, wait_for_condition, wait_for_pods,
};

/// The scheduler's message without nodes.
const UNSCHEDULABLE: &str =
    "sample-inference-0 cannot be scheduled: no nodes available to schedule pods";

#[test]
fn columns_and_events_of_a_new_job_name_the_pending_pods() {
    let namespace = namespace_with("message", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_condition(&namespace, "Reconciling");
    let table = namespace.kubectl.run(&["get", "rljobs"]).unwrap();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    // Without steps before a coordinator has reported.
    assert_eq!(row[..3], ["sample", "Starting", "0"], "{table}");
    let waits_for =
        "waiting for 1 of 1 coordinator pods, 1 of 1 trainer pods, 1 of 1 inference pods";
    let events = || {
        namespace.kubectl.run(&[
            "get",
            "events",
            "--field-selector=involvedObject.name=sample",
            "--output=jsonpath={.items[*]['reason','message']}",
        ])
    };
    wait_until("the event", LIMIT, || Ok(events()?.starts_with(&format!("Starting {waits_for}"))))
        .unwrap();
    let message = format!("{waits_for}; {UNSCHEDULABLE}");
    let seen =
        || field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Succeeded')].message");
    wait_until("the scheduler's message", LIMIT, || Ok(seen() == message)).unwrap();
}

#[test]
fn another_operator_changes_neither_pods_nor_status_until_the_job_is_resumed() {
    let namespace = namespace_with("pinned", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    let image = |object: &str, path: &str| {
        field(&namespace, object, &format!("{path}.containers[0].image"))
    };
    let first = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    wait_until("the epoch of the coordinator pod", LIMIT, || Ok(status(&namespace)?["epoch"] == 1))
        .unwrap();
    // The last status change without nodes.
    let message =
        || field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Succeeded')].message");
    wait_until("the scheduler's message", LIMIT, || Ok(message().ends_with(UNSCHEDULABLE)))
        .unwrap();
    drop(first);
    let uid = field(&namespace, "pod/sample-trainer-0", ".metadata.uid");
    let version = field(&namespace, "rljob/sample", ".metadata.resourceVersion");

    let second = Operator::start(&namespace, "rljob:b");
    second.wait_for_log("\"reconciled\"");
    assert_eq!(
        field(&namespace, "rljob/sample", ".metadata.resourceVersion"),
        version,
        "the status was written without a change"
    );
    patch(&namespace, &json!({"inference": {"replicas": 2}}));
    wait_for_pods(&namespace, 4);
    assert_eq!(field(&namespace, "pod/sample-trainer-0", ".metadata.uid"), uid);
    assert_eq!(
        image("pod/sample-inference-1", ".spec"),
        "rljob:a",
        "a new pod of a running job uses the pinned template"
    );

    patch(&namespace, &json!({"suspend": true}));
    wait_for_condition(&namespace, "Suspended");
    patch(&namespace, &json!({"suspend": false}));
    wait_for_pods(&namespace, 4);
    assert_eq!(
        image("pod/sample-trainer-0", ".spec"),
        "rljob:b",
        "a resume renders the pods again",
    );
}

#[test]
fn a_suspended_job_has_no_pods_until_it_is_resumed() {
    let namespace = namespace_with("suspend", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    patch(&namespace, &json!({"suspend": true}));
    wait_for_condition(&namespace, "Suspended");
    wait_for_pods(&namespace, 0);
    assert_eq!(
        field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Succeeded')].reason"),
        "Suspended"
    );
    assert_eq!(
        field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Ready')].status"),
        "True"
    );
    patch(&namespace, &json!({"suspend": false}));
    wait_for_pods(&namespace, 3);
    wait_for_condition(&namespace, "Suspended=False");
}

/// An admission policy rejects the status write, and the operator must then not delete pods.
#[test]
fn the_status_is_written_before_pods_are_deleted() {
    let namespace = namespace_with("record", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    let name = format!("{}-reject-releasing", namespace.name);
    let validation = json!({
        "expression": "!object.status.conditions.exists(c, c.reason == 'Releasing')",
        "message": "this status is rejected",
    });
    let rule = json!({
        "apiGroups": ["rljob.dev"], "apiVersions": ["*"], "operations": ["UPDATE"],
        "resources": ["rljobs/status"],
    });
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]},
    });
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace.name}});
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {
            "policyName": name, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    });
    let policy = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
    namespace.kubectl.apply(&policy.to_string()).unwrap();
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    wait_until("the policy to be effective", LIMIT, || {
        let record = json!({
            "status": {
                "conditions": [{
                    "type": "Ready", "status": "False", "reason": "Releasing", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        });
        let result = namespace.kubectl.run(&[
            "patch",
            "rljob/sample",
            "--subresource=status",
            "--type=merge",
            "--dry-run=server",
            "--patch",
            &record.to_string(),
        ]);
        Ok(result.is_err_and(|error| format!("{error:#}").contains("this status is rejected")))
    })
    .unwrap();

    patch(&namespace, &json!({"suspend": true}));
    operator.wait_for_log("this status is rejected");
    wait_for_pods(&namespace, 3);
    assert_eq!(field(&namespace, "statefulset/sample-trainer", ".spec.replicas"), "1");
    namespace
        .kubectl
        .run(&["delete", "validatingadmissionpolicybindings,validatingadmissionpolicies", &name])
        .unwrap();
    wait_for_condition(&namespace, "Suspended");
    wait_for_pods(&namespace, 0);
}

#[test]
fn every_new_coordinator_pod_has_a_higher_epoch() {
    let namespace = namespace_with("epoch", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    for epoch in 1..=2 {
        wait_until(&format!("epoch {epoch}"), LIMIT, || Ok(status(&namespace)?["epoch"] == epoch))
            .unwrap();
        let seen = status(&namespace).unwrap();
        assert_eq!(
            seen["coordinatorUid"],
            field(&namespace, "pod/sample-coordinator-0", ".metadata.uid"),
            "{seen}"
        );
        namespace
            .kubectl
            .run(&["delete", "pod/sample-coordinator-0", "--grace-period=0", "--force"])
            .unwrap();
    }
}

#[test]
fn a_succeeded_job_resumes_when_its_steps_are_raised() {
    let fixture = Fixture::running("raised-steps", &json!({}));
    fixture.bring_to("finished");
    wait_for_pods(&fixture.namespace, 0);
    let frozen =
        fixture.api.patch(&fixture.job_path(), &json!({"spec": {"training": {"steps": 2}}}));
    assert!(frozen.is_err(), "fewer steps were accepted: {frozen:?}");

    fixture.pods.run.lock().end = None;
    fixture.patch(&json!({"training": {"steps": 5}}));
    wait_for_pods(&fixture.namespace, 3);
    fixture.wait_for("Ready");
    let status = fixture.job()["status"].take();
    assert_eq!(
        (&status["progress"]["totalSteps"], &status["completionTime"]),
        (&json!(5), &Value::Null),
        "{status:#}"
    );
    let summary = ".status.conditions[?(@.type=='Succeeded')]['status','reason']";
    assert_eq!(field(&fixture.namespace, "rljob/sample", summary), "Unknown Running");
    fixture.bring_to("finished");
    wait_for_pods(&fixture.namespace, 0);
}
