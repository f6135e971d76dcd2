//! Writes exports behind the training loop's back, one at a time, and tells the coordinator of each.

use std::path::{Path, PathBuf};

use rljob_protocol::learner::WeightsReady;
use rljob_protocol::version::Version;

use super::{PublishError, Staged, disk};
use crate::background::Background;
use crate::coordinator_client::CoordinatorClient;

/// Writes exports; every rank has one and knows which was begun last, and rank 0's writes.
#[derive(Debug)]
pub struct Exporter {
    client: CoordinatorClient,
    model_directory: PathBuf,
    background: Background<PublishError>,
    newest: Option<Version>,
}

impl Exporter {
    /// A writer of folders with the configuration and tokenizer of `model_directory`.
    pub fn new(client: CoordinatorClient, model_directory: PathBuf) -> Self {
        Self { client, model_directory, background: Background::new("export"), newest: None }
    }

    /// Whether an export of this version was begun here before.
    pub fn knows(&self, version: Version) -> bool {
        self.newest == Some(version)
    }

    /// Begins to write `staged`, where there is a copy, to `path`, once the export before is written. Returns that one's failure, if it failed.
    pub fn begin(&mut self, version: Version, path: PathBuf, staged: Option<Staged>) -> Result<(), PublishError> {
        self.newest = Some(version);
        let Some(staged) = staged else { return Ok(()) };
        let (client, model_directory) = (self.client.clone(), self.model_directory.clone());
        self.background.begin(move || {
            disk::write_export(&path, &model_directory, &staged, version, || Ok(client.confirm()?))?;
            report(&client, version, &path)
        })
    }

    /// Reports an export that was written before once more, after it is complete. Rank 0 does.
    pub fn repeat_report(&mut self, version: Version, path: &Path) -> Result<(), PublishError> {
        self.wait()?;
        report(&self.client, version, path)
    }

    /// The failure of an export that has ended meanwhile; returns at once.
    pub fn check(&mut self) -> Result<(), PublishError> {
        self.background.check()
    }

    /// Waits for the export in flight.
    pub fn wait(&mut self) -> Result<(), PublishError> {
        self.background.wait()
    }
}

fn report(client: &CoordinatorClient, version: Version, path: &Path) -> Result<(), PublishError> {
    Ok(client.report_weights(&WeightsReady::Disk { attempt: client.attempt(), version, path: path.to_owned() })?)
}
