//! Unexpected exits of containers, from the newest exit in each pod's status. Exits of terminating
//! pods are ignored.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::names::{
    FAILURE_COORDINATOR_EXITED, FAILURE_ENGINE_EXITED, FAILURE_OUT_OF_MEMORY,
    FAILURE_SUPERVISOR_EXITED, FAILURE_VERIFIER_EXITED,
};
use rljob_crds::status::Failure;

use super::facts::{ContainerExit, PodFacts};
use crate::decide::Exit;
use crate::desired::Role;

/// Kubelet's reason for a container that the kernel killed for its memory use.
const OUT_OF_MEMORY: &str = "OOMKilled";

/// The newest failure of each container.
pub fn failures(pods: &[PodFacts]) -> Vec<Exit> {
    exits(pods)
        .filter(|(_, last)| last.exit.exit_code != 0)
        .map(|(_, last)| last.exit.clone())
        .collect()
}

/// The failures of [`failures`] since a time. Kubelets report whole seconds.
pub fn failures_since(pods: &[PodFacts], since: Timestamp) -> Vec<Exit> {
    exits(pods)
        .filter(|(_, last)| last.exit.exit_code != 0 && last.at.as_second() >= since.as_second())
        .map(|(_, last)| last.exit.clone())
        .collect()
}

/// The newest unexpected exit. Every exit of an engine is unexpected: SGLang exits with 0 when one
/// of its processes is killed.
pub fn newest_exit(pods: &[PodFacts]) -> Option<Failure> {
    let unexpected =
        exits(pods).filter(|(pod, last)| last.exit.exit_code != 0 || pod.role.is_engine());
    unexpected.max_by_key(|(_, last)| last.at).map(|(pod, last)| failure(pod, last))
}

fn exits(pods: &[PodFacts]) -> impl Iterator<Item = (&PodFacts, &ContainerExit)> {
    pods.iter()
        .filter(|pod| pod.deletion.is_none())
        .filter_map(|pod| Some((pod, pod.last_exit.as_ref()?)))
}

fn failure(pod: &PodFacts, last: &ContainerExit) -> Failure {
    let exit = &last.exit;
    let reason = match pod.role {
        _ if exit.reason == OUT_OF_MEMORY => FAILURE_OUT_OF_MEMORY,
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => FAILURE_ENGINE_EXITED,
        Role::Coordinator => FAILURE_COORDINATOR_EXITED,
        Role::Trainer | Role::Group => FAILURE_SUPERVISOR_EXITED,
        Role::Verifier => FAILURE_VERIFIER_EXITED,
    };
    let what = match exit.exit_code {
        _ if exit.reason == OUT_OF_MEMORY => {
            "was killed: out of memory of its limit or of its node".to_owned()
        }
        code @ 129.. => format!("was killed by signal {}", code.saturating_sub(128)),
        code => format!("exited with code {code}"),
    };
    let last_line = exit.message.lines().rev().find(|line| !line.trim().is_empty());
    let cause = last_line.map(|line| format!(": {}", line.trim())).unwrap_or_default();
    Failure {
        reason: reason.to_owned(),
        message: format!(
            "the {} container of pod {} {what}{cause}; its kubelet restarts it (restart {})",
            pod.role.as_str(),
            pod.name,
            last.restarts.max(1)
        ),
        pod: Some(pod.name.clone()),
        exit_code: Some(exit.exit_code),
        time: Some(Time(last.at)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{pod, terminating};
    use super::*;
    use crate::decide::test_support::at;

    fn exited(name: &str, code: i32, reason: &str, message: &str, second: i64) -> PodFacts {
        let pod = pod(name);
        let exit = Exit {
            role: pod.role.into(),
            name: name.to_owned(),
            reason: reason.to_owned(),
            exit_code: code,
            message: message.to_owned(),
        };
        let last_exit = ContainerExit { exit, at: at(second), restarts: 2 };
        PodFacts { last_exit: Some(last_exit), ..pod }
    }

    #[test]
    fn failures_of_terminating_pods_are_ignored() {
        let (failed, going) = (
            exited("sums-inference-1", 137, "OOMKilled", "", 5),
            terminating(exited("sums-inference-2", 1, "Error", "", 5), 4, 30),
        );
        let pods = [
            exited("sums-inference-0", 0, "Completed", "", 5),
            failed.clone(),
            going,
            pod("sums-trainer-0"),
        ];
        assert_eq!(failures(&pods), [failed.last_exit.unwrap().exit]);
    }

    #[test]
    fn the_newest_exit_is_reported_with_its_code_and_last_log_line() {
        let engine = exited("sums-inference-0", 1, "Error", "loading\nerror: no such model\n\n", 5);
        let coordinator = exited("sums-coordinator-0", 139, "Error", "", 7);
        let reported = |pods: &[PodFacts]| {
            newest_exit(pods).map(|failure| {
                (
                    failure.reason,
                    failure.message,
                    failure.exit_code,
                    failure.time.map(|time| time.0),
                )
            })
        };
        let expected = |reason: &str, message: &str, code, second| {
            Some((
                reason.to_owned(),
                format!("the {message}; its kubelet restarts it (restart 2)"),
                Some(code),
                Some(at(second)),
            ))
        };
        let message =
            "inference container of pod sums-inference-0 exited with code 1: error: no such model";
        assert_eq!(
            reported(&[engine.clone(), pod("sums-trainer-0")]),
            expected("EngineExited", message, 1, 5)
        );
        let message = "coordinator container of pod sums-coordinator-0 was killed by signal 11";
        assert_eq!(
            reported(&[engine, coordinator]),
            expected("CoordinatorExited", message, 139, 7)
        );
        let message = "inference container of pod sums-inference-0 was killed: \
            out of memory of its limit or of its node";
        assert_eq!(
            reported(&[exited("sums-inference-0", 137, "OOMKilled", "", 5)]),
            expected("OOMKilled", message, 137, 5)
        );
        let message = "inference container of pod sums-inference-0 exited with code 0";
        assert_eq!(
            reported(&[exited("sums-inference-0", 0, "Completed", "", 5)]),
            expected("EngineExited", message, 0, 5)
        );
        assert_eq!(reported(&[exited("sums-trainer-0", 0, "Completed", "", 5)]), None);
        assert_eq!(
            reported(&[terminating(exited("sums-trainer-0", 143, "Error", "", 5), 4, 30)]),
            None
        );
    }
}
