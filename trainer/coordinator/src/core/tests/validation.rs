//! When learners measure the loss of the evaluation data.

use rljob_protocol::learner::{Instruction, ValidationReport};

use super::{ask, at, settings, started_with, version};
use crate::core::work::Work;
use crate::core::{Facts, Rejection, Run, Settings};

const REPORT: ValidationReport = ValidationReport {
    attempt: 0,
    loss: 2.5,
    tokens: 40,
    sequences: 10,
    seconds: 1.0,
    accuracy: None,
    margin: None,
    is_divergence: false,
};

fn supervised(accuracy: bool, facts: Facts) -> Run {
    started_with(
        Settings {
            rollouts: false,
            evaluation_every: vec![2],
            accuracy,
            validation: true,
            ..settings()
        },
        facts,
    )
}

#[test]
fn validation_comes_before_the_first_batch_and_every_n_steps_and_waits_for_the_data() {
    let mut run = supervised(false, Facts::default());
    assert_eq!((ask(&mut run, 0, 0), run.work()), (Instruction::Wait, Work::Validate));
    run.data_opened(None);
    assert_eq!(ask(&mut run, 0, 0), Instruction::Validate { step: 0 });
    assert_eq!(
        run.validation_done(1, REPORT),
        Err(Rejection::Invalid("no validation after 1 steps was asked for".to_owned()))
    );
    assert_eq!(
        run.validation_done(0, ValidationReport { attempt: 1, ..REPORT }),
        Err(Rejection::Fenced { what: "attempt", sent: 1, current: 0 })
    );
    assert_eq!(run.validation_done(0, REPORT), Ok(true), "there is nothing else to the evaluation");
    assert_eq!(
        ask(&mut run, 0, 0),
        Instruction::Validate { step: 0 },
        "it is not in the journal yet"
    );
    run.evaluated(0);
    assert_eq!((ask(&mut run, 0, 0), run.work()), (Instruction::Wait, Work::Prepare { step: 1 }));
    run.batch_fixed(2);
    assert_eq!(ask(&mut run, 0, 1), Instruction::train(2));
    let at_two = loop {
        match ask(&mut run, 0, 2) {
            Instruction::Checkpoint { .. } => {}
            other => break other,
        }
    };
    assert_eq!(at_two, Instruction::Validate { step: 2 });
}

#[test]
fn what_was_measured_while_the_coordinator_was_away_is_taken() {
    let mut run = supervised(false, Facts::default());
    run.data_opened(None);
    assert_eq!(ask(&mut run, 0, 0), Instruction::Validate { step: 0 });
    let mut next = Run::new(
        Settings { rollouts: false, accuracy: false, validation: true, ..settings() },
        run.record().clone(),
        Facts::default(),
        8,
        at(0),
    );
    assert_eq!(next.validation_done(0, REPORT), Ok(true));
}

#[test]
fn a_replay_does_not_validate_again() {
    let mut run = supervised(
        false,
        Facts { last_step: 3, fixed_step: 3, evaluated: [0, 2].into(), ..Facts::default() },
    );
    run.data_opened(None);
    assert_eq!(ask(&mut run, 0, 0), Instruction::train(1));
    ask(&mut run, 0, 2);
    assert_eq!(ask(&mut run, 0, 2), Instruction::train(3));
}

#[test]
fn accuracy_is_measured_after_the_loss_of_the_same_weights() {
    let mut run = supervised(true, Facts::default());
    run.data_opened(None);
    assert_eq!(ask(&mut run, 0, 0), Instruction::Validate { step: 0 });
    assert_eq!(run.validation_done(0, REPORT), Ok(false));
    assert_eq!(run.validation(0), Some(&REPORT));
    assert!(matches!(ask(&mut run, 0, 0), Instruction::PublishToDisk { .. }));
    assert_eq!(run.work(), Work::Evaluate(version(0, 0)));
}
