//! Failures that no restart mends, what rules make of them, and how restarts follow each other.

use rljob_protocol::status::{LearnerFailure, Phase};

use rljob_protocol::desired::{Desired, RestartPolicy};

use super::super::Run;
use super::super::learner_failure::LEARNER_INPUT;
use super::super::tests::{at, desired, exited, started, tell, version};
use super::Stage;

#[test]
fn unusable_learner_input_fails_the_run_without_a_restart_in_any_report_order() {
    for (first, second) in
        [(("t-0", "a", 1), ("t-1", "b", 65)), (("t-1", "b", 65), ("t-0", "a", 1))]
    {
        let mut run = started();
        for (name, instance, code) in [first, second] {
            tell(&mut run, name, exited(instance, 0, code), at(3));
        }
        let expected = LearnerFailure {
            reason: LEARNER_INPUT.to_owned(),
            message: "a learner of t-1 exited with code 65: last | lines".to_owned(),
            supervisor: Some("t-1".to_owned()),
            exit_code: Some(65),
        };
        assert_eq!(
            (run.phase(), run.record().trainer.restarts, run.record().trainer.last_failure.clone()),
            (Phase::Failed, 0, Some(expected)),
            "{first:?} first"
        );
    }
}

#[test]
fn what_is_found_wrong_after_the_end_is_no_failure_of_the_run() {
    let mut run = started();
    run.record.trainer.stage = Stage::Finished;
    run.fail(LearnerFailure {
        reason: "CoordinatorInput".to_owned(),
        message: "the data is gone".to_owned(),
        supervisor: None,
        exit_code: None,
    });
    assert_eq!((run.phase(), run.record().trainer.last_failure.clone()), (Phase::Finished, None));
}

/// The run's state after its learners ended with these exit codes, under these rules.
fn judged(rules: serde_json::Value, codes: [i32; 2]) -> (Phase, u32, String) {
    let mut run = started();
    let restart =
        RestartPolicy { rules: serde_json::from_value(rules).unwrap(), ..desired().restart };
    run.set_desired(Desired { generation: 2, restart, ..desired() }).unwrap();
    tell(&mut run, "t-0", exited("a", 0, codes[0]), at(3));
    tell(&mut run, "t-1", exited("b", 0, codes[1]), at(3));
    (
        run.phase(),
        run.record().trainer.restarts,
        run.record().trainer.last_failure.as_ref().unwrap().message.clone(),
    )
}

#[test]
fn the_first_rule_that_matches_a_learner_says_what_follows_and_is_named() {
    let fail = serde_json::json!({
        "action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]},
        "roles": ["Trainer"],
    });
    let ignore = serde_json::json!({
        "action": "RestartAndIgnoreMaxRestarts", "onReasons": ["LearnerKilled"],
    });
    let of_engines = serde_json::json!({"action": "FailJob", "roles": ["Inference"]});
    let rules = || serde_json::json!([of_engines, fail, ignore]);
    let said =
        |supervisor: &str, how: &str| format!("a learner of {supervisor} {how}: last | lines");
    assert_eq!(judged(rules(), [1, 1]), (Phase::Restarting, 1, said("t-0", "exited with code 1")));
    assert_eq!(
        judged(serde_json::json!([]), [69, 1]),
        (Phase::Restarting, 1, said("t-1", "exited with code 1")),
        "who lost a peer does not say why"
    );
    let failed = said("t-1", "exited with code 42") + " (failurePolicy.rules[1]: FailJob)";
    assert_eq!(judged(rules(), [1, 42]), (Phase::Failed, 0, failed), "in any order of reports");
    let uncounted = said("t-0", "was killed by signal 9")
        + " (failurePolicy.rules[2]: RestartAndIgnoreMaxRestarts)";
    assert_eq!(judged(rules(), [137, 1]), (Phase::Restarting, 0, uncounted));
    let mended = serde_json::json!([{"action": "Restart", "onReasons": ["LearnerInput"]}]);
    let again = said("t-0", "exited with code 65") + " (failurePolicy.rules[0]: Restart)";
    assert_eq!(
        judged(mended, [65, 1]),
        (Phase::Restarting, 1, again),
        "a rule comes before what holds without one"
    );
}

/// Fails the run's learners at `now`; answers how many seconds it waits before it starts them
/// again, and does so.
fn wait(run: &mut Run, now: u64) -> f64 {
    let attempt = run.record().trainer.attempt;
    let exits = |run: &mut Run, now| {
        tell(run, "t-0", exited("a", attempt, 1), now);
        tell(run, "t-1", exited("b", attempt, 1), now);
    };
    exits(run, at(now));
    let until = run.trainer.backoff_until;
    let wait = until.map_or(0.0, |until| until.saturating_sub(at(now)).as_secs_f64());
    run.checkpoints_verified(run.checkpoints().clone());
    exits(run, at(now + wait.ceil() as u64));
    assert_eq!(
        (run.record().trainer.attempt, run.record().trainer.stage.name()),
        (attempt + 1, "Running")
    );
    wait
}

#[test]
fn waits_grow_while_restarts_lead_to_nothing_and_start_over_after_a_new_step_or_a_checkpoint() {
    let mut run = started();
    run.set_desired(Desired {
        generation: 2,
        restart: RestartPolicy { max_restarts: 9, ..desired().restart },
        ..desired()
    })
    .unwrap();
    run.batch_fixed(1);
    let (mut waits, mut now) = (Vec::new(), 5);
    for progress in
        ["nothing", "nothing", "a step", "the same step again", "a checkpoint", "nothing"]
    {
        waits.push(wait(&mut run, now));
        now += waits.last().map_or(0, |wait| wait.ceil() as u64) + 1;
        let attempt = run.record().trainer.attempt;
        match progress {
            "nothing" => {}
            "a checkpoint" => run
                .checkpoint_done(
                    attempt,
                    version(1, attempt),
                    &run.checkpoint_path(version(1, attempt)),
                )
                .unwrap(),
            _ => run.step_done(attempt, 1).unwrap(),
        }
    }
    let within = |(wait, longest): (&f64, f64)| (longest / 2.0..=longest).contains(wait);
    assert!(waits.iter().zip([0.0, 4.0, 8.0, 0.0, 4.0, 0.0]).all(within), "{waits:?}");
    assert_eq!(run.record().trainer.restarts, 6, "the budget is for the whole run");
}
