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
    let cause = facts.waiting.first().map(|waiting| format!(": {}", waiting.message));
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
mod tests;
