//! Learners' reports: steps, checkpoints, published weights.

use std::path::Path;

use rljob_crds::names::EXPORT_DIR;
use rljob_protocol::learner::{Transfer, ValidationReport};
use rljob_protocol::version::Version;

use super::record::Published;
use super::{Publication, Rejection, Route, Run};

/// Purpose of a weights folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// For the engines.
    Published,
    /// The exported model.
    Exported,
    /// For an evaluation on separate engines.
    Evaluated,
    /// An abandoned publication.
    Superseded,
}

impl Run {
    /// Records a completed step. A repeated report has no effect, and reported progress never
    /// decreases during a replay.
    pub fn step_done(&mut self, attempt: u32, step: u32) -> Result<(), Rejection> {
        self.fence(attempt)?;
        if !self.is_fixed(step) {
            return Err(Rejection::Invalid(format!("step {step} was never handed out")));
        }
        if step > self.facts.last_step {
            self.facts.last_step = step;
            self.record.trainer.restarts_without_progress = 0;
        }
        Ok(())
    }

    /// Records a validation loss. Returns whether the evaluation at `step` is complete with it.
    pub fn validation_done(
        &mut self,
        step: u32,
        report: ValidationReport,
    ) -> Result<bool, Rejection> {
        self.fence(report.attempt)?;
        if !self.settings.validation || self.position.is_some_and(|position| position != step) {
            return Err(Rejection::Invalid(format!(
                "no validation after {step} steps was asked for"
            )));
        }
        self.validation = Some((step, report));
        Ok(!self.settings.accuracy)
    }

    /// Records a complete checkpoint.
    pub fn checkpoint_done(
        &mut self,
        attempt: u32,
        version: Version,
        path: &Path,
    ) -> Result<(), Rejection> {
        self.fence(attempt)?;
        if version.attempt != attempt || path != self.checkpoint_path(version) {
            return Err(Rejection::Invalid(format!(
                "checkpoint {version} of attempt {attempt} at {} was not asked for",
                path.display()
            )));
        }
        self.record.trainer.restarts_without_progress = 0;
        self.facts.checkpoints.insert(version);
        Ok(())
    }

    /// Records a complete folder of weights.
    pub fn folder_ready(
        &mut self,
        attempt: u32,
        version: Version,
        path: &Path,
    ) -> Result<Folder, Rejection> {
        self.fence(attempt)?;
        if path == self.settings.run_directory.join(EXPORT_DIR) {
            if version.step != self.settings.total_steps {
                return Err(Rejection::Invalid(format!(
                    "an export of {version}, but the run has {} steps",
                    self.settings.total_steps
                )));
            }
            self.evaluation_written(version, path);
            self.record.exported = true;
            return Ok(Folder::Exported);
        }
        if path == self.export_path(version.step) {
            self.facts.exported_step = self.facts.exported_step.max(version.step);
            return Ok(Folder::Exported);
        }
        if self.evaluation_written(version, path) {
            return Ok(Folder::Evaluated);
        }
        match &self.publication {
            Some(publication)
                if publication.version == version
                    && publication.route == Route::Disk(path.to_owned()) =>
            {
                self.record.published = Some(Published { version, folder: Some(path.to_owned()) });
                Ok(Folder::Published)
            }
            _ => Ok(Folder::Superseded),
        }
    }

    /// Records a sender that is ready to broadcast. Returns its transfers in order.
    pub fn sender_ready(
        &mut self,
        attempt: u32,
        version: Version,
        rank: u32,
    ) -> Result<Vec<Transfer>, Rejection> {
        self.fence(attempt)?;
        match &mut self.publication {
            Some(publication) if publication.version == version => match &mut publication.route {
                Route::Broadcast { transfers, waiting, .. } => {
                    if !waiting.remove(&rank) {
                        return Ok(Vec::new());
                    }
                    self.record.published = Some(Published { version, folder: None });
                    Ok(transfers
                        .iter()
                        .filter(|transfer| transfer.sender == rank)
                        .cloned()
                        .collect())
                }
                Route::Disk(_) => Ok(Vec::new()),
            },
            _ => Err(Rejection::Invalid(format!("no broadcast of {version} was asked for"))),
        }
    }

    /// Records the end of a transfer. The engine's version shows whether it succeeded.
    pub fn transfer_over(&mut self, transfer: &Transfer) {
        let Some(Publication { route: Route::Broadcast { transfers, outstanding, .. }, .. }) =
            &mut self.publication
        else {
            return;
        };
        if transfers.contains(transfer) {
            outstanding.remove(&transfer.engine);
        }
    }
}
