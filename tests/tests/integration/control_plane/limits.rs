//! Deadlines, TTL, run directories of other jobs, and unschedulable pods.

use rljob_tests::process::wait_until;
use serde_json::json;

use super::operator::{
    KINDS, LIMIT, OWN, Operator, field, namespace_with, patch, status, wait_for_condition,
    wait_for_pods,
};

const SUMMARY: &str = ".status.conditions[?(@.type=='Succeeded')]";

#[test]
fn a_job_past_its_deadline_fails_and_its_children_are_deleted_after_the_ttl() {
    let namespace = namespace_with("deadline", &json!({"spec": {"activeDeadlineSeconds": 5}}));
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    wait_for_condition(&namespace, "Stalled");
    let summary =
        field(&namespace, "rljob/sample", &format!("{SUMMARY}['status','reason','message']"));
    assert_eq!(
        summary,
        "False DeadlineExceeded the run took longer than spec.activeDeadlineSeconds = 5"
    );
    wait_for_pods(&namespace, 0);
    assert_eq!(
        field(&namespace, "statefulset/sample-trainer", ".spec.replicas"),
        "0",
        "without ttlSecondsAfterFinished, the children are kept"
    );

    patch(&namespace, &json!({"ttlSecondsAfterFinished": 0}));
    let left = || namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"]);
    wait_until("the children to be deleted", LIMIT, || Ok(left()?.is_empty())).unwrap();
    assert_eq!(
        field(&namespace, "rljob/sample", &format!("{SUMMARY}.reason")),
        "DeadlineExceeded",
        "the RLJob and its status are kept"
    );
    assert!(
        !operator.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        operator.output()
    );
}

/// Without a kubelet, the test writes the pod's status.
#[test]
fn a_run_directory_of_another_run_stalls_the_job_with_the_coordinators_message() {
    let namespace = namespace_with("in-use", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let message = "the run directory /rljob/runs/lab/sample belongs to lab/other (uid u) with its \
        own run: use another directory, or remove this one to start over";
    let ended = json!({"exitCode": 78, "message": format!("starting\nerror: {message}\n")});
    let container = json!({
        "name": "coordinator", "image": "rljob:a", "imageID": "", "ready": false, "restartCount": 1,
        "lastState": {"terminated": ended},
    });
    let status = json!({"status": {"containerStatuses": [container]}}).to_string();
    namespace
        .kubectl
        .run(&[
            "patch",
            "pod/sample-coordinator-0",
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status,
        ])
        .unwrap();
    wait_for_condition(&namespace, "Stalled");
    assert_eq!(
        field(&namespace, "rljob/sample", &format!("{SUMMARY}.reason")),
        "RunDirectoryInUse"
    );
    assert_eq!(field(&namespace, "rljob/sample", &format!("{SUMMARY}.message")), message);
    wait_for_pods(&namespace, 0);
}

#[test]
fn gpu_pods_start_after_the_first_report_and_unschedulable_ones_are_named() {
    let inference = json!({
        "sglang": {"extraArgs": ["--mem-fraction-static=0.8"]},
        "resources": {"limits": {"nvidia.com/gpu": 2}},
    });
    let trainer = json!({"resources": {"limits": {"nvidia.com/gpu": 4}}});
    let spec = json!({"inference": inference, "trainer": trainer});
    let namespace = namespace_with("gpus", &json!({"spec": spec}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_until("the epoch of the coordinator pod", LIMIT, || Ok(status(&namespace)?["epoch"] == 1))
        .unwrap();
    wait_for_pods(&namespace, 1);
    for role in ["inference", "trainer"] {
        let set = format!("statefulset/sample-{role}");
        assert_eq!(field(&namespace, &set, ".spec.replicas"), "0", "{role}");
    }
    // The status after a coordinator's first report.
    let reported = json!({"status": {"progress": {"step": 0, "totalSteps": 3}}}).to_string();
    namespace
        .kubectl
        .run(&[
            "patch",
            "rljob/sample",
            "--subresource=status",
            "--type=merge",
            "--patch",
            &reported,
        ])
        .unwrap();
    wait_for_pods(&namespace, 3);
    let engine =
        field(&namespace, "pod/sample-inference-0", ".spec.containers[0]['image','resources']");
    assert_eq!(
        engine,
        concat!(
            "lmsysorg/sglang:v0.5.12 ",
            r#"{"limits":{"nvidia.com/gpu":"2"},"#,
            r#""requests":{"cpu":"250m","memory":"1Gi","nvidia.com/gpu":"2"}}"#
        )
    );
    assert_eq!(
        field(&namespace, "pod/sample-trainer-0", ".spec.containers[0].resources.limits"),
        r#"{"nvidia.com/gpu":"4"}"#
    );
    // The scheduler's order is undefined: the message names the engine once the scheduler has tried
    // it.
    let named = "waiting for 1 of 1 coordinator pods, 1 of 1 trainer pods, 1 of 1 inference pods; \
        sample-inference-0 cannot be scheduled: ";
    wait_until("the scheduler's message about the engine", LIMIT, || {
        let message = field(&namespace, "rljob/sample", &format!("{SUMMARY}.message"));
        if message.starts_with(named) { Ok(true) } else { Err(anyhow::anyhow!("{message}")) }
    })
    .unwrap();
}

#[test]
fn the_pod_spec_changes_only_while_the_job_is_suspended() {
    let namespace = namespace_with("frozen", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let edit = json!({
        "spec": {"inference": {"sglang": {"extraArgs": ["--context-length=4096"]}}},
    })
    .to_string();
    let edit = ["patch", "rljob/sample", "--type=merge", "--patch", edit.as_str()];
    let rejection = format!("{:#}", namespace.kubectl.run(&edit).unwrap_err());
    assert!(
        rejection.contains(
            "to change this field, set spec.suspend to true, wait for condition Suspended, edit \
                the spec and set spec.suspend to false",
        ),
        "{rejection}",
    );
    patch(
        &namespace,
        &json!({
            "suspend": true, "activeDeadlineSeconds": 3600, "ttlSecondsAfterFinished": 60,
            "checkpoint": {"everySteps": 2},
        }),
    );
    wait_for_condition(&namespace, "Suspended");
    namespace.kubectl.run(&edit).unwrap();
    patch(&namespace, &json!({"suspend": false}));
    wait_for_pods(&namespace, 3);
    let command = field(&namespace, "pod/sample-inference-0", ".spec.containers[0].command");
    assert!(
        command.contains(r#""sglang.launch_server""#)
            && command.contains(r#""--context-length=4096""#),
        "{command}"
    );
}
