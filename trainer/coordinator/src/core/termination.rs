//! A trainer pod that is told to end (SIGTERM: a drain of its node, an eviction): the group writes
//! a checkpoint at the end of its step, if that comes in time, and ends. What happens to it
//! meanwhile is not counted, and the next group is formed of others.

use super::record::Layout;
use super::{Run, Stage};

impl Run {
    /// Whether a pod of the group that runs is told to end.
    pub(super) fn terminating_member(&self) -> bool {
        matches!(&self.record.stage, Stage::Running(layout) if !self.record.exported && self.any_terminating(layout))
    }

    /// Whether a pod of this group is told to end.
    pub(super) fn any_terminating(&self, layout: &Layout) -> bool {
        let report = |name: &str| self.supervisors.get(name).filter(|report| report.terminating);
        layout.members.iter().any(|member| {
            report(&member.name).is_some_and(|report| report.instance == member.instance)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ask, at, exited, running, settings, started_with, tell, version};
    use super::super::{Facts, Run};
    use rljob_protocol::learner::Instruction;
    use rljob_protocol::supervisor::{Order, SupervisorReport};

    fn terminating(report: SupervisorReport) -> SupervisorReport {
        SupervisorReport { terminating: true, ..report }
    }

    fn told_to_end() -> Run {
        let mut run = started_with(settings(), Facts { fixed_step: 3, ..Facts::default() });
        tell(&mut run, "t-1", terminating(running("b", 0)), at(2));
        run
    }

    #[test]
    fn the_group_of_a_pod_that_is_told_to_end_writes_a_checkpoint_and_ends_uncounted_and_the_next_one_is_formed_of_others()
     {
        let mut run = told_to_end();
        let path = run.checkpoint_path(version(1, 0));
        assert_eq!(
            ask(&mut run, 0, 1),
            Instruction::Checkpoint { version: version(1, 0), path: path.clone() }
        );
        assert_eq!(ask(&mut run, 0, 1), Instruction::Wait);
        run.checkpoint_done(0, version(1, 0), &path).unwrap();
        assert_eq!(ask(&mut run, 0, 1), Instruction::Exit);
        tell(&mut run, "t-1", terminating(exited("b", 0, 0)), at(3));
        assert_eq!(
            tell(&mut run, "t-0", exited("a", 0, 0), at(3)),
            Order::Stop,
            "the pod that is told to end is not asked again"
        );
        assert_eq!(
            (run.record().attempt, run.record().restarts, run.record().stage.name()),
            (1, 0, "Forming")
        );
        run.checkpoints_verified(run.checkpoints().clone());
        tell(&mut run, "t-1", super::super::tests::report("b2", None, vec![]), at(5));
        assert_eq!(run.record().stage.name(), "Running", "its successor is");
    }

    #[test]
    fn a_group_that_does_not_reach_the_end_of_its_step_is_not_counted_either() {
        let mut run = told_to_end();
        tell(&mut run, "t-0", exited("a", 0, 1), at(3));
        tell(&mut run, "t-1", terminating(exited("b", 0, 137)), at(3));
        assert_eq!(
            (run.record().attempt, run.record().restarts, run.record().last_failure.clone()),
            (1, 0, None)
        );
    }
}
