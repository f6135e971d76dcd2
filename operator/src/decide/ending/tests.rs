//! Tests of the end of a job.

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
    let silence =
        |restarts| Some(Silence { since: at(0), error: "connection refused".to_owned(), restarts });
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
    facts.waiting = vec![Waiting {
        name: "sums-trainer-0".to_owned(),
        reason: "Unschedulable".to_owned(),
        message: "sums-trainer-0 cannot be scheduled: no node fits".to_owned(),
        needs_user: false,
    }];
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
