//! Causes that keep pods from running, from the pods' own status and from the newest warning event
//! about a pod or its StatefulSet.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus};
use kube::ResourceExt;

use super::facts::Cause;
use crate::cache::Pod;
use crate::decide::Waiting;

/// Reasons of waiting containers that resolve without the user: the container is being created or
/// its kubelet retries.
const TRANSIENT: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Reasons that only a change by the user resolves.
const NEEDS_USER: [&str; 5] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RunContainerError",
];
/// Parts of a container runtime's message that a retry changes: it is slow or restarts.
const RUNTIME_FAILURES: [&str; 3] =
    ["deadline exceeded", "connection refused", "code = Unavailable"];
/// Reasons of image pulls, which may also fail while a registry is unavailable.
const IMAGE_PULLS: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];
/// Number of log lines of a container that exited.
const LOG_LINES: usize = 3;
/// Parts of a registry's answer that a retry does not change.
const PERMANENT_PULL_FAILURES: [&str; 5] =
    ["not found", "unauthorized", "denied", "no match for platform", "invalid reference"];

/// Parts of the kubelet's message about an object to mount that does not exist, or has no such key.
const MISSING: [&str; 2] = ["not found", "references non-existent"];

/// The cause in a warning event about a pod, or about a StatefulSet that lacks a pod.
pub fn warned(name: String, cause: &Cause) -> Waiting {
    let message = format!("{name}: {}: {}", cause.reason, cause.message);
    let needs_user = match cause.reason.as_str() {
        // Quota, Pod Security and webhooks reject the pod; a missing object is not mounted.
        "FailedCreate" => cause.message.contains("forbidden") || cause.message.contains("denied"),
        "FailedMount" => MISSING.iter().any(|part| cause.message.contains(part)),
        _ => false,
    };
    Waiting { name, reason: cause.reason.clone(), message, needs_user }
}

/// The cause in a pod's status.
pub fn waiting(pod: &Pod) -> Option<Waiting> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    unschedulable(pod).or_else(|| {
        let status = pod.status.as_ref()?;
        let init = status.init_container_statuses.iter().flatten();
        let containers = status.container_statuses.iter().flatten();
        init.chain(containers).find_map(|container| container_waiting(pod, container))
    })
}

fn unschedulable(pod: &Pod) -> Option<Waiting> {
    let conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let unschedulable = conditions.into_iter().find(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    })?;
    let cause = unschedulable.message.as_deref().unwrap_or("no node fits");
    let message = format!("{} cannot be scheduled: {cause}", pod.name_any());
    // The scheduler names a claim that does not exist; other causes may pass.
    let needs_user = cause.contains("persistentvolumeclaim") && cause.contains("not found");
    Some(Waiting { name: pod.name_any(), reason: "Unschedulable".to_owned(), message, needs_user })
}

fn container_waiting(pod: &Pod, container: &ContainerStatus) -> Option<Waiting> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !TRANSIENT.contains(reason))?;
    let (name, detail) = (pod.name_any(), waiting.message.as_deref().unwrap_or_default());
    let is_runtime_failure = RUNTIME_FAILURES.iter().any(|part| detail.contains(part));
    let needs_user = NEEDS_USER.contains(&reason) && !is_runtime_failure
        || IMAGE_PULLS.contains(&reason)
            && PERMANENT_PULL_FAILURES.iter().any(|part| detail.contains(part));
    let detail = match last_exit(container.last_state.as_ref()) {
        Some(exit) if reason == "CrashLoopBackOff" => exit,
        _ if detail.is_empty() => String::new(),
        _ => format!(": {detail}"),
    };
    let message = format!("container {} of {name}: {reason}{detail}", container.name);
    Some(Waiting { name, reason: reason.to_owned(), message, needs_user })
}

/// Exit code and last log lines of the container before its restart.
fn last_exit(state: Option<&ContainerState>) -> Option<String> {
    let exit = state?.terminated.as_ref()?;
    let log = rljob_logging::readable(exit.message.as_deref().unwrap_or_default());
    let lines: Vec<_> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default();
    let cause = if last.is_empty() { String::new() } else { format!(": {}", last.join("; ")) };
    Some(format!(": it exited with code {}{cause}", exit.exit_code))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        let mut pod = json!({"metadata": {"name": "sums-trainer-0"}, "spec": {}});
        pod["status"] = status;
        serde_json::from_value(pod).unwrap()
    }

    fn container(state: Value, last_state: Value) -> Value {
        let mut container = json!({
            "name": "supervisor", "image": "rljob:a", "imageID": "", "ready": false,
            "restartCount": 0,
        });
        container["state"] = state;
        container["lastState"] = last_state;
        container
    }

    fn seen(status: Value) -> Option<(String, String, bool)> {
        waiting(&pod(status)).map(|waiting| (waiting.reason, waiting.message, waiting.needs_user))
    }

    fn waits(reason: &str, message: &str) -> Value {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        json!({"containerStatuses": [container(state, json!({}))]})
    }

    #[test]
    fn causes_have_reason_and_message_and_tell_whether_the_user_must_act() {
        let expected = |reason: &str, message: &str, needs_user| {
            Some((reason.to_owned(), message.to_owned(), needs_user))
        };
        assert_eq!(seen(waits("ContainerCreating", "")), None);
        assert_eq!(
            seen(waits("ImagePullBackOff", "rpc error: manifest unknown: not found")),
            expected(
                "ImagePullBackOff",
                "container supervisor of sums-trainer-0: ImagePullBackOff: rpc error: manifest \
                 unknown: not found",
                true
            )
        );
        assert_eq!(
            seen(waits("ErrImagePull", "dial tcp: i/o timeout")),
            expected(
                "ErrImagePull",
                "container supervisor of sums-trainer-0: ErrImagePull: dial tcp: i/o timeout",
                false
            )
        );
        assert_eq!(
            seen(waits("CreateContainerConfigError", "secret \"hub\" not found")),
            expected(
                "CreateContainerConfigError",
                "container supervisor of sums-trainer-0: CreateContainerConfigError: secret \
                 \"hub\" not found",
                true
            )
        );
        assert_eq!(
            seen(waits("RunContainerError", "context deadline exceeded")),
            expected(
                "RunContainerError",
                "container supervisor of sums-trainer-0: RunContainerError: context deadline \
                 exceeded",
                false
            )
        );
    }

    #[test]
    fn a_claim_that_does_not_exist_needs_the_user_and_other_causes_of_the_scheduler_do_not() {
        let seen_with = |message: &str| {
            let condition = json!({
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": message,
            });
            seen(json!({"conditions": [condition]})).unwrap()
        };
        for (cause, needs_user) in [
            ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", false),
            ("pod has unbound immediate PersistentVolumeClaims", false),
            ("0/2 nodes are available: persistentvolumeclaim \"runs\" not found.", true),
        ] {
            let message = format!("sums-trainer-0 cannot be scheduled: {cause}");
            assert_eq!(seen_with(cause), ("Unschedulable".to_owned(), message, needs_user));
        }
    }

    #[test]
    fn a_crash_loop_has_the_exit_code_and_the_last_log_lines() {
        let state = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
        let fatal = r#"{"timestamp":"t","level":"ERROR","message":"no model","role":"trainer"}"#;
        let log = format!("loading\n{fatal}\n\n");
        let last = json!({"terminated": {"exitCode": 3, "message": log}});
        let crashing = seen(json!({"containerStatuses": [container(state.clone(), last)]}));
        let message = "container supervisor of sums-trainer-0: CrashLoopBackOff: it exited with \
            code 3: loading; error: no model";
        assert_eq!(crashing, Some(("CrashLoopBackOff".to_owned(), message.to_owned(), false)));
        let init = json!({"initContainerStatuses": [container(state, json!({}))]});
        assert_eq!(seen(init).unwrap().0, "CrashLoopBackOff", "init containers count too");
    }

    #[test]
    fn rejected_pods_and_missing_mounts_need_the_user() {
        let of_event = |reason: &str, message: &str| {
            let cause = Cause { reason: reason.to_owned(), message: message.to_owned() };
            let waiting = warned("sums-trainer".to_owned(), &cause);
            (waiting.message, waiting.needs_user)
        };
        assert_eq!(
            of_event("FailedCreate", "pods \"sums-trainer-0\" is forbidden: exceeded quota"),
            (
                "sums-trainer: FailedCreate: pods \"sums-trainer-0\" is forbidden: exceeded quota"
                    .to_owned(),
                true
            )
        );
        assert!(of_event("FailedMount", "secret \"keys\" not found").1);
        let key = "references non-existent secret key: token";
        assert!(of_event("FailedMount", key).1);
        assert!(!of_event("FailedMount", "timed out waiting for the volume").1);
        assert!(!of_event("FailedAttachVolume", "the volume is attached elsewhere").1);
    }
}
