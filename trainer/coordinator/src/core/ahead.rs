//! Sampling ahead of training (`rollout.maxStaleness` above 0): instructions, published weights and
//! the rollouts admitted meanwhile.
//!
//! ```text
//!  learners   train 1 ─ publish 1 ─ train 2 ─ publish 2 ─ …   wait for the next batch
//!  engines    weights 0   >   weights 1   >   weights 2 …     pause; samples keep their tokens
//!  evaluation └─ of 0, then of the newest that is due          continues across publications
//!  rollouts   batches 1 … 1 + maxStaleness, then one more for each completed step
//! ```

use rljob_crds::job::WeightSyncMethod;
use rljob_protocol::learner::Instruction;
use rljob_protocol::version::Version;

use super::instruct::EngineView;
use super::work::Work;
use super::{Now, Run};

impl Run {
    /// Rollouts that are due. With sampling ahead, they continue while the learners restart.
    pub fn sampling_work(&self) -> Work {
        match self.work() {
            work @ Work::Rollout(_) => work,
            _ if self.settings.ahead() && self.sampling_limit() > 0 => Work::RolloutAhead,
            _ => Work::None,
        }
    }

    /// Last step whose batch may be sampled ahead of training; 0 for none.
    pub fn sampling_limit(&self) -> u32 {
        let through = self.settings.admission.through(self.facts.last_step);
        let due = self.desired.is_some()
            && !self.draining()
            && !self.is_over()
            && self.facts.fixed_step < through;
        if due { through } else { 0 }
    }

    /// Weights that every engine should hold, if they are available without the learners.
    pub fn weights_wanted(&self) -> Option<(Version, &std::path::Path)> {
        let version = match &self.record.published {
            Some(published) if self.settings.ahead() => {
                (self.desired.is_some() && !self.draining() && !self.is_over())
                    .then_some(published.version)
            }
            _ => self.work().version(),
        };
        version.and_then(|version| Some((version, self.folder_of(version)?)))
    }

    /// Evaluation in progress, or due for the last published weights. It continues while newer
    /// weights are published; after a restart of the learners it begins again when it is due.
    pub(super) fn evaluation_ahead(&self) -> Option<Version> {
        let current = |version: &Version| version.attempt == self.record.trainer.attempt;
        if let Some(version) = self.evaluating.filter(current) {
            return Some(version);
        }
        let version = self.record.published.as_ref()?.version;
        (current(&version) && self.evaluation_awaited(version.step)).then_some(version)
    }

    pub(super) fn instruct_ahead(
        &mut self,
        steps: u32,
        world: u32,
        engines: &[EngineView],
        now: Now,
    ) -> Instruction {
        // Before weights can be published, so that the evaluation keeps its version.
        self.evaluating = self.evaluation_ahead();
        if let Some(instruction) = self.publish_ahead(steps, world, engines, now) {
            return instruction;
        }
        if steps == self.settings.total_steps {
            return if self.evaluating.is_some() || self.evaluation_awaited(steps) {
                Instruction::Wait
            } else {
                self.finish(steps, now)
            };
        }
        if self.is_ready(steps.saturating_add(1)) {
            self.train(steps.saturating_add(1))
        } else {
            Instruction::Wait
        }
    }

    /// Instruction to publish, or to wait, if engines lack weights that they should hold after
    /// `steps` steps. A replay publishes nothing.
    fn publish_ahead(
        &mut self,
        steps: u32,
        world: u32,
        engines: &[EngineView],
        now: Now,
    ) -> Option<Instruction> {
        let evaluate = self.evaluation_awaited(steps) && self.evaluating.is_none();
        let needed = evaluate
            || (self.evaluation_awaited(steps) && steps == self.settings.total_steps)
            || self.facts.fixed_step < self.settings.total_steps;
        if steps < self.facts.last_step || !needed || !self.lacking(steps, evaluate, engines) {
            return None;
        }
        let version = Version { step: steps, attempt: self.record.trainer.attempt };
        let instruction = self.publish(version, world, engines, now);
        // Learners write folders in the background. An evaluation needs the weights of this step.
        let is_written_behind = instruction == Instruction::Wait
            && self.settings.method == WeightSyncMethod::Disk
            && !self.evaluation_awaited(steps)
            && steps < self.settings.total_steps;
        (!is_written_behind).then_some(instruction)
    }

    /// Whether engines lack the newest weights that are due: those of the last multiple of
    /// `everySteps`, or of `steps` at the end of the run and before an evaluation.
    fn lacking(&self, steps: u32, evaluate: bool, engines: &[EngineView]) -> bool {
        let exactly = evaluate || steps == self.settings.total_steps;
        let due = if exactly {
            steps
        } else {
            steps.saturating_sub(
                steps.checked_rem(self.settings.admission.every_steps).unwrap_or_default(),
            )
        };
        let current = |version: Version| {
            version.attempt == self.record.trainer.attempt && version.step >= due
        };
        match self.settings.method {
            WeightSyncMethod::Disk => {
                !self.record.published.as_ref().is_some_and(|published| {
                    published.folder.is_some() && current(published.version)
                })
            }
            WeightSyncMethod::Distributed => {
                engines.iter().any(|engine| engine.usable && !engine.version.is_some_and(current))
            }
        }
    }
}

#[cfg(test)]
mod tests;
