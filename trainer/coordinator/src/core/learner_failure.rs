//! Failures of learners: what a report shows, the first cause of a group's failures, and the action
//! of `failurePolicy`.

use rljob_crds::failure_policy::{FailureAction, FailureRole, first_match, rule_name};
use rljob_crds::names::{EXIT_LEARNER_INPUT, EXIT_LEARNER_PEER};
use rljob_protocol::desired::RestartPolicy;
use rljob_protocol::status::LearnerFailure;
use rljob_protocol::supervisor::SupervisorReport;

use super::Stage;
use super::record::GroupRecord;
use super::supervisors;

/// Reason of failures by an invalid model or checkpoint, which a restart cannot repair.
pub const LEARNER_INPUT: &str = "LearnerInput";

/// Action of the first matching rule, whose path is added to the message. Without a match,
/// invalid input fails the run, and other failures are counted restarts.
pub fn consequence(
    policy: Option<&RestartPolicy>,
    failure: &LearnerFailure,
) -> (FailureAction, LearnerFailure) {
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    match first_match(rules, FailureRole::Trainer, &failure.reason, failure.exit_code) {
        Some((index, action)) => {
            let message = format!("{} ({}: {action:?})", failure.message, rule_name(index));
            (action, LearnerFailure { message, ..failure.clone() })
        }
        None if failure.exit_code == Some(EXIT_LEARNER_INPUT) => {
            (FailureAction::FailJob, failure.clone())
        }
        None => (FailureAction::Restart, failure.clone()),
    }
}

/// Stops the group of the supervisor `name`, unless it `is_done`, so that no exit is a failure.
pub fn learner_failed(
    record: &mut GroupRecord,
    name: &str,
    failure: LearnerFailure,
    policy: Option<&RestartPolicy>,
    is_done: bool,
) {
    let fails = consequence(policy, &failure).0 == FailureAction::FailJob;
    match &mut record.stage {
        Stage::Running(layout)
            if !is_done && layout.members.iter().any(|member| member.name == name) =>
        {
            record.stage = Stage::Stopping {
                layout: layout.clone(),
                failure: Some(failure),
                lost: false,
                fatal: fails,
            };
        }
        // A rank that lost its peer may be heard before the peer that says why.
        Stage::Stopping { failure: first, fatal, .. }
            if first
                .as_ref()
                .is_none_or(|first| lost_its_peer(first) && !lost_its_peer(&failure))
                || fails =>
        {
            *fatal |= fails;
            *first = Some(failure);
        }
        _ => {}
    }
}

/// Exit codes of learners that are not the first cause if another failure is known.
fn lost_its_peer(failure: &LearnerFailure) -> bool {
    failure.exit_code == Some(EXIT_LEARNER_PEER)
}

/// Failure that a report shows, with the last lines of the log except those of progress.
pub fn failure_of(name: &str, report: &SupervisorReport) -> Option<LearnerFailure> {
    let (code, log_tail) = supervisors::failed(report)?;
    let (reason, how) = match code {
        EXIT_LEARNER_INPUT => (LEARNER_INPUT, format!("exited with code {code}")),
        128.. => ("LearnerKilled", format!("was killed by signal {}", code.saturating_sub(128))),
        _ => ("LearnerExited", format!("exited with code {code}")),
    };
    let lines = log_tail.lines().map(str::trim).filter(|line| !line.is_empty());
    let tail: Vec<&str> = lines.filter(|line| !rljob_logging::is_progress(line)).collect();
    let tail = tail.join(" | ");
    let message = if tail.is_empty() {
        format!("a learner of {name} {how}")
    } else {
        format!("a learner of {name} {how}: {tail}")
    };
    Some(LearnerFailure {
        reason: reason.to_owned(),
        message,
        supervisor: Some(name.to_owned()),
        exit_code: Some(code),
    })
}
