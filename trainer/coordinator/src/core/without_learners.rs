//! Runs without learners: the evaluation of a model.
//!
//! ```text
//!  Forming ──desired──▶ Running: engines read the model folder as version step-0, the prompts are
//!     ▲                    │     evaluated (`Work::Evaluate`)
//!     └─resumed─ Drained ◀─┤ suspended
//!                          └─▶ Finished: the evaluation is in the journal
//! ```
//!
//! The model folder takes the place of published weights. The evaluation of a replaced coordinator
//! begins again, as only complete ones are recorded.

use rljob_protocol::status::Activity;
use rljob_protocol::version::Version;

use super::record::{Layout, Published};
use super::{Run, Stage};

impl Run {
    /// Advances a run without learners. Returns false for stages that all runs share.
    pub(super) fn tick_without_learners(&mut self) -> bool {
        match self.record.trainer.stage {
            Stage::Forming { .. } | Stage::Running(_) if self.draining() => {
                self.position = None;
                self.record.trainer.stage = Stage::Drained;
            }
            Stage::Forming { .. } | Stage::Running(_) if self.facts.evaluated.contains(&0) => {
                self.record.trainer.stage = Stage::Finished;
            }
            Stage::Forming { .. } if self.desired.is_some() => {
                self.record.trainer.stage = Stage::Running(Layout {
                    members: Vec::new(),
                    world_size: 0,
                    rendezvous_address: String::new(),
                    rendezvous_port: 0,
                    restore: None,
                });
                self.evaluate_model();
            }
            Stage::Forming { .. } => {}
            Stage::Running(_) => self.evaluate_model(),
            Stage::Stopping { .. } | Stage::Drained | Stage::Finished | Stage::Failed => {
                return false;
            }
        }
        true
    }

    fn evaluate_model(&mut self) {
        self.position = Some(0);
        self.activity = Some(Activity::Evaluation);
        let version = Version { step: 0, attempt: self.record.trainer.attempt };
        let folder = Some(self.settings.model_directory.clone());
        self.record.published = Some(Published { version, folder });
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::desired::Mode;
    use rljob_protocol::status::Phase;

    use super::super::learner_group::GroupSize;
    use super::super::tests::{at, desired, settings};
    use super::super::work::Work;
    use super::super::{Facts, Record, Run, Settings};
    use super::*;

    fn evaluation(record: Record, facts: Facts) -> Run {
        let settings = Settings {
            learners: false,
            rollouts: false,
            total_steps: 0,
            trainer: GroupSize { supervisors: 0, processes: 1 },
            evaluation_every: vec![10],
            accuracy: true,
            model_directory: "/model".into(),
            ..settings()
        };
        Run::new(settings, record, facts, 7, at(0))
    }

    #[test]
    fn a_run_without_learners_evaluates_the_model_and_finishes() {
        let mut run = evaluation(Record::default(), Facts::default());
        run.tick(at(1));
        assert_eq!((run.phase(), run.work()), (Phase::Starting, Work::None), "nothing is desired");
        run.set_desired(desired()).unwrap();
        run.tick(at(2));
        let version = Version { step: 0, attempt: 0 };
        assert_eq!((run.phase(), run.work()), (Phase::Running, Work::Evaluate(version)));
        assert_eq!(run.weights_wanted(), Some((version, std::path::Path::new("/model"))));
        // A replaced coordinator continues.
        let mut next = evaluation(run.record().clone(), Facts::default());
        next.set_desired(desired()).unwrap();
        next.tick(at(0));
        assert_eq!(next.work(), Work::Evaluate(version));
        next.evaluated(0);
        next.tick(at(1));
        assert_eq!((next.phase(), next.work()), (Phase::Finished, Work::None));
        // The evaluation was recorded before the end of the run was.
        let recorded = Facts { evaluated: [0].into(), ..Facts::default() };
        let mut last = evaluation(run.record().clone(), recorded);
        last.tick(at(0));
        assert_eq!(last.phase(), Phase::Finished);
    }

    #[test]
    fn a_suspended_evaluation_is_drained_and_begins_again() {
        let mut run = evaluation(Record::default(), Facts::default());
        run.set_desired(desired()).unwrap();
        run.tick(at(1));
        let drain = rljob_protocol::desired::Desired {
            mode: Mode::Drain,
            generation: desired().generation + 1,
            ..desired()
        };
        run.set_desired(drain.clone()).unwrap();
        run.tick(at(2));
        assert_eq!((run.phase(), run.work()), (Phase::Drained, Work::None));
        let resumed = rljob_protocol::desired::Desired {
            mode: Mode::Run,
            generation: drain.generation + 1,
            ..drain
        };
        run.set_desired(resumed).unwrap();
        run.tick(at(3));
        run.tick(at(3));
        assert_eq!(run.work(), Work::Evaluate(Version { step: 0, attempt: 1 }));
    }
}
