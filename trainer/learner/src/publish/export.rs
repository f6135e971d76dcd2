//! Exports: written in the background, at most one at a time, and reported to the coordinator.

use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::RunConfig;
use rljob_crds::names::{EXPORT_ADAPTER_DIR, EXPORT_COMPLETE_FILE};
use rljob_protocol::learner::WeightsReady;
use rljob_protocol::version::Version;
use rljob_storage::{Bucket, RunStore, StorageError};

use super::{PublishError, Staged, disk};
use crate::background::Background;
use crate::coordinator_client::CoordinatorClient;

/// Destination of exports: the run directory, or a bucket with the run directory as staging area.
#[derive(Clone, Debug)]
pub struct Target {
    /// Prefix of the coordinator's paths.
    run_store: PathBuf,
    run_directory: PathBuf,
    bucket: Option<Bucket>,
}

impl Target {
    /// The destination of a run.
    pub fn of(config: &RunConfig, run_store: &RunStore) -> Self {
        let bucket =
            if let RunStore::Bucket(bucket) = run_store { Some(bucket.clone()) } else { None };
        Self { run_store: config.run_store(), run_directory: config.run_directory.clone(), bucket }
    }

    /// Local folder for a path that the coordinator sent.
    fn folder(&self, path: &Path) -> Result<PathBuf, StorageError> {
        let outside = |_| StorageError::Outside {
            path: path.display().to_string(),
            run_store: self.run_store.display().to_string(),
        };
        Ok(self.run_directory.join(path.strip_prefix(&self.run_store).map_err(outside)?))
    }

    /// Moves a local folder to the bucket, if the run has one: removes an earlier export, and
    /// uploads the marker last.
    fn upload(&self, folder: &Path) -> Result<(), PublishError> {
        let (Some(bucket), Ok(name)) = (&self.bucket, folder.strip_prefix(&self.run_directory))
        else {
            return Ok(());
        };
        let name = name.display();
        bucket.remove_folder(&name.to_string(), EXPORT_COMPLETE_FILE)?;
        for inside in ["", EXPORT_ADAPTER_DIR] {
            for file in files(&folder.join(inside))? {
                let Ok(relative) = file.strip_prefix(folder) else { continue };
                if relative != Path::new(EXPORT_COMPLETE_FILE) {
                    bucket.upload(&file, &format!("{name}/{}", relative.display()))?;
                }
            }
        }
        bucket.upload(
            &folder.join(EXPORT_COMPLETE_FILE),
            &format!("{name}/{EXPORT_COMPLETE_FILE}"),
        )?;
        fs::remove_dir_all(folder).map_err(PublishError::io("remove", folder))
    }
}

/// Files of a folder; none if it does not exist.
fn files(folder: &Path) -> Result<Vec<PathBuf>, PublishError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder)
        .and_then(|entries| {
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()
        })
        .map_err(PublishError::io("list", folder))?;
    Ok(entries.into_iter().filter(|path| path.is_file()).collect())
}

/// Writes exports. Every rank tracks the newest export; only rank 0 writes.
#[derive(Debug)]
pub struct Exporter {
    client: CoordinatorClient,
    model_directory: PathBuf,
    target: Target,
    background: Background<PublishError>,
    /// Version and path of the newest export.
    newest: Option<(Version, PathBuf)>,
}

impl Exporter {
    /// Creates a writer of exports with the configuration and tokenizer of `model_directory`.
    pub fn new(client: CoordinatorClient, model_directory: PathBuf, target: Target) -> Self {
        Self {
            client,
            model_directory,
            target,
            background: Background::new("export"),
            newest: None,
        }
    }

    /// Whether the newest export has this version and path.
    pub fn is_newest(&self, version: Version, path: &Path) -> bool {
        self.newest.as_ref().is_some_and(|(own, at)| (*own, at.as_path()) == (version, path))
    }

    /// Waits for the previous export, then writes `staged` (if this rank has a copy) to `path` in
    /// the background.
    ///
    /// # Errors
    /// The previous export failed, or the thread cannot be started.
    pub fn begin(
        &mut self,
        version: Version,
        path: PathBuf,
        staged: Option<Staged>,
    ) -> Result<(), PublishError> {
        self.newest = Some((version, path.clone()));
        let Some(staged) = staged else { return Ok(()) };
        let (client, model_directory, target) =
            (self.client.clone(), self.model_directory.clone(), self.target.clone());
        self.background.begin(move || {
            let folder = target.folder(&path)?;
            disk::write_export(&folder, &model_directory, &staged, version, || {
                Ok(client.confirm()?)
            })?;
            target.upload(&folder)?;
            report(&client, version, &path)
        })
    }

    /// Reports the newest export again, once it is complete. For rank 0.
    ///
    /// # Errors
    /// The export or the report failed.
    pub fn repeat_report(&mut self, version: Version, path: &Path) -> Result<(), PublishError> {
        self.wait()?;
        report(&self.client, version, path)
    }

    /// Checks the export in flight without blocking.
    ///
    /// # Errors
    /// The export in flight has failed.
    pub fn check(&mut self) -> Result<(), PublishError> {
        self.background.check()
    }

    /// Waits for the export in flight.
    ///
    /// # Errors
    /// The export failed.
    pub fn wait(&mut self) -> Result<(), PublishError> {
        self.background.wait()
    }
}

fn report(client: &CoordinatorClient, version: Version, path: &Path) -> Result<(), PublishError> {
    Ok(client.report_weights(&WeightsReady::Disk {
        attempt: client.attempt(),
        version,
        path: path.to_owned(),
    })?)
}
