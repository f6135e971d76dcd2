//! Checkpoints in the folders of local runs.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_protocol::checkpoint::{FileEntry, MANIFEST_FILE, Manifest};
use rljob_protocol::version::Version;
use sha2::{Digest, Sha256};

use crate::local::inspect::{self, Run};

/// A folder of a run's checkpoints.
pub struct Found {
    /// `namespace/name` of the run.
    pub run: String,
    pub folder: PathBuf,
    pub version: Version,
    /// Absent while it is written, and after a failed write. An error if it cannot be read.
    pub manifest: Result<Option<Manifest>, String>,
}

/// A run whose checkpoints are in a bucket.
#[derive(Clone)]
pub struct InBucket {
    /// `namespace/name` of the run.
    pub run: String,
    /// `s3://bucket/prefix/checkpoints`.
    pub uri: String,
}

/// Checkpoints of local runs.
#[derive(Default)]
pub struct Runs {
    /// By run, oldest first.
    pub found: Vec<Found>,
    pub in_buckets: Vec<InBucket>,
}

impl Runs {
    /// The checkpoints of a single run.
    ///
    /// # Errors
    /// They are in a bucket.
    pub fn checkpoints(self) -> anyhow::Result<Vec<Found>> {
        if let Some(InBucket { run, uri }) = self.in_buckets.first() {
            bail!("checkpoints of {run} are in a bucket: copy {uri} with a client of the bucket");
        }
        Ok(self.found)
    }
}

/// Checkpoints of the run directory `dir` or of those in the folder.
pub fn find(dir: &Path) -> anyhow::Result<Runs> {
    let mut runs = Runs::default();
    for directory in inspect::find(dir)? {
        let config = Run::read(&directory)?.config;
        let run = format!("{}/{}", config.namespace, config.name);
        if config.bucket.is_some() {
            let uri = config.run_store().join(CHECKPOINTS_DIR).display().to_string();
            runs.in_buckets.push(InBucket { run, uri });
            continue;
        }
        let found = in_folder(&run, &directory.join(CHECKPOINTS_DIR));
        runs.found.extend(found.with_context(|| format!("failed to list checkpoints of {run}"))?);
    }
    let is_empty = runs.found.is_empty() && runs.in_buckets.is_empty();
    ensure!(!is_empty, "{} contains no checkpoint", dir.display());
    Ok(runs)
}

/// Checkpoints of a run, oldest first.
fn in_folder(run: &str, folder: &Path) -> io::Result<Vec<Found>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Ok(version) = entry.file_name().to_string_lossy().parse() else { continue };
        let (run, folder) = (run.to_owned(), entry.path());
        let manifest = manifest(&folder).map_err(|error| format!("{error:#}"));
        found.push(Found { run, folder, version, manifest });
    }
    found.sort_by_key(|checkpoint| checkpoint.version);
    Ok(found)
}

fn manifest(folder: &Path) -> anyhow::Result<Option<Manifest>> {
    let path = folder.join(MANIFEST_FILE);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("failed to read {}", path.display()))?,
    };
    let manifest = serde_json::from_str(&text);
    manifest.map(Some).with_context(|| format!("failed to read {}", path.display()))
}

/// Bytes of all files.
pub fn size(manifest: &Manifest) -> u64 {
    manifest.files.iter().fold(0, |sum, file| file.size.saturating_add(sum))
}

/// Why a file does not match its entry.
pub fn problem(folder: &Path, entry: &FileEntry) -> Option<String> {
    if !is_in_folder(entry) {
        return Some("is not the name of a file".to_owned());
    }
    let path = folder.join(&entry.name);
    let compare = || {
        let size = fs::metadata(&path)?.len();
        if size != entry.size {
            return Ok(Some(format!("has {size} bytes instead of {}", entry.size)));
        }
        let sum = sha256(&path)?;
        let message = || format!("has SHA-256 {sum} instead of {}", entry.sha256);
        Ok((sum != entry.sha256).then(message))
    };
    compare().unwrap_or_else(|error: io::Error| Some(format!("cannot be read: {error}")))
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut BufReader::with_capacity(1 << 20, File::open(path)?), &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

/// Whether an entry names a file of the checkpoint's folder.
pub fn is_in_folder(entry: &FileEntry) -> bool {
    Path::new(&entry.name).file_name().is_some_and(|name| name == entry.name.as_str())
}
