//! Activity of the learners: what the newest instruction makes them do or wait for.

use rljob_protocol::learner::Instruction;
use rljob_protocol::status::Activity;

use super::Run;
use super::instruct::EngineView;
use super::work::Work;

impl Run {
    /// The activity that an instruction causes.
    pub(super) fn activity_of(
        &self,
        instruction: &Instruction,
        engines: &[EngineView],
    ) -> Activity {
        match instruction {
            Instruction::Train { .. } => Activity::Training,
            Instruction::Validate { .. } => Activity::Validation,
            Instruction::PublishToDisk { .. } | Instruction::PublishByBroadcast { .. } => {
                Activity::WeightSync
            }
            Instruction::Checkpoint { .. } => Activity::Checkpoint,
            Instruction::Export { .. } => Activity::Export,
            Instruction::Exit => Activity::Exit,
            Instruction::Wait => self.awaited(engines),
        }
    }

    /// What waiting learners wait for. Samples are awaited once one engine holds the weights.
    fn awaited(&self, engines: &[EngineView]) -> Activity {
        if self.position.is_some_and(|steps| self.awaits_groups(steps.saturating_add(1))) {
            return Activity::Groups;
        }
        let holds = |version| engines.iter().any(|engine| engine.version == Some(version));
        match self.work() {
            Work::Evaluate(_) if self.settings.ahead() && self.sampling_limit() > 0 => {
                Activity::Rollouts
            }
            Work::Evaluate(version) | Work::Rollout(version) if !holds(version) => {
                Activity::WeightSync
            }
            Work::Evaluate(_) => Activity::Evaluation,
            Work::Rollout(_) | Work::RolloutAhead => Activity::Rollouts,
            Work::Validate | Work::Prepare { .. } => Activity::Data,
            Work::None if self.sampling_limit() > 0 => Activity::Rollouts,
            Work::None if self.record.exported && !self.record.evaluations.is_empty() => {
                Activity::Evaluation
            }
            Work::None => Activity::Checkpoint,
        }
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::learner::Instruction;
    use rljob_protocol::status::Activity;

    use super::super::tests::{ask, at, engine, started};
    use super::super::{Facts, Run, Settings, tests};

    fn activity(run: &Run) -> Option<Activity> {
        run.status(None, None, vec![], at(0)).activity
    }

    #[test]
    fn the_status_says_what_the_learners_do_or_wait_for() {
        let mut run = started();
        assert_eq!(activity(&run), None, "before they ask");
        let Instruction::PublishToDisk { version, path } = ask(&mut run, 0, 0) else {
            panic!("not published")
        };
        assert_eq!(activity(&run), Some(Activity::WeightSync));
        run.folder_ready(0, version, &path).unwrap();
        assert_eq!(ask(&mut run, 0, 0), Instruction::Wait);
        assert_eq!(activity(&run), Some(Activity::WeightSync), "no engine holds the weights");
        run.instruct(0, 0, &[engine(Some(version))], at(2)).unwrap();
        assert_eq!(activity(&run), Some(Activity::Rollouts));
        run.batch_fixed(1);
        assert_eq!(ask(&mut run, 0, 0), Instruction::train(1));
        assert_eq!(activity(&run), Some(Activity::Training));
    }

    #[test]
    fn learners_of_supervised_training_wait_for_data() {
        let settings = Settings { rollouts: false, ..tests::settings() };
        let mut run = tests::started_with(settings, Facts::default());
        assert_eq!(ask(&mut run, 0, 0), Instruction::Wait);
        assert_eq!(activity(&run), Some(Activity::Data));
    }
}
