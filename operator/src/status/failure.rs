//! `lastFailure`: the newer of the coordinator's report about learners and the kubelets' reports
//! about containers. Only kubelets report times, so a learner's failure is new if it differs from
//! the last one, or if a restart was counted since.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::names::{
    FAILURE_COORDINATOR_EXITED, FAILURE_ENGINE_EXITED, FAILURE_OUT_OF_MEMORY,
    FAILURE_SUPERVISOR_EXITED,
};
use rljob_crds::status::{Failure, RLJobStatus};
use rljob_protocol::status::{CoordinatorStatus, GroupState, LearnerFailure, Phase};

use super::text::clip;

/// Reasons of failures that kubelets report.
const CONTAINER_FAILURES: [&str; 4] = [
    FAILURE_ENGINE_EXITED,
    FAILURE_COORDINATOR_EXITED,
    FAILURE_SUPERVISOR_EXITED,
    FAILURE_OUT_OF_MEMORY,
];

/// The failure to record.
pub(super) fn newest(
    old: &RLJobStatus,
    report: Option<&CoordinatorStatus>,
    exit: Option<&Failure>,
    now: Timestamp,
) -> Option<Failure> {
    let learner = new_learner_failure(old, report, now);
    let of_group = || new_group_failure(old, report?, now);
    let known = learner.or_else(of_group).or_else(|| old.last_failure.clone());
    let time = |failure: &Failure| failure.time.as_ref().map(|time| time.0);
    match exit {
        Some(exit) if known.as_ref().is_none_or(|known| time(exit) > time(known)) => {
            Some(Failure { message: clip(&exit.message), ..exit.clone() })
        }
        _ => known,
    }
}

/// A failure of learners that is not recorded yet.
fn new_learner_failure(
    old: &RLJobStatus,
    report: Option<&CoordinatorStatus>,
    now: Timestamp,
) -> Option<Failure> {
    let report = report?;
    let new = observed(report.last_failure.as_ref()?, now);
    let is_new = old.last_failure.as_ref().is_none_or(|last| {
        let same = *last == (Failure { time: last.time.clone(), ..new.clone() });
        let counted = report.restarts > old.restarts || report.phase == Phase::Failed;
        !same && (counted || !CONTAINER_FAILURES.contains(&last.reason.as_str()))
    });
    is_new.then_some(new)
}

/// A failure that made a group of `trainer.groups` restart since the recorded restarts.
fn new_group_failure(
    old: &RLJobStatus,
    report: &CoordinatorStatus,
    now: Timestamp,
) -> Option<Failure> {
    let is_new = |group: &&GroupState| {
        let known = old.trainer_groups.iter().find(|known| known.name == group.name);
        group.restarts > known.map_or(0, |known| known.restarts)
    };
    let group = report.groups.iter().find(is_new)?;
    Some(observed(group.last_failure.as_ref()?, now))
}

fn observed(failure: &LearnerFailure, now: Timestamp) -> Failure {
    Failure {
        reason: failure.reason.clone(),
        message: clip(&failure.message),
        pod: failure.supervisor.clone(),
        exit_code: failure.exit_code,
        time: Some(Time(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::{at, report};
    use rljob_crds::status::TrainerGroupStatus;

    fn exit(second: i64) -> Failure {
        Failure {
            reason: "EngineExited".to_owned(),
            message: "an engine".to_owned(),
            time: Some(Time(at(second))),
            ..Failure::default()
        }
    }

    fn learner(restarts: u32) -> CoordinatorStatus {
        let failure = LearnerFailure {
            reason: "LearnerExited".to_owned(),
            message: "a learner".to_owned(),
            supervisor: None,
            exit_code: Some(1),
        };
        CoordinatorStatus { restarts, last_failure: Some(failure), ..report() }
    }

    fn recorded(failure: Failure, restarts: u32) -> RLJobStatus {
        RLJobStatus { last_failure: Some(failure), restarts, ..RLJobStatus::default() }
    }

    #[test]
    fn the_newer_failure_is_recorded_once() {
        let of_learner = |second: i64| Failure {
            reason: "LearnerExited".to_owned(),
            message: "a learner".to_owned(),
            exit_code: Some(1),
            time: Some(Time(at(second))),
            ..Failure::default()
        };
        let none = RLJobStatus::default();
        for (case, old, report, seen, expected) in [
            ("nothing", &none, None, None, None),
            ("a learner's first", &none, Some(learner(1)), None, Some(of_learner(9))),
            (
                "the same failure",
                &recorded(of_learner(5), 1),
                Some(learner(1)),
                None,
                Some(of_learner(5)),
            ),
            (
                "a newer container's",
                &recorded(of_learner(5), 1),
                Some(learner(1)),
                Some(exit(7)),
                Some(exit(7)),
            ),
            (
                "an older container's",
                &recorded(of_learner(5), 1),
                Some(learner(1)),
                Some(exit(3)),
                Some(of_learner(5)),
            ),
            (
                "an older learner's",
                &recorded(exit(7), 1),
                Some(learner(1)),
                Some(exit(7)),
                Some(exit(7)),
            ),
            (
                "a learner's, counted since",
                &recorded(exit(7), 1),
                Some(learner(2)),
                Some(exit(7)),
                Some(of_learner(9)),
            ),
            ("no report", &recorded(exit(7), 1), None, None, Some(exit(7))),
        ] {
            assert_eq!(newest(old, report.as_ref(), seen.as_ref(), at(9)), expected, "{case}");
        }
    }

    #[test]
    fn the_failure_of_a_group_is_recorded_with_its_restart() {
        let failed = |restarts| {
            let learner = learner(1);
            let group = GroupState {
                name: "frozen".to_owned(),
                attempt: restarts,
                restarts,
                running: true,
                last_failure: learner.last_failure,
                supervisors: Vec::new(),
                memory: None,
            };
            CoordinatorStatus { groups: vec![group], ..report() }
        };
        let old = RLJobStatus {
            trainer_groups: vec![TrainerGroupStatus {
                name: "frozen".to_owned(),
                restarts: 1,
                ..TrainerGroupStatus::default()
            }],
            ..RLJobStatus::default()
        };
        assert_eq!(newest(&old, Some(&failed(1)), None, at(9)), None, "recorded before");
        let found = newest(&old, Some(&failed(2)), None, at(9)).unwrap();
        assert_eq!(found.time, Some(Time(at(9))));
    }
}
