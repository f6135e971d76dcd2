//! Snapshot folders: a partial folder is filled with verified files and renamed when complete.
//!
//! ```text
//!  PARENT/NAME.lock                one process at a time
//!  PARENT/NAME.COMMIT.partial/     files under download; removed when another commit is wanted
//!  PARENT/NAME/                    complete, with complete.json
//! ```

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::fetch::{PART, Progress, fetch};
use crate::{HubClient, HubError, RemoteFile, Repository};

/// Name of the file that marks a complete snapshot folder.
pub const COMPLETE_FILE: &str = "complete.json";

/// Files that are downloaded at the same time.
const CONCURRENCY: usize = 4;
const LOCK_INTERVAL: Duration = Duration::from_secs(1);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A downloaded snapshot, as `complete.json` describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub repository: Repository,
    pub commit: String,
    /// What the caller selected of the repository, in its own terms.
    pub selection: String,
    /// Sorted by path.
    pub files: Vec<RemoteFile>,
}

impl Snapshot {
    /// Reads the snapshot of a folder; `None` if the folder is incomplete.
    pub fn read(folder: &Path) -> Result<Option<Self>, HubError> {
        let path = folder.join(COMPLETE_FILE);
        match std::fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json)
                .map(Some)
                .map_err(|error| HubError::io("parse", &path)(error.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(HubError::io("read", &path)(error)),
        }
    }
}

/// A snapshot under download. Files that earlier downloads of the same commit have finished or
/// begun are kept.
#[derive(Debug)]
pub struct SnapshotDownload<'a> {
    client: &'a HubClient,
    repository: &'a Repository,
    commit: &'a str,
    folder: PathBuf,
    partial: PathBuf,
    remote: Vec<RemoteFile>,
    fetched: Vec<RemoteFile>,
    progress: Arc<Progress>,
    // Unlocked on drop.
    lock: File,
}

impl<'a> SnapshotDownload<'a> {
    /// Waits for the lock of the folder and lists the commit's files.
    pub async fn open(
        client: &'a HubClient,
        repository: &'a Repository,
        commit: &'a str,
        folder: &Path,
    ) -> Result<Self, HubError> {
        let parent = folder.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(HubError::io("create", parent))?;
        let lock = lock(&with_suffix(folder, ".lock")).await?;
        let partial = with_suffix(folder, &format!(".{commit}.partial"));
        remove_other_partials(folder, &partial)?;
        std::fs::create_dir_all(&partial).map_err(HubError::io("create", &partial))?;
        let remote = client.files(repository, commit).await?;
        Ok(Self {
            client,
            repository,
            commit,
            folder: folder.to_owned(),
            partial,
            remote,
            fetched: Vec::new(),
            progress: Arc::default(),
            lock,
        })
    }

    /// All files of the commit, sorted by path.
    pub fn files(&self) -> &[RemoteFile] {
        &self.remote
    }

    /// Folder that holds the fetched files until [`Self::complete`].
    pub fn partial_folder(&self) -> &Path {
        &self.partial
    }

    /// Progress of [`Self::fetch`].
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Downloads and verifies files.
    pub async fn fetch(&mut self, files: Vec<RemoteFile>) -> Result<(), HubError> {
        let total = files.iter().map(|file| file.size).fold(0, u64::saturating_add);
        let limit = self.client.settings.max_bytes;
        if total > limit {
            let repository = self.repository.to_string();
            return Err(HubError::TooLarge { repository, bytes: total, limit });
        }
        self.check_space(&files)?;
        self.progress.expect(total);
        let progress = &*self.progress;
        let downloads = files.iter().map(|file| {
            fetch(self.client, self.repository, self.commit, file, &self.partial, progress)
        });
        let all = futures::stream::iter(downloads.collect::<Vec<_>>())
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>();
        tokio::select! {
            result = all => result?,
            () = self.log_progress() => {}
        }
        self.fetched.extend(files);
        Ok(())
    }

    /// Writes the marker and gives the folder its name.
    pub async fn complete(mut self, selection: String) -> Result<Snapshot, HubError> {
        self.fetched.sort_by(|left, right| left.path.cmp(&right.path));
        self.fetched.dedup();
        let snapshot = Snapshot {
            repository: self.repository.clone(),
            commit: self.commit.to_owned(),
            selection,
            files: self.fetched,
        };
        let (partial, folder, lock) = (self.partial, self.folder, self.lock);
        let path = folder.clone();
        let publish = tokio::task::spawn_blocking(move || {
            let published = publish(&snapshot, &partial, &folder);
            drop(lock);
            published.map(|()| snapshot)
        });
        publish.await.map_err(|error| HubError::io("rename", &path)(error.into()))?
    }

    /// Compares the bytes that are missing with the space of the volume.
    fn check_space(&self, files: &[RemoteFile]) -> Result<(), HubError> {
        let present = |file: &&RemoteFile| {
            let path = self.partial.join(&file.path);
            let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
            size(&path).max(size(&with_suffix(&path, PART))).min(file.size)
        };
        let missing = files.iter().map(|file| file.size.saturating_sub(present(&file)));
        let needed = missing.fold(0, u64::saturating_add);
        let volume = rustix::fs::statvfs(&self.partial)
            .map_err(|error| HubError::io("look up", &self.partial)(error.into()))?;
        let available = volume.f_bavail.saturating_mul(volume.f_frsize);
        if needed > available {
            return Err(HubError::DiskFull { path: self.partial.clone(), needed, available });
        }
        Ok(())
    }

    async fn log_progress(&self) {
        loop {
            tokio::time::sleep(LOG_INTERVAL).await;
            let (done, total) = (self.progress.downloaded(), self.progress.total());
            tracing::info!(
                repository = self.repository.name,
                "downloaded {} of {} MiB ({} %)",
                done >> 20,
                total >> 20,
                done.saturating_mul(100).checked_div(total).unwrap_or(0)
            );
        }
    }
}

/// Writes the marker and renames the partial folder.
fn publish(snapshot: &Snapshot, partial: &Path, folder: &Path) -> Result<(), HubError> {
    let marker = partial.join(COMPLETE_FILE);
    let write = || {
        std::fs::write(&marker, serde_json::to_vec_pretty(snapshot)?)?;
        File::open(&marker)?.sync_all()?;
        File::open(partial)?.sync_all()
    };
    write().map_err(HubError::io("write", &marker))?;
    let rename = || {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::rename(partial, folder)?,
        }
        File::open(folder.parent().unwrap_or(folder))?.sync_all()
    };
    rename().map_err(HubError::io("rename", partial))?;
    tracing::info!(
        repository = snapshot.repository.name,
        commit = snapshot.commit,
        files = snapshot.files.len(),
        folder = %folder.display(),
        "download complete"
    );
    Ok(())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Locks a file, which another coordinator of the same run may hold until it exits.
async fn lock(path: &Path) -> Result<File, HubError> {
    let file = File::options().create(true).append(true).open(path);
    let file = file.map_err(HubError::io("open", path))?;
    let mut logged = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, path = %path.display(), "the volume does not support locks");
                return Ok(file);
            }
        }
        if !logged {
            tracing::info!(path = %path.display(), "waiting for another download to end");
            logged = true;
        }
        tokio::time::sleep(LOCK_INTERVAL).await;
    }
}

/// Removes partial folders of other commits.
fn remove_other_partials(folder: &Path, partial: &Path) -> Result<(), HubError> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else { return Ok(()) };
    let (prefix, is_hex) = (format!("{}.", name.to_string_lossy()), |b: u8| b.is_ascii_hexdigit());
    for entry in std::fs::read_dir(parent).map_err(HubError::io("list", parent))?.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let commit = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".partial"));
        if commit.is_some_and(|commit| commit.bytes().all(is_hex)) && path != partial {
            std::fs::remove_dir_all(&path).map_err(HubError::io("remove", &path))?;
        }
    }
    Ok(())
}
