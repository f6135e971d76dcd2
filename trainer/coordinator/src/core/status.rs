//! Status of the run for the operator.

use rljob_protocol::status::{
    CoordinatorStatus, EngineState, EvaluationMetrics, MAX_CHECKPOINTS, Phase, StepMetrics,
};
use rljob_protocol::version::Version;

use super::{Now, Run, Stage};

impl Run {
    /// Phase of the run.
    pub fn phase(&self) -> Phase {
        match &self.record.trainer.stage {
            Stage::Drained => Phase::Drained,
            Stage::Finished => Phase::Finished,
            Stage::Failed => Phase::Failed,
            _ if self.draining() => Phase::Draining,
            Stage::Forming { restarting: true } | Stage::Stopping { .. } => Phase::Restarting,
            Stage::Running(_) if self.position.is_some() => Phase::Running,
            Stage::Running(layout)
                if layout.restore.is_some() && self.record.trainer.restarts > 0 =>
            {
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
            attempt: self.record.trainer.attempt,
            restarts: self.record.trainer.restarts,
            last_failure: self.record.trainer.last_failure.clone(),
            step: self.facts.last_step,
            total_steps: self.settings.total_steps,
            metrics,
            evaluation,
            supervisors: self.trainer.supervisor_states(&self.record.trainer, now),
            engines,
            checkpoint: self.newest_checkpoint(),
            checkpoints: self.newest_checkpoints(),
            unsupported: None,
            download: None,
            reward_outage: None,
            reward_failure: None,
            journal_failure: None,
            tracker_failure: None,
            memory: None,
            requests: None,
            verifiers: None,
            evaluation_engines: Vec::new(),
            reward_engines: Vec::new(),
            teacher_engines: Vec::new(),
            pending_evaluations: None,
            groups: self.group_states(now),
            activity: self.position.and(self.activity),
        }
    }

    fn newest_checkpoints(&self) -> Vec<Version> {
        let complete = self.checkpoints();
        let older = complete.len().saturating_sub(MAX_CHECKPOINTS);
        complete.iter().skip(older).copied().collect()
    }
}
