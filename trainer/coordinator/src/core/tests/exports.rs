//! Export schedule during training.

use std::path::PathBuf;

use rljob_protocol::desired::{CheckpointPolicy, Desired};
use rljob_protocol::learner::Instruction;

use super::{ask, desired, restart, settings, started_with, version};
use crate::core::reports::Folder;
use crate::core::{Facts, Run, Settings};

/// Asked at each of `steps`: those at which an export was ordered. Every other order is done at
/// once, and so are exports if `written`.
fn exports_ordered(run: &mut Run, steps: std::ops::RangeInclusive<u32>, written: bool) -> Vec<u32> {
    let mut exports = Vec::new();
    for step in steps {
        loop {
            match ask(run, run.record().trainer.attempt, step) {
                Instruction::Checkpoint { version, path } => {
                    run.checkpoint_done(version.attempt, version, &path).unwrap();
                }
                Instruction::Export { version, path } => {
                    assert_eq!(path, PathBuf::from(format!("/run/exports/step-{step}")));
                    exports.push(version.step);
                    if written {
                        assert_eq!(
                            run.folder_ready(version.attempt, version, &path),
                            Ok(Folder::Exported)
                        );
                    }
                }
                Instruction::Train { .. } => break,
                other => panic!("{other:?} after {step} steps"),
            }
        }
    }
    exports
}

#[test]
fn an_export_is_due_every_n_steps_before_the_last_and_a_replay_makes_only_those_that_are_missing() {
    let exporting = |every| Desired {
        checkpoint: CheckpointPolicy { every_steps: 100, keep_last: 2, export_every_steps: every },
        ..desired()
    };
    let long = || Settings { total_steps: 8, ..settings() };
    let facts = Facts { fixed_step: 8, ..Facts::default() };
    let mut run = started_with(long(), facts.clone());
    assert_eq!(exports_ordered(&mut run, 0..=2, true), [] as [u32; 0], "none are configured");
    run.set_desired(exporting(Some(3))).unwrap();
    assert_eq!(exports_ordered(&mut run, 3..=5, true), [3]);
    assert_eq!(exports_ordered(&mut run, 6..=7, false), [6], "training does not wait for it");
    restart(&mut run, 0);
    assert_eq!(exports_ordered(&mut run, 0..=7, true), [6], "the first is there");
    let mut next = started_with(
        Settings { total_steps: 6, ..long() },
        Facts { exported_step: 3, fixed_step: 6, ..facts },
    );
    next.set_desired(exporting(Some(3))).unwrap();
    assert_eq!(exports_ordered(&mut next, 0..=5, true), [] as [u32; 0]);
    ask(&mut next, 0, 6);
    let last = Instruction::Export { version: version(6, 0), path: PathBuf::from("/run/export") };
    assert_eq!(ask(&mut next, 0, 6), last, "the last step's is the run's");
}
