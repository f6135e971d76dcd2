//! Wait for a model folder that another process completes: the export of another job, or a
//! download by the coordinator.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rljob_crds::model::ModelSpec;
use rljob_crds::names::EXPORT_COMPLETE_FILE;
use thiserror::Error;

/// Longest wait for another job's export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(600);
/// Checks between two log lines.
const CHECKS_PER_LOG: u32 = 30;

/// The model folder cannot be used.
#[derive(Debug, Error)]
pub enum ModelFolderError {
    /// `spec.model.path` does not exist.
    #[error("the model folder `{}` does not exist", .0.display())]
    NoFolder(PathBuf),
    /// Another job did not export in time.
    #[error("the export `{}` was not complete within {} s: is the job that spec.model.rljob names \
        running?", .0.display(), EXPORT_TIMEOUT.as_secs())]
    NoExport(PathBuf),
}

/// A wait for a model folder. Callers check once per [`ModelFolderWait::INTERVAL`].
pub struct ModelFolderWait<'a> {
    folder: &'a Path,
    model: &'a ModelSpec,
    started: Instant,
    checks: u32,
}

impl<'a> ModelFolderWait<'a> {
    /// Interval between two checks.
    pub const INTERVAL: Duration = Duration::from_secs(1);

    /// Starts the wait.
    pub fn new(folder: &'a Path, model: &'a ModelSpec) -> Self {
        Self { folder, model, started: Instant::now(), checks: 0 }
    }

    /// Whether the folder is complete. A download has no time limit here: the coordinator fails the
    /// run if it cannot complete it.
    ///
    /// # Errors
    /// [`ModelFolderError`].
    pub fn is_complete(&mut self) -> Result<bool, ModelFolderError> {
        let folder = self.folder;
        if self.model.path.is_some() {
            let missing = || ModelFolderError::NoFolder(folder.to_owned());
            return folder.is_dir().then_some(true).ok_or_else(missing);
        }
        if folder.join(EXPORT_COMPLETE_FILE).is_file() {
            return Ok(true);
        }
        if self.model.rljob.is_some() && self.started.elapsed() > EXPORT_TIMEOUT {
            return Err(ModelFolderError::NoExport(folder.to_owned()));
        }
        if self.checks.is_multiple_of(CHECKS_PER_LOG) {
            tracing::info!(folder = %folder.display(), "waiting for the model folder");
        }
        self.checks = self.checks.saturating_add(1);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::{ModelFolderWait, ModelSpec};
    use serde_json::{Value, json};
    use std::path::Path;

    fn model(source: Value) -> ModelSpec {
        serde_json::from_value(source).unwrap()
    }

    #[test]
    fn a_missing_model_folder_fails_at_once() {
        let (folder, model) = (Path::new("/nonexistent"), model(json!({"path": "/nonexistent"})));
        let error = ModelFolderWait::new(folder, &model).is_complete().unwrap_err();
        assert_eq!(error.to_string(), "the model folder `/nonexistent` does not exist");
    }

    #[test]
    fn exports_and_downloads_are_complete_when_their_marker_exists() {
        let folder = tempfile::tempdir().unwrap();
        let sources =
            [json!({"rljob": {"name": "other"}}), json!({"huggingFace": {"repo": "a/b"}})];
        let models = sources.map(model);
        let complete = |model| ModelFolderWait::new(folder.path(), model).is_complete().unwrap();
        assert_eq!(models.each_ref().map(complete), [false, false]);
        std::fs::write(folder.path().join("complete.json"), "{}").unwrap();
        assert_eq!(models.each_ref().map(complete), [true, true]);
    }
}
