//! Containers that ended by themselves, as their kubelets tell it: of each its newest end. Ends on
//! the way out are none.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::names::{
    FAILURE_COORDINATOR_EXITED, FAILURE_ENGINE_EXITED, FAILURE_OUT_OF_MEMORY,
    FAILURE_SUPERVISOR_EXITED,
};
use rljob_crds::status::Failure;

use super::PodFacts;
use crate::decide::Exit;
use crate::desired::Role;

/// The reason that kubelets give where the kernel found no memory.
const OUT_OF_MEMORY: &str = "OOMKilled";

/// How a container ended the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// How.
    pub exit: Exit,
    /// When.
    pub at: Timestamp,
    /// How often its kubelet has started it again.
    pub restarts: i32,
}

/// Every container's that failed and was not asked to end.
pub(super) fn all(pods: &[PodFacts]) -> Vec<Exit> {
    ends(pods).filter(|(_, end)| end.exit.exit_code != 0).map(|(_, end)| end.exit.clone()).collect()
}

/// The newest of them, for people. An engine is never through: SGLang ends with 0 when one of its
/// processes was killed.
pub(super) fn newest(pods: &[PodFacts]) -> Option<Failure> {
    let failed =
        ends(pods).filter(|(pod, end)| end.exit.exit_code != 0 || pod.role == Role::Inference);
    failed.max_by_key(|(_, end)| end.at).map(|(pod, end)| failure(pod, end))
}

fn ends(pods: &[PodFacts]) -> impl Iterator<Item = (&PodFacts, &End)> {
    pods.iter()
        .filter(|pod| pod.deletion.is_none())
        .filter_map(|pod| Some((pod, pod.end.as_ref()?)))
}

fn failure(pod: &PodFacts, end: &End) -> Failure {
    let exit = &end.exit;
    let reason = match pod.role {
        _ if exit.reason == OUT_OF_MEMORY => FAILURE_OUT_OF_MEMORY,
        Role::Inference => FAILURE_ENGINE_EXITED,
        Role::Coordinator => FAILURE_COORDINATOR_EXITED,
        Role::Trainer => FAILURE_SUPERVISOR_EXITED,
    };
    let how = match exit.exit_code {
        _ if exit.reason == OUT_OF_MEMORY => {
            "was killed: it needed more memory than its limit, or than its node has".to_owned()
        }
        code @ 129.. => format!("was killed by signal {}", code - 128),
        code => format!("exited with code {code}"),
    };
    let words = exit
        .message
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(|line| format!(": {}", line.trim()))
        .unwrap_or_default();
    Failure {
        reason: reason.to_owned(),
        message: format!(
            "the {} process of {} {how}{words}; its kubelet starts it again (restart {})",
            pod.role.as_str(),
            pod.name,
            end.restarts.max(1)
        ),
        pod: Some(pod.name.clone()),
        exit_code: Some(exit.exit_code),
        time: Some(Time(end.at)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{asked_to_go, pod};
    use super::*;
    use crate::decide::test_support::at;

    fn ended(name: &str, code: i32, reason: &str, words: &str, second: i64) -> PodFacts {
        let pod = pod(name);
        let exit = Exit {
            role: pod.role.into(),
            name: name.to_owned(),
            reason: reason.to_owned(),
            exit_code: code,
            message: words.to_owned(),
        };
        PodFacts { end: Some(End { exit, at: at(second), restarts: 2 }), ..pod }
    }

    #[test]
    fn a_container_that_failed_counts_unless_its_pod_is_to_go() {
        let (failed, going) = (
            ended("sums-inference-1", 137, "OOMKilled", "", 5),
            asked_to_go(ended("sums-inference-2", 1, "Error", "", 5), 4, 30),
        );
        let pods = [
            ended("sums-inference-0", 0, "Completed", "", 5),
            failed.clone(),
            going,
            pod("sums-trainer-0"),
        ];
        assert_eq!(all(&pods), [failed.end.unwrap().exit]);
    }

    #[test]
    fn the_newest_end_is_told_with_its_code_and_last_words() {
        let engine = ended("sums-inference-0", 1, "Error", "loading\nerror: no such model\n\n", 5);
        let coordinator = ended("sums-coordinator-0", 139, "Error", "", 7);
        let told = |pods: &[PodFacts]| {
            newest(pods).map(|failure| {
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
                format!("the {message}; its kubelet starts it again (restart 2)"),
                Some(code),
                Some(at(second)),
            ))
        };
        let message =
            "inference process of sums-inference-0 exited with code 1: error: no such model";
        assert_eq!(
            told(&[engine.clone(), pod("sums-trainer-0")]),
            expected("EngineExited", message, 1, 5)
        );
        let message = "coordinator process of sums-coordinator-0 was killed by signal 11";
        assert_eq!(told(&[engine, coordinator]), expected("CoordinatorExited", message, 139, 7));
        let message = "inference process of sums-inference-0 was killed: it needed more memory than its limit, or than its node has";
        assert_eq!(
            told(&[ended("sums-inference-0", 137, "OOMKilled", "", 5)]),
            expected("OOMKilled", message, 137, 5)
        );
        let message = "inference process of sums-inference-0 exited with code 0";
        assert_eq!(
            told(&[ended("sums-inference-0", 0, "Completed", "", 5)]),
            expected("EngineExited", message, 0, 5)
        );
        assert_eq!(told(&[ended("sums-trainer-0", 0, "Completed", "", 5)]), None);
        assert_eq!(told(&[asked_to_go(ended("sums-trainer-0", 143, "Error", "", 5), 4, 30)]), None);
    }
}
