//! Evaluations beside training: orders, the queue, restarts and the end of the run.

use rljob_protocol::desired::{Desired, Mode};
use rljob_protocol::learner::ValidationReport;
use rljob_protocol::status::{Activity, Phase};

use super::super::reports::Folder;
use super::super::tests::{
    ask, at, desired, exited, restart, running, settings, started_with, tell, version,
};
use super::super::{Facts, Settings};
use super::*;

/// Eight steps, with evaluations of a suite every 2 steps and of another one every 4.
fn evaluating(max_pending: u32) -> Settings {
    Settings {
        total_steps: 8,
        evaluation_every: vec![2, 4],
        max_pending: Some(max_pending),
        ..settings()
    }
}

fn started(max_pending: u32) -> Run {
    started_with(evaluating(max_pending), Facts { fixed_step: 8, ..Facts::default() })
}

/// Asks after each of `steps` until the learners would train or wait, and does at once what is
/// ordered, except that folders of weights are only `written` if so. Answers the steps of
/// evaluations whose weights were ordered.
fn proceed(run: &mut Run, steps: std::ops::RangeInclusive<u32>, written: bool) -> Vec<u32> {
    let mut ordered = Vec::new();
    for step in steps {
        loop {
            match ask(run, run.record().trainer.attempt, step) {
                Instruction::Checkpoint { version, path } => {
                    run.checkpoint_done(version.attempt, version, &path).unwrap();
                }
                Instruction::Export { version, path } => {
                    let is_evaluated = path != Path::new("/run/export");
                    if is_evaluated {
                        assert_eq!(path, Path::new("/run/evaluation-weights").join(name(version)));
                        ordered.push(step);
                    }
                    if written || !is_evaluated {
                        let folder = run.folder_ready(version.attempt, version, &path);
                        let expected =
                            if is_evaluated { Folder::Evaluated } else { Folder::Exported };
                        assert_eq!(folder, Ok(expected));
                    }
                }
                Instruction::Train { .. } | Instruction::Wait | Instruction::Exit => break,
                other => panic!("{other:?} after {step} steps"),
            }
        }
    }
    ordered
}

fn name(version: Version) -> String {
    version.to_string()
}

fn waiting(run: &Run) -> Vec<(u32, Vec<usize>)> {
    let own = |pending: &PendingEvaluation| (pending.version.step, pending.suites.clone());
    run.record().evaluations.iter().map(own).collect()
}

#[test]
fn training_continues_while_evaluations_wait_in_the_order_of_their_steps() {
    let mut run = started(8);
    assert_eq!(proceed(&mut run, 0..=5, true), [0, 2, 4]);
    assert_eq!(waiting(&run), [(0, vec![0, 1]), (2, vec![0]), (4, vec![0, 1])]);
    assert_eq!(ask(&mut run, 0, 5), Instruction::train(6), "it does not wait");
    for (step, left) in [(0, 2), (2, 1), (4, 0)] {
        let version = version(step, 0);
        assert_eq!(run.evaluation_work(), Work::Evaluate(version));
        let folder = Path::new("/run/evaluation-weights").join(name(version));
        assert_eq!(run.evaluation_weights_wanted(), Some((version, folder)));
        assert!(!run.evaluates_beside(version) && !run.is_evaluation_folder_unused(version));
        run.evaluated(step);
        assert_eq!(run.record().evaluations.len(), left);
        assert!(run.is_evaluation_folder_unused(version));
    }
    assert_eq!(run.evaluation_work(), Work::None);
}

#[test]
fn an_evaluation_that_finds_the_queue_full_stays_due_until_there_is_room() {
    let mut run = started(1);
    assert_eq!(proceed(&mut run, 0..=4, true), [0]);
    assert_eq!(run.suites_due(4), [0, 1], "those of step 2 are superseded");
    run.evaluated(0);
    assert_eq!(proceed(&mut run, 5..=5, true), [5]);
    assert_eq!(proceed(&mut run, 6..=8, true), [] as [u32; 0], "the queue is full");
    assert_eq!(waiting(&run), [(5, vec![0, 1]), (8, vec![0, 1])], "the last one always waits");
}

#[test]
fn the_learners_exit_after_the_last_evaluation_and_then_the_run_is_finished() {
    let mut run = started(8);
    proceed(&mut run, 0..=8, true);
    assert_eq!(run.record().evaluations.last().unwrap().folder, Path::new("export"));
    assert!(run.record().exported);
    for step in [0, 2, 4, 6, 8] {
        assert_eq!(ask(&mut run, 0, 8), Instruction::Wait);
        assert_eq!(run.status(None, None, vec![], at(2)).activity, Some(Activity::Evaluation));
        run.evaluated(step);
    }
    assert_eq!(ask(&mut run, 0, 8), Instruction::Exit);
}

#[test]
fn an_export_is_not_replaced_before_its_evaluation() {
    let mut run = started(8);
    proceed(&mut run, 0..=8, true);
    // The steps were raised in a suspension.
    (run.record.exported, run.settings.total_steps, run.facts.fixed_step) = (false, 10, 10);
    for step in [0, 2, 4, 6] {
        run.evaluated(step);
    }
    assert_eq!(proceed(&mut run, 9..=10, true), [] as [u32; 0]);
    assert_eq!(ask(&mut run, 0, 10), Instruction::Wait);
    run.evaluated(8);
    let Instruction::Export { path, .. } = ask(&mut run, 0, 10) else { panic!("not exported") };
    assert_eq!(path, Path::new("/run/export"));
}

#[test]
fn learners_that_end_early_do_not_end_the_evaluations() {
    let mut run = started(8);
    proceed(&mut run, 0..=8, true);
    tell(&mut run, "t-0", exited("a", 0, 1), at(3));
    tell(&mut run, "t-1", exited("b", 0, 1), at(3));
    assert_eq!((run.phase(), run.record().trainer.restarts), (Phase::Running, 0));
    for step in [0, 2, 4, 6, 8] {
        run.evaluated(step);
    }
    run.tick(at(4));
    assert_eq!(run.phase(), Phase::Finished);
}

#[test]
fn a_drained_run_keeps_its_evaluations_and_resumes_them() {
    let mut run = started(8);
    proceed(&mut run, 0..=8, true);
    let drain = Desired { mode: Mode::Drain, generation: 2, ..desired() };
    run.set_desired(drain).unwrap();
    assert_eq!((run.evaluation_work(), ask(&mut run, 0, 8)), (Work::None, Instruction::Exit));
    tell(&mut run, "t-0", exited("a", 0, 0), at(3));
    tell(&mut run, "t-1", exited("b", 0, 0), at(3));
    assert_eq!(run.phase(), Phase::Drained);
    run.set_desired(Desired { generation: 3, ..desired() }).unwrap();
    run.tick(at(4));
    assert_eq!(run.evaluation_work(), Work::Evaluate(version(0, 0)));
    run.checkpoints_verified(run.checkpoints().clone());
    tell(&mut run, "t-0", running("a", 1), at(5));
    tell(&mut run, "t-1", running("b", 1), at(5));
    assert_eq!(ask(&mut run, 1, 8), Instruction::Wait);
}

#[test]
fn a_replay_writes_only_weights_that_are_missing() {
    let mut run = started(8);
    assert_eq!(proceed(&mut run, 0..=2, true), [0, 2]);
    assert_eq!(proceed(&mut run, 3..=5, false), [4]);
    restart(&mut run, 0);
    assert!(run.is_evaluation_folder_unused(version(4, 0)), "its writer has ended");
    assert_eq!(proceed(&mut run, 0..=5, true), [4]);
    let steps: Vec<Version> =
        run.record().evaluations.iter().map(|pending| pending.version).collect();
    assert_eq!(steps, [version(0, 0), version(2, 0), version(4, 1)]);
}

#[test]
fn a_successor_of_the_coordinator_repeats_the_first_evaluation_that_is_not_recorded() {
    let mut run = started(8);
    proceed(&mut run, 0..=4, true);
    let facts = Facts { evaluated: [0].into(), fixed_step: 8, ..Facts::default() };
    let json = serde_json::to_value(run.record()).unwrap();
    let record = serde_json::from_value(json).unwrap();
    let mut next = Run::new(evaluating(8), record, facts, 9, at(0));
    assert_eq!(next.evaluation_work(), Work::None, "nothing is desired");
    next.set_desired(desired()).unwrap();
    assert_eq!(next.evaluation_work(), Work::Evaluate(version(2, 0)));
    assert_eq!(next.suites_of_evaluation(version(4, 0)), [0, 1]);
}

#[test]
fn an_evaluation_has_the_loss_that_the_learners_measured_before() {
    let settings = Settings { validation: true, rollouts: false, ..evaluating(8) };
    let mut run = started_with(settings, Facts { fixed_step: 8, ..Facts::default() });
    assert_eq!(ask(&mut run, 0, 0), Instruction::Wait, "the data is not open");
    run.data_opened(None);
    assert_eq!(ask(&mut run, 0, 0), Instruction::Validate { step: 0 });
    let report = ValidationReport {
        attempt: 0,
        loss: 2.5,
        tokens: 10,
        sequences: 2,
        seconds: 0.5,
        accuracy: None,
        margin: None,
        is_divergence: false,
    };
    assert!(!run.validation_done(0, report.clone()).unwrap());
    assert_eq!(proceed(&mut run, 0..=1, true), [0]);
    let Instruction::Checkpoint { version, path } = ask(&mut run, 0, 2) else {
        panic!("no checkpoint")
    };
    run.checkpoint_done(0, version, &path).unwrap();
    assert_eq!(ask(&mut run, 0, 2), Instruction::Validate { step: 2 });
    run.validation_done(2, ValidationReport { loss: 2.0, ..report.clone() }).unwrap();
    assert_eq!(run.validation(0), Some(&report), "a newer one does not replace it");
}

#[test]
fn sampling_ahead_publishes_nothing_for_an_evaluation() {
    let mut settings = evaluating(8);
    settings.admission.max_staleness = 3;
    settings.admission.every_steps = 4;
    settings.admission.total_steps = 8;
    let mut run = started_with(settings, Facts { fixed_step: 8, ..Facts::default() });
    assert_eq!(proceed(&mut run, 0..=8, true), [0, 2, 4, 6]);
    assert_eq!((run.work(), run.record().published.clone()), (Work::None, None));
}
