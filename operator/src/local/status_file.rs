//! `status.json` in a run directory: the newest report of the coordinator, for the dashboard. It is
//! not part of the run's state: it may be missing or outdated.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rljob_protocol::status::{CoordinatorStatus, UNKNOWN_STEPS};
use serde_json::Value;
use tokio::time::Instant;

use super::directory::STATUS_FILE;

/// Steps of the run, null until they are known.
const TOTAL_STEPS: &str = "totalSteps";

/// Shortest time between two writes.
const PERIOD: Duration = Duration::from_secs(1);

/// The newest report; none before the first one. The file is of a `rljob run` of any release.
pub fn read(directory: &Path) -> Option<CoordinatorStatus> {
    let mut file: Value =
        serde_json::from_slice(&fs::read(directory.join(STATUS_FILE)).ok()?).ok()?;
    if let Some(steps) = file.get_mut(TOTAL_STEPS).filter(|steps| steps.is_null()) {
        *steps = UNKNOWN_STEPS.into();
    }
    serde_json::from_value(file).ok()
}

/// Writer of the file.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    written: Option<(Instant, CoordinatorStatus)>,
}

impl StatusFile {
    pub fn new(directory: &Path) -> Self {
        Self { path: directory.join(STATUS_FILE), written: None }
    }

    /// Writes a report that differs from the last one. A failure is only logged.
    pub fn update(&mut self, status: &CoordinatorStatus, now: Instant) {
        let is_due = self.written.as_ref().is_none_or(|(at, written)| {
            now.saturating_duration_since(*at) >= PERIOD && written != status
        });
        if is_due {
            self.write(status, now);
        }
    }

    /// Writes a report, however recent the last one is. A failure is only logged.
    pub fn write(&mut self, status: &CoordinatorStatus, now: Instant) {
        let partial = self.path.with_extension("json.partial");
        let write = || {
            let mut file = serde_json::to_value(status)?;
            if let Some(steps) = file.get_mut(TOTAL_STEPS)
                && status.total_steps == UNKNOWN_STEPS
            {
                *steps = Value::Null;
            }
            fs::write(&partial, serde_json::to_vec(&file)?)?;
            fs::rename(&partial, &self.path)
        };
        if let Err(error) = write() {
            tracing::debug!(%error, path = %self.path.display(), "failed to write the status");
        }
        self.written = Some((now, status.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::report;

    #[test]
    fn changed_reports_are_written_once_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let read = || read(folder.path()).unwrap();
        let (mut file, start) = (StatusFile::new(folder.path()), Instant::now());
        let of = |step| CoordinatorStatus { step, ..report() };
        file.update(&of(1), start);
        assert_eq!(read(), of(1));
        file.update(&of(2), start + PERIOD / 2);
        assert_eq!(read(), of(1));
        file.update(&of(2), start + PERIOD);
        assert_eq!(read(), of(2));
        file.write(&of(3), start + PERIOD);
        assert_eq!(read(), of(3), "the last report of a run");
        let of_epochs = CoordinatorStatus { total_steps: UNKNOWN_STEPS, ..report() };
        file.write(&of_epochs, start + PERIOD);
        let text = fs::read_to_string(folder.path().join(STATUS_FILE)).unwrap();
        assert!(text.contains("\"totalSteps\":null"), "{text}");
        assert_eq!(read(), of_epochs);
    }
}
