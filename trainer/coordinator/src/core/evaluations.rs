//! Evaluations on separate engines, beside training (`spec.evaluation`).
//!
//! ```text
//!  learners   train 10 ─ copy 10 ─ train 11 ─ …  ─ train 20 ─ copy 20 ─ …      exit, when the
//!                            └─ write ─▶ folder                 └─▶ folder     queue is empty
//!  queue                                 10                       10, 20
//!  engines                               read 10, sample 10 …               read 20, sample 20
//! ```
//!
//! The queue is part of the record: a successor of the coordinator repeats the first evaluation,
//! and learners that restart write no folder of a step that is in it. Learners never wait for an
//! evaluation, except to exit. A due evaluation that finds the queue full stays due.

use std::path::{Path, PathBuf};

use rljob_crds::names::{EVALUATION_WEIGHTS_DIR, EXPORT_DIR};
use rljob_protocol::learner::Instruction;
use rljob_protocol::version::Version;

use super::Run;
use super::record::PendingEvaluation;
use super::work::Work;

impl Run {
    /// Whether engines of rollouts evaluate, so that their weights and their samples depend on it.
    pub(super) fn evaluates_on_rollout_engines(&self) -> bool {
        self.settings.max_pending.is_none()
    }

    /// Instruction to validate, or to write the weights, of an evaluation that is due after `steps`
    /// steps. Those after the last step are read from the export of the run.
    pub(super) fn order_evaluation(&mut self, steps: u32) -> Option<Instruction> {
        let most = self.settings.max_pending?;
        let is_last = steps == self.settings.total_steps;
        let pending = self.record.evaluations.len().saturating_add(self.ordered.len());
        if !self.evaluation_due(steps) || !is_last && pending >= most as usize {
            return None;
        }
        if self.settings.validation && self.validation(steps).is_none() {
            return Some(if self.data_open {
                Instruction::Validate { step: steps }
            } else {
                Instruction::Wait
            });
        }
        if is_last {
            return None;
        }
        let version = Version { step: steps, attempt: self.record.trainer.attempt };
        let folder = Path::new(EVALUATION_WEIGHTS_DIR).join(version.to_string());
        let path = self.settings.run_directory.join(&folder);
        let pending = self.pending(version, folder);
        self.ordered.push(pending);
        Some(Instruction::Export { version, path })
    }

    fn pending(&self, version: Version, folder: PathBuf) -> PendingEvaluation {
        let suites = self.suites_due(version.step);
        let validation = self.validation(version.step).cloned();
        PendingEvaluation { version, folder, suites, validation }
    }

    /// Adds the evaluation of a complete folder to the queue. Returns whether it is one that was
    /// ordered. Call it with the export of the run before that is recorded.
    pub(super) fn evaluation_written(&mut self, version: Version, folder: &Path) -> bool {
        let Ok(folder) = folder.strip_prefix(&self.settings.run_directory) else { return false };
        if folder == Path::new(EXPORT_DIR) {
            let is_due = self.settings.max_pending.is_some() && self.evaluation_due(version.step);
            if is_due {
                let pending = self.pending(version, folder.to_owned());
                self.record.evaluations.push(pending);
            }
            return is_due;
        }
        let is_ordered =
            |order: &PendingEvaluation| order.version == version && order.folder == folder;
        let Some(index) = self.ordered.iter().position(is_ordered) else { return false };
        let ordered = self.ordered.remove(index);
        self.record.evaluations.push(ordered);
        true
    }

    /// Evaluation in progress on separate engines.
    pub fn evaluation_work(&self) -> Work {
        let runs = self.desired.is_some() && !self.draining() && !self.is_over();
        let first = self.record.evaluations.first().filter(|_| runs);
        first.map_or(Work::None, |first| Work::Evaluate(first.version))
    }

    /// Version of the evaluation in progress, and number of those that wait or run.
    pub fn evaluation_progress(&self) -> (Option<Version>, u32) {
        let pending = u32::try_from(self.record.evaluations.len()).unwrap_or(u32::MAX);
        (self.evaluation_work().version(), pending)
    }

    /// Weights of the evaluation in progress, with their folder.
    pub fn evaluation_weights_wanted(&self) -> Option<(Version, PathBuf)> {
        let version = self.evaluation_work().version()?;
        let first = self.record.evaluations.first()?;
        Some((version, self.settings.run_directory.join(&first.folder)))
    }

    /// Suites of the evaluation of a version, as when its weights were written.
    pub fn suites_of_evaluation(&self, version: Version) -> Vec<usize> {
        let pending = self.record.evaluations.iter().find(|pending| pending.version == version);
        pending.map_or_else(|| self.suites_due(version.step), |pending| pending.suites.clone())
    }

    /// Whether a folder of evaluated weights may be removed: its evaluation is recorded, or an
    /// earlier attempt wrote it and no evaluation waits for it.
    pub fn is_evaluation_folder_unused(&self, version: Version) -> bool {
        let is_needed =
            self.record.evaluations.iter().chain(&self.ordered).any(|own| own.version == version);
        let is_done = self.facts.evaluated.contains(&version.step);
        !is_needed && (is_done || version.attempt < self.record.trainer.attempt)
    }

    /// Whether the export of an earlier last step waits for its evaluation: the steps of the run
    /// were raised.
    pub(super) fn evaluates_export(&self) -> bool {
        self.record.evaluations.iter().any(|pending| pending.folder == Path::new(EXPORT_DIR))
    }

    /// Steps whose evaluation waits, or is being prepared.
    pub(super) fn pending_steps(&self) -> impl Iterator<Item = u32> {
        self.record.evaluations.iter().chain(&self.ordered).map(|pending| pending.version.step)
    }
}

#[cfg(test)]
mod tests;
