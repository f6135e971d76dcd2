//! Termination of trainer pods (SIGTERM by a node drain or an eviction): the group writes a
//! checkpoint after its step, if time permits, and exits. Failures meanwhile are not counted as
//! restarts, and the next group excludes terminating pods.

use super::learner_group::LearnerGroup;
use super::record::Layout;
use super::{Run, Stage};

impl Run {
    /// Whether the running trainer has a terminating pod.
    pub(super) fn terminating_member(&self) -> bool {
        matches!(
            &self.record.trainer.stage,
            Stage::Running(layout) if !self.record.exported && self.trainer.any_terminating(layout),
        )
    }
}

impl LearnerGroup {
    /// Whether this group has a terminating pod.
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

    fn terminating_run() -> Run {
        let mut run = started_with(settings(), Facts { fixed_step: 3, ..Facts::default() });
        tell(&mut run, "t-1", terminating(running("b", 0)), at(2));
        run
    }

    #[test]
    fn a_group_with_a_terminating_pod_writes_a_checkpoint_and_its_exit_is_not_counted() {
        let mut run = terminating_run();
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
            "the terminating pod is excluded"
        );
        assert_eq!(
            (
                run.record().trainer.attempt,
                run.record().trainer.restarts,
                run.record().trainer.stage.name()
            ),
            (1, 0, "Forming")
        );
        run.checkpoints_verified(run.checkpoints().clone());
        tell(&mut run, "t-1", super::super::tests::report("b2", None, vec![]), at(5));
        assert_eq!(run.record().trainer.stage.name(), "Running", "its successor is");
    }

    #[test]
    fn an_unfinished_step_of_a_terminating_group_is_not_counted() {
        let mut run = terminating_run();
        tell(&mut run, "t-0", exited("a", 0, 1), at(3));
        tell(&mut run, "t-1", terminating(exited("b", 0, 137)), at(3));
        assert_eq!(
            (
                run.record().trainer.attempt,
                run.record().trainer.restarts,
                run.record().trainer.last_failure.clone()
            ),
            (1, 0, None)
        );
    }
}
