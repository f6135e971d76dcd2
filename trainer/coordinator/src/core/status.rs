//! Status of the run for the operator.

use rljob_protocol::status::{
    CoordinatorStatus, EngineState, EvaluationMetrics, Phase, StepMetrics, SupervisorState,
};

use super::supervisors::running;
use super::{Now, Run, Stage};

impl Run {
    /// Phase of the run.
    pub fn phase(&self) -> Phase {
        match &self.record.stage {
            Stage::Drained => Phase::Drained,
            Stage::Finished => Phase::Finished,
            Stage::Failed => Phase::Failed,
            _ if self.draining() => Phase::Draining,
            Stage::Forming { restarting: true } | Stage::Stopping { .. } => Phase::Restarting,
            Stage::Running(_) if self.position.is_some() => Phase::Running,
            Stage::Running(layout) if layout.restore.is_some() && self.record.restarts > 0 => {
                Phase::Restarting
            }
            Stage::Forming { .. } | Stage::Running(_) => Phase::Starting,
        }
    }

    /// Complete status.
    pub fn status(
        &self,
        metrics: Option<StepMetrics>,
        evaluation: Option<EvaluationMetrics>,
        engines: Vec<EngineState>,
        now: Now,
    ) -> CoordinatorStatus {
        CoordinatorStatus {
            epoch: self.desired.as_ref().map(|desired| desired.epoch),
            generation: self.desired.as_ref().map(|desired| desired.generation),
            phase: self.phase(),
            attempt: self.record.attempt,
            restarts: self.record.restarts,
            last_failure: self.record.last_failure.clone(),
            step: self.facts.last_step,
            total_steps: self.settings.total_steps,
            metrics,
            evaluation,
            supervisors: self.supervisor_states(now),
            engines,
            checkpoint: self.newest_checkpoint(),
            unsupported: None,
            download: None,
            reward_outage: None,
            journal_failure: None,
            tracker_failure: None,
            memory: None,
            requests: None,
            verifiers: None,
            evaluation_engines: Vec::new(),
            pending_evaluations: None,
            activity: self.position.and(self.activity),
        }
    }

    fn supervisor_states(&self, now: Now) -> Vec<SupervisorState> {
        let current = Some(self.record.attempt);
        let state =
            |(name, alive, report): (&str, bool, &rljob_protocol::supervisor::SupervisorReport)| {
                SupervisorState {
                    name: name.to_owned(),
                    alive,
                    learners: if report.attempt == current { running(report) } else { 0 },
                }
            };
        self.supervisors.all(now).into_iter().map(state).collect()
    }
}
