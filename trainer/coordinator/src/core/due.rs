//! Work that is due at the current step of a run: evaluation, validation or the next batch.

use rljob_protocol::learner::ValidationReport;
use rljob_protocol::version::Version;

use super::record::StepsOfEpochs;
use super::work::Work;
use super::{Run, Stage};

impl Run {
    /// Work that is due.
    pub fn work(&self) -> Work {
        match self.position {
            Some(steps)
                if matches!(self.record.trainer.stage, Stage::Running(_))
                    && self.desired.is_some()
                    && !self.draining() =>
            {
                self.work_at(steps)
            }
            _ => Work::None,
        }
    }

    /// Work that is due for learners that have completed `steps` steps. It starts with their
    /// request, so a replayed step needs none.
    pub(super) fn work_at(&self, steps: u32) -> Work {
        if self.settings.ahead() {
            return self.evaluation_ahead().map_or(Work::None, Work::Evaluate);
        }
        let version = Version { step: steps, attempt: self.record.trainer.attempt };
        if self.evaluation_awaited(steps) {
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
            Work::Prepare { step: steps.saturating_add(1) }
        }
    }

    /// Whether an evaluation is due that engines of rollouts sample.
    pub(super) fn evaluation_awaited(&self, steps: u32) -> bool {
        self.evaluates_on_rollout_engines() && self.evaluation_due(steps)
    }

    /// Whether the evaluation of a suite is due.
    pub(super) fn evaluation_due(&self, steps: u32) -> bool {
        !self.suites_due(steps).is_empty()
    }

    /// Suites whose evaluation is due: before the first step, every n steps of the suite and after
    /// the last step, once each. A late evaluation stays due until the next one. An evaluation has
    /// all suites that are due, so one since a suite's last scheduled step has that suite.
    pub fn suites_due(&self, steps: u32) -> Vec<usize> {
        let is_last = steps == self.settings.total_steps;
        let is_due = |every: &u32| {
            let since = if is_last { None } else { steps.checked_rem(*every) };
            let scheduled = steps.saturating_sub(since.unwrap_or_default());
            self.facts.evaluated.range(scheduled..=steps).next().is_none()
                && !self.pending_steps().any(|step| (scheduled..=steps).contains(&step))
        };
        let suites = self.settings.evaluation_every.iter().enumerate();
        let due = suites.filter(|(_, every)| !self.record.exported && is_due(every));
        due.map(|(suite, _)| suite).collect()
    }

    /// The batch of `step` is in the journal.
    pub fn batch_fixed(&mut self, step: u32) {
        self.facts.fixed_step = self.facts.fixed_step.max(step);
    }

    /// Newest step whose batch is fixed, or initial step of the run.
    pub fn fixed_step(&self) -> u32 {
        self.facts.fixed_step
    }

    /// The data is open and can be served to learners. In a run with epochs, it has these steps.
    pub fn data_opened(&mut self, steps: Option<StepsOfEpochs>) {
        self.data_open = true;
        if let Some(derived) = steps {
            self.settings.set_steps(derived.steps);
            self.record.steps = Some(derived);
        }
    }

    /// Validation loss that the learners reported to this process after `step` steps, or that an
    /// evaluation in the queue has.
    pub fn validation(&self, step: u32) -> Option<&ValidationReport> {
        let mut pending = self.record.evaluations.iter();
        let pending = pending.find(|pending| pending.version.step == step);
        let newest = self.validation.as_ref().filter(|(measured, _)| *measured == step);
        pending.and_then(|pending| pending.validation.as_ref()).or(newest.map(|(_, report)| report))
    }

    /// Whether the evaluation of `version` runs while the learners train on, so that newer weights
    /// may be published meanwhile. The last one of a run does not, nor one on separate engines.
    pub fn evaluates_beside(&self, version: Version) -> bool {
        self.settings.ahead()
            && self.evaluates_on_rollout_engines()
            && version.step < self.settings.total_steps
    }

    /// The evaluation at `step` is in the journal.
    pub fn evaluated(&mut self, step: u32) {
        self.facts.evaluated.insert(step);
        self.record.evaluations.retain(|pending| pending.version.step != step);
        self.evaluating = self.evaluating.filter(|version| version.step != step);
    }

    /// Whether the batch of `step` is fixed.
    pub fn is_fixed(&self, step: u32) -> bool {
        step >= 1 && step <= self.facts.fixed_step
    }
}
