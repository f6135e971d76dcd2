//! Policies that end a run, or find that it has ended.

use jiff::{SignedDuration, Timestamp};
use rljob_crds::failure_policy::{FailureAction, FailureRole, first_match, rule_name};
use rljob_crds::names::{
    EXIT_PROTOCOL_UNSUPPORTED, REASON_COMPLETED, REASON_COORDINATOR_FAILED,
    REASON_DEADLINE_EXCEEDED, REASON_FAILED, REASON_PROTOCOL_UNSUPPORTED,
    REASON_RUN_DIRECTORY_IN_USE, REASON_STARTUP_DEADLINE_EXCEEDED, RUN_CONFIG_FILE,
};
use rljob_crds::run_config;
use rljob_protocol::status::Phase;

use super::decision::{Decision, Outcome};
use super::facts::{Exit, Facts, Recorded};
use crate::validate::Job;

/// Stalls a job whose processes are of releases that do not work together. It continues when the
/// user changes an image.
pub(super) fn protocol_unsupported(facts: &Facts) -> Option<Decision> {
    let reported = || {
        let report = facts.report()?;
        report.unsupported.as_ref().map(ToString::to_string)
    };
    let message = facts
        .unsupported
        .clone()
        .or_else(reported)
        .or_else(|| facts.exits.iter().find_map(unreadable_run_config))?;
    Some(Decision::Stall { reason: REASON_PROTOCOL_UNSUPPORTED, message })
}

/// The message of a process that could not read the run configuration. Release 0.1 exits with 1.
fn unreadable_run_config(exit: &Exit) -> Option<String> {
    let is_role = matches!(exit.role, FailureRole::Coordinator | FailureRole::Trainer);
    let line = exit.message.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let cause = line.trim_start_matches("error: ");
    let is_release_0_1 = exit.exit_code == 1
        && line.contains(RUN_CONFIG_FILE)
        && ["failed to parse ", "failed to understand the run configuration "]
            .iter()
            .any(|start| cause.starts_with(start));
    (is_role && (exit.exit_code == EXIT_PROTOCOL_UNSUPPORTED || is_release_0_1)).then(|| {
        format!(
            "{} cannot read the run configuration of this operator (protocol version {}): {}; \
             run it from an image of the operator's release",
            exit.name,
            run_config::PROTOCOL,
            cause
        )
    })
}

/// Returns the recorded outcome, which is final, except that a succeeded run resumes when
/// `spec.training.steps` is raised.
pub(super) fn recorded_outcome(job: &Job, facts: &Facts, now: Timestamp) -> Option<Decision> {
    let outcome = facts.recorded.outcome.clone()?;
    let is_raised = |total: u32| job.spec.training.steps > total;
    if outcome.succeeded && facts.recorded.total_steps.is_some_and(is_raised) {
        return None;
    }
    Some(if is_expired(job, &facts.recorded, now) {
        Decision::Expired(outcome)
    } else {
        Decision::Finished(outcome)
    })
}

/// Fails a run whose run directory belongs to another run. The other run's files stay untouched.
pub(super) fn directory_in_use(facts: &Facts) -> Option<Decision> {
    let message = facts.directory_in_use.clone()?;
    Some(Decision::fail(REASON_RUN_DIRECTORY_IN_USE, message))
}

/// Fails a run whose coordinator has given up: the restart budget is spent, or the input is
/// invalid.
pub(super) fn failed(facts: &Facts) -> Option<Decision> {
    let report = facts.report().filter(|report| report.phase == Phase::Failed)?;
    let restarts = report.restarts;
    let message = match &report.last_failure {
        Some(cause) => {
            let place =
                cause.supervisor.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
            let code =
                cause.exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
            format!("{}{place}{code} after {restarts} restarts: {}", cause.reason, cause.message)
        }
        None => format!("the coordinator gave up after {restarts} restarts"),
    };
    Some(Decision::fail(REASON_FAILED, message))
}

/// Completes a run after its last step, once the model is exported, or after its evaluation.
pub(super) fn succeeded(job: &Job, facts: &Facts) -> Option<Decision> {
    let report = facts.report().filter(|report| report.phase == Phase::Finished)?;
    let message = if job.spec.algorithm.has_learners() {
        format!("completed {} steps and exported the model", report.step)
    } else {
        "evaluated the model".to_owned()
    };
    let reason = REASON_COMPLETED.to_owned();
    Some(Decision::Finish(Outcome { succeeded: true, reason, message }))
}

/// Fails a run whose coordinator restarts more often than `failurePolicy.maxRestarts` without an
/// answer in between.
pub(super) fn coordinator_failed(job: &Job, facts: &Facts) -> Option<Decision> {
    let silence = facts.silence.as_ref()?;
    let max_restarts = job.spec.failure_policy.max_restarts;
    (silence.restarts > max_restarts).then(|| {
        let exit = facts.exits.iter().find(|exit| exit.role == FailureRole::Coordinator);
        let cause = exit.map(|exit| format!(": {}", exit_line(exit))).unwrap_or_default();
        let message = format!(
            "the coordinator restarted {} times without an answer; \
             failurePolicy.maxRestarts is {max_restarts}{cause}",
            silence.restarts
        );
        Decision::fail(REASON_COORDINATOR_FAILED, message)
    })
}

/// Exit of a container in one line, with the last line of its log.
fn exit_line(exit: &Exit) -> String {
    let Exit { role: _, name, reason, exit_code, message } = exit;
    let last_line = message.trim().lines().next_back();
    let cause = last_line.map(|line| format!(": {line}")).unwrap_or_default();
    format!("{name} exited with code {exit_code} ({reason}){cause}")
}

/// Fails a run after an exit that `failurePolicy.rules` map to `FailJob`. Rules apply to exits
/// since they were set. For learners, the coordinator applies them.
pub(super) fn failure_rules(job: &Job, facts: &Facts) -> Option<Decision> {
    let rules = &job.spec.failure_policy.rules;
    facts.exits_under_rules.iter().find_map(|exit| {
        let (index, action) = first_match(rules, exit.role, &exit.reason, Some(exit.exit_code))?;
        (action == FailureAction::FailJob).then(|| {
            let message = format!("{} fails the job: {}", rule_name(index), exit_line(exit));
            Decision::fail(REASON_FAILED, message)
        })
    })
}

/// Fails a run that exceeds `spec.activeDeadlineSeconds` since its start or last resume.
pub(super) fn deadline_exceeded(job: &Job, facts: &Facts, now: Timestamp) -> Option<Decision> {
    deadline(job, &facts.recorded).filter(|deadline| now >= *deadline)?;
    let seconds = job.spec.active_deadline_seconds.unwrap_or_default();
    let message = format!("the run took longer than spec.activeDeadlineSeconds = {seconds}");
    Some(Decision::fail(REASON_DEADLINE_EXCEEDED, message))
}

/// Fails a run that has not trained within `spec.startupDeadlineSeconds`.
pub(super) fn startup_deadline_exceeded(
    job: &Job,
    facts: &Facts,
    now: Timestamp,
) -> Option<Decision> {
    let trains = facts.report().is_some_and(|report| report.phase == Phase::Running);
    startup_deadline(job, &facts.recorded).filter(|deadline| !trains && now >= *deadline)?;
    let seconds = job.spec.startup_deadline_seconds.unwrap_or_default();
    let cause = facts.waiting.as_ref().map(|waiting| format!(": {}", waiting.message));
    let message = format!(
        "the run did not train within spec.startupDeadlineSeconds = {seconds}{}",
        cause.unwrap_or_default()
    );
    Some(Decision::fail(REASON_STARTUP_DEADLINE_EXCEEDED, message))
}

/// The time at which the run fails unless it has trained.
pub fn startup_deadline(job: &Job, recorded: &Recorded) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(i64::from(job.spec.startup_deadline_seconds?));
    let since = recorded.active_since.filter(|_| recorded.training_since.is_none())?;
    Some(since.saturating_add(seconds).unwrap_or(Timestamp::MAX))
}

/// The time at which the run fails unless it ends or is suspended before.
pub fn deadline(job: &Job, recorded: &Recorded) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(i64::from(job.spec.active_deadline_seconds?));
    Some(recorded.active_since?.saturating_add(seconds).unwrap_or(Timestamp::MAX))
}

/// The time at which the children of an ended run are deleted.
pub fn removal(job: &Job, recorded: &Recorded) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(i64::from(job.spec.ttl_seconds_after_finished?));
    Some(recorded.completed_at?.saturating_add(seconds).unwrap_or(Timestamp::MAX))
}

/// Whether the children of an ended run are due for deletion.
pub fn is_expired(job: &Job, recorded: &Recorded, now: Timestamp) -> bool {
    removal(job, recorded).is_some_and(|due| now >= due)
}

#[cfg(test)]
mod tests {
    use rljob_crds::failure_policy::FailureRole;
    use rljob_protocol::status::LearnerFailure;
    use serde_json::json;

    use super::super::test_support::{at, facts, outcome};
    use super::super::{Silence, Waiting, decide};
    use super::*;
    use crate::validate::test_support::validated;

    fn fails(reason: &str, message: &str) -> Decision {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        Decision::Finish(Outcome { succeeded: false, reason, message })
    }

    #[test]
    fn a_succeeded_run_resumes_when_its_steps_are_raised_and_a_failed_one_does_not() {
        let mut job = validated();
        let mut facts = facts();
        facts.recorded.outcome = Some(outcome());
        facts.recorded.total_steps = Some(job.spec.training.steps);
        let finished = Some(Decision::Finished(outcome()));
        assert_eq!(recorded_outcome(&job, &facts, at(0)), finished);
        job.spec.training.steps += 1;
        assert_eq!(recorded_outcome(&job, &facts, at(0)), None);
        let failed = Outcome { succeeded: false, ..outcome() };
        facts.recorded.outcome = Some(failed.clone());
        assert_eq!(recorded_outcome(&job, &facts, at(0)), Some(Decision::Finished(failed)));
    }

    #[test]
    fn a_recorded_outcome_is_final() {
        let mut job = validated();
        assert_eq!(recorded_outcome(&job, &facts(), at(0)), None);
        let mut facts = facts();
        facts.recorded.outcome = Some(outcome());
        facts.recorded.completed_at = Some(at(0));
        let finished = Decision::Finished(outcome());
        assert_eq!(recorded_outcome(&job, &facts, at(100)), Some(finished.clone()));
        job.spec.ttl_seconds_after_finished = Some(60);
        assert_eq!(recorded_outcome(&job, &facts, at(59)), Some(finished));
        assert_eq!(recorded_outcome(&job, &facts, at(60)), Some(Decision::Expired(outcome())));
    }

    #[test]
    fn releases_that_do_not_work_together_stall_the_job_with_the_reason() {
        use rljob_protocol::peer::ProtocolUnsupported;

        let stalled = |change: &dyn Fn(&mut Facts)| {
            let mut facts = facts();
            change(&mut facts);
            match decide(&validated(), &facts, at(0)) {
                Decision::Stall { reason, message } => Some((reason, message)),
                _ => None,
            }
        };
        assert_eq!(stalled(&|_| ()), None);
        let message = "the coordinator rejected PUT /v1/desired".to_owned();
        assert_eq!(
            stalled(&|facts| facts.unsupported = Some(message.clone())),
            Some(("ProtocolUnsupported", message.clone()))
        );
        let supervisor = ProtocolUnsupported::check("supervisor a", 1, 2, "the run configuration");
        let supervisor = supervisor.unwrap_err();
        assert_eq!(
            stalled(&|facts| {
                facts.coordinator.as_mut().unwrap().unsupported = Some(supervisor.clone());
            }),
            Some(("ProtocolUnsupported", supervisor.to_string()))
        );
        let suspended = stalled(&|facts| {
            facts.unsupported = Some(message.clone());
            facts.suspend = true;
        });
        assert_eq!(suspended, None, "a suspended job drains, so that its images can be changed");
        let exits = |exit_code, message: &str| {
            stalled(&|facts| {
                facts.exits = vec![Exit {
                    role: FailureRole::Coordinator,
                    name: "sums-coordinator-0".to_owned(),
                    reason: "Error".to_owned(),
                    exit_code,
                    message: message.to_owned(),
                }];
            })
        };
        let release_0_1 = "a log line\nerror: failed to parse /rljob/config/run.json: \
                           unknown field `protocol`\n";
        let (reason, message) = exits(1, release_0_1).unwrap();
        assert_eq!(reason, "ProtocolUnsupported");
        assert_eq!(
            message,
            "sums-coordinator-0 cannot read the run configuration of this operator \
             (protocol version 2): failed to parse /rljob/config/run.json: unknown field \
             `protocol`; run it from an image of the operator's release"
        );
        assert!(exits(76, "error: ProtocolUnsupported: too old").is_some());
        assert_eq!(exits(1, "error: failed to parse the journal"), None);
    }

    #[test]
    fn a_run_directory_in_use_fails_the_run_with_the_coordinators_message() {
        let mut facts = facts();
        assert_eq!(directory_in_use(&facts), None);
        facts.directory_in_use = Some("it belongs to lab/other".to_owned());
        let expected = Some(fails("RunDirectoryInUse", "it belongs to lab/other"));
        assert_eq!(directory_in_use(&facts), expected);
    }

    #[test]
    fn a_coordinator_that_gave_up_fails_the_run_with_the_first_cause() {
        let mut facts = facts();
        assert_eq!(failed(&facts), None);
        let report = facts.coordinator.as_mut().unwrap();
        report.phase = Phase::Failed;
        report.restarts = 4;
        let expected = Some(fails("Failed", "the coordinator gave up after 4 restarts"));
        assert_eq!(failed(&facts), expected);
        facts.coordinator.as_mut().unwrap().last_failure = Some(LearnerFailure {
            reason: "LearnerExited".to_owned(),
            message: "out of memory".to_owned(),
            supervisor: Some("sums-trainer-0".to_owned()),
            exit_code: Some(137),
        });
        let message =
            "LearnerExited in sums-trainer-0 with exit code 137 after 4 restarts: out of memory";
        assert_eq!(failed(&facts), Some(fails("Failed", message)));
        facts.epoch.number = 4;
        assert_eq!(failed(&facts), None, "reports of older epochs are ignored");
    }

    #[test]
    fn a_coordinator_that_restarts_too_often_without_an_answer_fails_the_run() {
        let (job, mut facts) = (validated(), facts());
        assert_eq!(coordinator_failed(&job, &facts), None);
        let silence = |restarts| {
            Some(Silence { since: at(0), error: "connection refused".to_owned(), restarts })
        };
        facts.silence = silence(3);
        assert_eq!(coordinator_failed(&job, &facts), None);
        facts.silence = silence(4);
        facts.exits = vec![Exit {
            role: FailureRole::Coordinator,
            name: "sums-coordinator-0".to_owned(),
            reason: "Error".to_owned(),
            exit_code: 1,
            message: "opening\nerror: journal.sqlite is damaged\n".to_owned(),
        }];
        let message = "the coordinator restarted 4 times without an answer; \
            failurePolicy.maxRestarts is 3: sums-coordinator-0 exited with code 1 (Error): \
            error: journal.sqlite is damaged";
        assert_eq!(coordinator_failed(&job, &facts), Some(fails("CoordinatorFailed", message)));
    }

    #[test]
    fn a_finished_coordinator_completes_the_run() {
        let mut facts = facts();
        assert_eq!(succeeded(&validated(), &facts), None);
        facts.coordinator.as_mut().unwrap().phase = Phase::Finished;
        let expected = Decision::Finish(Outcome {
            succeeded: true,
            reason: "Completed".to_owned(),
            message: "completed 7 steps and exported the model".to_owned(),
        });
        assert_eq!(succeeded(&validated(), &facts), Some(expected));
        facts.epoch.number = 4;
        assert_eq!(succeeded(&validated(), &facts), None, "reports of older epochs are ignored");
    }

    #[test]
    fn the_first_rule_that_matches_an_exit_decides_whether_the_job_fails() {
        let exit = |role, name: &str, exit_code, reason: &str| Exit {
            role,
            name: name.to_owned(),
            reason: reason.to_owned(),
            exit_code,
            message: "a log line\nout of memory\n".to_owned(),
        };
        let engine = || exit(FailureRole::Inference, "sums-inference-1", 137, "OOMKilled");
        let coordinator = || exit(FailureRole::Coordinator, "sums-coordinator-0", 3, "Error");
        let trainer = || exit(FailureRole::Trainer, "sums-trainer-0", 1, "Error");
        let mut job = validated();
        let rules = [
            json!({"action": "Restart", "onExitCodes": {"operator": "In", "values": [3]}}),
            json!({
                "action": "FailJob",
                "onReasons": ["OOMKilled", "Error"],
                "roles": ["Inference", "Coordinator"],
            }),
        ];
        job.spec.failure_policy.rules =
            rules.map(|rule| serde_json::from_value(rule).unwrap()).to_vec();
        let message = "failurePolicy.rules[1] fails the job: sums-inference-1 exited with code 137 \
            (OOMKilled): out of memory";
        for (case, exits, expected) in [
            ("no exit", vec![], None),
            ("an earlier rule matches", vec![coordinator()], None),
            ("a later exit matches", vec![coordinator(), engine()], Some(fails("Failed", message))),
            ("no rule matches", vec![trainer()], None),
        ] {
            let facts = Facts { exits_under_rules: exits, ..facts() };
            assert_eq!(failure_rules(&job, &facts), expected, "{case}");
        }
    }

    #[test]
    fn a_run_that_has_not_trained_by_its_startup_deadline_fails_with_the_cause() {
        let (mut job, mut facts) = (validated(), facts());
        job.spec.startup_deadline_seconds = Some(60);
        facts.recorded.active_since = Some(at(0));
        assert_eq!(decide(&job, &facts, at(60)), Decision::Run, "it trains");
        facts.coordinator = None;
        assert_eq!(startup_deadline_exceeded(&job, &facts, at(59)), None);
        facts.waiting = Some(Waiting {
            name: "sums-trainer-0".to_owned(),
            reason: "Unschedulable".to_owned(),
            message: "sums-trainer-0 cannot be scheduled: no node fits".to_owned(),
            needs_user: false,
        });
        let message = "the run did not train within spec.startupDeadlineSeconds = 60: \
            sums-trainer-0 cannot be scheduled: no node fits";
        assert_eq!(decide(&job, &facts, at(60)), fails("StartupDeadlineExceeded", message));
        facts.recorded.training_since = Some(at(30));
        assert_eq!(startup_deadline_exceeded(&job, &facts, at(60)), None, "it has trained");
    }

    #[test]
    fn a_run_past_its_deadline_fails_unless_it_is_suspended_or_has_ended() {
        let mut job = validated();
        let mut facts = facts();
        facts.recorded.active_since = Some(at(0));
        assert_eq!(deadline_exceeded(&job, &facts, at(99)), None, "no deadline is set");
        job.spec.active_deadline_seconds = Some(60);
        assert_eq!(deadline_exceeded(&job, &facts, at(59)), None);
        let message = "the run took longer than spec.activeDeadlineSeconds = 60";
        assert_eq!(decide(&job, &facts, at(60)), fails("DeadlineExceeded", message));
        facts.suspend = true;
        assert!(matches!(decide(&job, &facts, at(60)), Decision::Drain { .. }));
        facts.suspend = false;
        facts.coordinator.as_mut().unwrap().phase = Phase::Finished;
        let decision = decide(&job, &facts, at(60));
        assert!(matches!(decision, Decision::Finish(outcome) if outcome.succeeded));
    }

    #[test]
    fn children_are_kept_until_their_ttl_has_passed() {
        let mut job = validated();
        let mut recorded = facts().recorded;
        recorded.completed_at = Some(at(0));
        assert_eq!(removal(&job, &recorded), None);
        job.spec.ttl_seconds_after_finished = Some(60);
        assert_eq!(removal(&job, &recorded), Some(at(60)));
        recorded.completed_at = None;
        assert_eq!(removal(&job, &recorded), None, "the run has not ended");
    }
}
