//! Weights for engines as folders, written in the background, at most one at a time, and reported
//! to the coordinator.

use std::path::PathBuf;

use rljob_protocol::learner::WeightsReady;
use rljob_protocol::version::Version;

use super::{PublishError, Staged, disk};
use crate::background::Background;
use crate::coordinator_client::CoordinatorClient;

/// Writes weights for engines. Every rank tracks the newest version; only rank 0 writes.
#[derive(Debug)]
pub struct WeightsWriter {
    client: CoordinatorClient,
    model_directory: PathBuf,
    background: Background<PublishError>,
    /// Version and path of the newest folder.
    newest: Option<(Version, PathBuf)>,
}

impl WeightsWriter {
    /// Creates a writer of folders with the configuration of `model_directory`.
    pub fn new(client: CoordinatorClient, model_directory: PathBuf) -> Self {
        let background = Background::new("weights");
        Self { client, model_directory, background, newest: None }
    }

    /// Whether the newest folder has this version. Its path may differ: the coordinator asks again,
    /// with another path, for a publication that takes long.
    pub fn is_newest(&self, version: Version) -> bool {
        self.newest.as_ref().is_some_and(|(own, _)| *own == version)
    }

    /// Waits for the previous folder, then writes `staged` (if this rank has a copy) to `path` in
    /// the background.
    ///
    /// # Errors
    /// The previous folder failed, or the thread cannot be started.
    pub fn begin(
        &mut self,
        version: Version,
        path: PathBuf,
        staged: Option<Staged>,
    ) -> Result<(), PublishError> {
        self.newest = Some((version, path.clone()));
        let Some(staged) = staged else { return Ok(()) };
        let (client, model_directory) = (self.client.clone(), self.model_directory.clone());
        self.background.begin(move || {
            disk::write_weights(&path, &model_directory, &staged)?;
            report(&client, version, path)
        })
    }

    /// Reports the newest folder at the path that the coordinator asks for now, once it is complete
    /// there. For rank 0.
    ///
    /// # Errors
    /// Writing, renaming or reporting failed.
    pub fn repeat_report(&mut self, version: Version, path: PathBuf) -> Result<(), PublishError> {
        self.wait()?;
        if let Some((_, written)) = self.newest.as_ref().filter(|(_, written)| *written != path) {
            std::fs::rename(written, &path).map_err(PublishError::io("rename to", &path))?;
        }
        self.newest = Some((version, path.clone()));
        report(&self.client, version, path)
    }

    /// Checks the folder in flight without blocking.
    ///
    /// # Errors
    /// The folder in flight has failed.
    pub fn check(&mut self) -> Result<(), PublishError> {
        self.background.check()
    }

    /// Waits for the folder in flight.
    ///
    /// # Errors
    /// The folder failed.
    pub fn wait(&mut self) -> Result<(), PublishError> {
        self.background.wait()
    }
}

fn report(client: &CoordinatorClient, version: Version, path: PathBuf) -> Result<(), PublishError> {
    let attempt = client.attempt();
    Ok(client.report_weights(&WeightsReady::Disk { attempt, version, path })?)
}
