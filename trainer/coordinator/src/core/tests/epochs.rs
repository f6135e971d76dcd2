//! Runs with `training.epochs`: the number of steps depends on the data.

use std::path::PathBuf;

use rljob_protocol::learner::Instruction;
use rljob_protocol::status::UNKNOWN_STEPS;

use super::{ask, settings, started_with, version};
use crate::core::record::StepsOfEpochs;
use crate::core::work::Work;
use crate::core::{Facts, Record, Run, Settings};

const TWO_STEPS: StepsOfEpochs = StepsOfEpochs { epochs: 3, steps: 2 };

fn of_epochs(epochs: u32) -> Settings {
    let mut settings = Settings { epochs: Some(epochs), rollouts: false, ..settings() };
    settings.set_steps(UNKNOWN_STEPS);
    settings
}

fn total_steps(run: &Run) -> u32 {
    run.status(None, None, Vec::new(), super::at(2)).total_steps
}

#[test]
fn learners_wait_for_the_data_and_train_the_steps_that_it_has() {
    let mut run = started_with(of_epochs(3), Facts { fixed_step: 1, ..Facts::default() });
    assert_eq!(ask(&mut run, 0, 0), Instruction::Wait, "although the first batch is fixed");
    assert_eq!(total_steps(&run), UNKNOWN_STEPS);
    run.data_opened(Some(TWO_STEPS));
    assert_eq!((total_steps(&run), run.record().steps), (2, Some(TWO_STEPS)));
    let train = |step| Instruction::Train { step, total_steps: Some(2) };
    assert_eq!(ask(&mut run, 0, 0), train(1));
    assert_eq!(ask(&mut run, 0, 1), Instruction::Wait);
    assert_eq!(run.work(), Work::Prepare { step: 2 });
    run.batch_fixed(2);
    assert_eq!(ask(&mut run, 0, 1), train(2));
    let path = PathBuf::from("/run/checkpoints/step-2.attempt-0");
    let checkpoint = Instruction::Checkpoint { version: version(2, 0), path };
    assert_eq!(ask(&mut run, 0, 2), checkpoint);
    let export = Instruction::Export { version: version(2, 0), path: PathBuf::from("/run/export") };
    assert_eq!(ask(&mut run, 0, 2), export, "the last step");
}

#[test]
fn the_next_process_knows_the_steps_of_the_same_epochs_only() {
    let record = Record { steps: Some(TWO_STEPS), ..Record::default() };
    let steps = |settings: Settings| {
        let settings = settings.with_recorded_steps(&record);
        (settings.total_steps, settings.admission.total_steps)
    };
    assert_eq!(steps(of_epochs(3)), (2, 2));
    assert_eq!(steps(of_epochs(4)), (UNKNOWN_STEPS, UNKNOWN_STEPS));
    assert_eq!(steps(settings()), (4, 4), "training.steps");
    assert_eq!(record.rolled_back().steps, record.steps);
}
