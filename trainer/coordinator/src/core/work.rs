//! What the driver has to do for the learners where they stand.

use rljob_protocol::learner::ValidationReport;
use rljob_protocol::version::Version;

use super::{Run, Stage};

/// The one piece of work that the learners wait for; or, where batches are sampled ahead, that goes
/// on beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing: they train, wait for the operator, or are not there.
    None,
    /// The learners themselves measure the loss of the evaluation data; the next batch waits for it
    /// as for an evaluation.
    Validate,
    /// Evaluate `version`; the next batch waits for it, so that a replay never finds an evaluation
    /// missing.
    Evaluate(Version),
    /// Sample the batch of step `version.step + 1` from engines that hold `version`.
    Rollout(Version),
    /// Make the batch of this step from the data set.
    Prepare {
        /// The step.
        step: u32,
    },
}

impl Work {
    /// The weights that engines must hold for it.
    pub fn version(self) -> Option<Version> {
        match self {
            Self::Evaluate(version) | Self::Rollout(version) => Some(version),
            Self::None | Self::Validate | Self::Prepare { .. } => None,
        }
    }
}

impl Run {
    /// The work wanted now.
    pub fn work(&self) -> Work {
        match self.position {
            Some(steps)
                if matches!(self.record.stage, Stage::Running(_))
                    && self.desired.is_some()
                    && !self.draining() =>
            {
                self.work_at(steps)
            }
            _ => Work::None,
        }
    }

    /// The work wanted of learners that have done `steps`. It starts when they ask, so that a
    /// replayed step asks for nothing.
    pub(super) fn work_at(&self, steps: u32) -> Work {
        if self.settings.ahead() {
            return self.evaluation_ahead().map_or(Work::None, Work::Evaluate);
        }
        let version = Version { step: steps, attempt: self.record.attempt };
        if self.evaluation_due(steps) {
            let validated = self.settings.accuracy && self.validation(steps).is_some();
            if self.settings.validation && !validated {
                Work::Validate
            } else {
                Work::Evaluate(version)
            }
        } else if steps >= self.settings.total_steps || steps < self.facts.fixed_step {
            Work::None
        } else if self.settings.rollouts {
            Work::Rollout(version)
        } else {
            Work::Prepare { step: steps + 1 }
        }
    }

    /// Before the first step, every n steps and after the last, once each. One that could not be
    /// made in time is due until the next.
    pub(super) fn evaluation_due(&self, steps: u32) -> bool {
        let Some(every) = self.settings.evaluation_every else { return false };
        let scheduled =
            if steps == self.settings.total_steps { steps } else { steps - steps % every.max(1) };
        !self.record.exported && self.facts.evaluated.range(scheduled..=steps).next().is_none()
    }

    /// The batch of `step` is in the journal for good.
    pub fn batch_fixed(&mut self, step: u32) {
        self.facts.fixed_step = self.facts.fixed_step.max(step);
    }

    /// Newest step whose batch is fixed, or that the run started from.
    pub fn fixed_step(&self) -> u32 {
        self.facts.fixed_step
    }

    /// The data is open: learners can be given it.
    pub fn data_opened(&mut self) {
        self.data_open = true;
    }

    /// What the learners measured after `step` steps, as far as this process knows.
    pub fn validation(&self, step: u32) -> Option<&ValidationReport> {
        self.validation.as_ref().filter(|(measured, _)| *measured == step).map(|(_, report)| report)
    }

    /// The evaluation at `step` is in the journal.
    pub fn evaluated(&mut self, step: u32) {
        self.facts.evaluated.insert(step);
    }

    /// Whether the batch of `step` is fixed.
    pub fn is_fixed(&self, step: u32) -> bool {
        step >= 1 && step <= self.facts.fixed_step
    }
}
