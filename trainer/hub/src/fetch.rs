//! Download of one file: resumed from its `.part` file, verified, then renamed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::client::Attempt;
use crate::repository::Hasher;
use crate::{HubClient, HubError, RemoteFile, Repository};

/// Suffix of incomplete files.
pub(crate) const PART: &str = ".part";
/// Downloads of a file whose content does not match, before the error is reported.
const MAX_CORRUPT: u32 = 3;

/// Progress of a snapshot in bytes.
#[derive(Debug, Default)]
pub struct Progress {
    downloaded: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Bytes on disk.
    pub fn downloaded(&self) -> u64 {
        self.downloaded.load(Ordering::Relaxed)
    }

    /// Bytes of the files that were requested so far.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(crate) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) {
        self.downloaded.fetch_add(bytes, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: u64) {
        self.downloaded.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A file under download.
struct Part<'a> {
    file: &'a RemoteFile,
    path: PathBuf,
    output: File,
    written: u64,
    hasher: Hasher,
    progress: &'a Progress,
}

/// Downloads a file into `folder`. A file that is there is complete: it got its name after its
/// verification.
pub(crate) async fn fetch(
    client: &HubClient,
    repository: &Repository,
    commit: &str,
    file: &RemoteFile,
    folder: &Path,
    progress: &Progress,
) -> Result<(), HubError> {
    let target = folder.join(&file.path);
    if tokio::fs::try_exists(&target).await.map_err(HubError::io("look up", &target))? {
        progress.add(file.size);
        return Ok(());
    }
    if let Some(parent) = target.parent() {
        tokio::fs::create_dir_all(parent).await.map_err(HubError::io("create", parent))?;
    }
    let mut corrupt = 0_u32;
    loop {
        let part = Part::open(file, &target, progress).await?;
        let part = complete(client, repository, commit, part).await?;
        let path = part.path.clone();
        let found = part.finish().await?;
        if found == file.checksum.value() {
            return tokio::fs::rename(&path, &target).await.map_err(HubError::io("rename", &path));
        }
        progress.subtract(file.size);
        tokio::fs::remove_file(&path).await.map_err(HubError::io("remove", &path))?;
        corrupt = corrupt.saturating_add(1);
        tracing::warn!(file = file.path, found, "the file does not match its checksum");
        if corrupt == MAX_CORRUPT {
            return Err(HubError::Corrupt {
                repository: repository.to_string(),
                file: file.path.clone(),
                expected: file.checksum.value().to_owned(),
                found,
            });
        }
    }
}

/// Downloads the missing bytes of a part, with retries.
async fn complete<'a>(
    client: &HubClient,
    repository: &Repository,
    commit: &str,
    part: Part<'a>,
) -> Result<Part<'a>, HubError> {
    let name = format!("{}/{}", repository.name, part.file.path);
    let part = tokio::sync::Mutex::new(part);
    let attempt = || async {
        let mut part = part.lock().await;
        let before = part.written;
        if before == part.file.size {
            return Ok(());
        }
        let response = client
            .content(repository, commit, part.file, before)
            .await
            .map_err(|failed| (failed, false))?;
        part.append(response).await.map_err(|failed| (failed, part.written > before))
    };
    client.retry(&name, attempt).await?;
    Ok(part.into_inner())
}

impl<'a> Part<'a> {
    /// Opens the part file and hashes what an earlier process has written.
    async fn open(
        file: &'a RemoteFile,
        target: &Path,
        progress: &'a Progress,
    ) -> Result<Self, HubError> {
        let mut path = target.as_os_str().to_owned();
        path.push(PART);
        let path = PathBuf::from(path);
        let (hasher, written) = {
            let (path, file) = (path.clone(), file.clone());
            tokio::task::spawn_blocking(move || hash_existing(&path, &file))
                .await
                .map_err(std::io::Error::from)
                .flatten()
        }
        .map_err(HubError::io("read", &path))?;
        let mut options = File::options();
        let output = options.create(true).append(true).open(&path).await;
        let output = output.map_err(HubError::io("open", &path))?;
        progress.add(written);
        Ok(Self { file, path, output, written, hasher, progress })
    }

    /// Appends a response's body. A response from the start of the file replaces what is there.
    async fn append(&mut self, mut response: Response) -> Result<(), Attempt> {
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            self.reset().await?;
            return Err(transient("the server rejected the range"));
        }
        if self.written > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
            self.reset().await?;
        } else if self.written > 0 && range_start(&response) != Some(self.written) {
            return Err(transient("the server returned another range"));
        }
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => self.write(&chunk).await?,
                Ok(None) => break,
                Err(error) => {
                    self.output.flush().await.map_err(HubError::io("write", &self.path))?;
                    return Err(error.into());
                }
            }
        }
        self.output.flush().await.map_err(HubError::io("write", &self.path))?;
        if self.written < self.file.size {
            return Err(transient("the response ended early"));
        }
        Ok(())
    }

    async fn write(&mut self, chunk: &[u8]) -> Result<(), Attempt> {
        let written = self.written.saturating_add(chunk.len() as u64);
        if written > self.file.size {
            self.reset().await?;
            return Err(transient("the response is longer than the file"));
        }
        self.output.write_all(chunk).await.map_err(HubError::io("write", &self.path))?;
        self.hasher.update(chunk);
        self.written = written;
        self.progress.add(chunk.len() as u64);
        Ok(())
    }

    async fn reset(&mut self) -> Result<(), HubError> {
        self.output.set_len(0).await.map_err(HubError::io("truncate", &self.path))?;
        self.progress.subtract(self.written);
        self.written = 0;
        self.hasher = Hasher::new(self.file);
        Ok(())
    }

    /// Syncs the file and returns the checksum of its content.
    async fn finish(self) -> Result<String, HubError> {
        self.output.sync_all().await.map_err(HubError::io("sync", &self.path))?;
        Ok(self.hasher.finish())
    }
}

fn transient(detail: &str) -> Attempt {
    Attempt::Transient { detail: detail.to_owned(), wait: None }
}

/// First byte of a `Content-Range: bytes START-END/SIZE`.
fn range_start(response: &Response) -> Option<u64> {
    let value = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    value.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// Checksum state and length of a part file; one that is longer than the file is removed.
fn hash_existing(path: &Path, file: &RemoteFile) -> std::io::Result<(Hasher, u64)> {
    let mut hasher = Hasher::new(file);
    let input = match std::fs::File::open(path) {
        Ok(input) => input,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((hasher, 0)),
        Err(error) => return Err(error),
    };
    if input.metadata()?.len() > file.size {
        std::fs::remove_file(path)?;
        return Ok((hasher, 0));
    }
    let (mut input, mut written) = (BufReader::with_capacity(1 << 20, input), 0_u64);
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            return Ok((hasher, written));
        }
        hasher.update(bytes);
        let read = bytes.len();
        written = written.saturating_add(read as u64);
        input.consume(read);
    }
}
