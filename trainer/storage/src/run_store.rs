//! Run stores: listing, reading, hashing and removing files in a directory or a bucket prefix.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use rljob_crds::{BucketConfig, RunConfig};
use sha2::{Digest, Sha256};

use crate::{Bucket, StorageError, durable};

/// Longest manifest, receipt or identity that is read, in bytes.
pub const MAX_MANIFEST: u64 = 64 << 20;

/// Storage of a run.
#[derive(Clone, Debug)]
pub enum RunStore {
    /// Directory shared by all processes of the run.
    Folder(PathBuf),
    Bucket(Bucket),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub name: String,
    /// Whether the marker file exists.
    pub complete: bool,
}

impl RunStore {
    pub fn of(config: &RunConfig) -> Result<Self, StorageError> {
        match &config.bucket {
            Some(bucket) => Ok(Self::Bucket(Bucket::open(bucket)?)),
            None => Ok(Self::Folder(config.run_directory.clone())),
        }
    }

    /// Opens a folder of any run, absolute or `s3://bucket/prefix`. A bucket is reached with this
    /// run's settings.
    pub fn at(path: &Path, config: Option<&BucketConfig>) -> Result<Self, StorageError> {
        match (config, path.to_str().and_then(|path| path.strip_prefix("s3://")?.split_once('/'))) {
            (Some(own), Some((bucket, prefix))) => Ok(Self::Bucket(Bucket::open(&BucketConfig {
                bucket: bucket.to_owned(),
                prefix: prefix.trim_end_matches('/').to_owned(),
                ..own.clone()
            })?)),
            _ => Ok(Self::Folder(path.to_owned())),
        }
    }

    /// Sets a callback for every response of a bucket's server.
    #[must_use]
    pub fn on_response(self, on_response: fn()) -> Self {
        match self {
            Self::Bucket(bucket) => Self::Bucket(bucket.on_response(on_response)),
            folder @ Self::Folder(_) => folder,
        }
    }

    /// Full name of a file, for messages.
    pub fn place(&self, name: &str) -> String {
        match self {
            Self::Folder(root) => root.join(name).display().to_string(),
            Self::Bucket(bucket) => bucket.place(name),
        }
    }

    /// Lists the folders in `of`; those with `marker` are complete.
    pub fn folders(&self, of: &str, marker: &str) -> Result<Vec<Folder>, StorageError> {
        match self {
            Self::Folder(root) => folders(&root.join(of), marker),
            Self::Bucket(bucket) => {
                let names = bucket.list(of)?.into_keys().filter_map(|name| {
                    name.split_once('/').map(|(folder, name)| (folder.to_owned(), name == marker))
                });
                let mut found: Vec<Folder> = Vec::new();
                for (name, complete) in names {
                    match found.last_mut().filter(|folder| folder.name == name) {
                        Some(folder) => folder.complete |= complete,
                        None => found.push(Folder { name, complete }),
                    }
                }
                Ok(found)
            }
        }
    }

    /// Opens a file, of which at most `limit` bytes are read; `None` if it does not exist. An
    /// object of a bucket is read whole.
    ///
    /// # Errors
    /// The file cannot be read, or an object is larger.
    pub fn open(&self, name: &str, limit: u64) -> Result<Option<Box<dyn Read>>, StorageError> {
        Ok(match self {
            Self::Folder(root) => {
                let file = optional(File::open(root.join(name)), "read", || self.place(name))?;
                file.map(|file| Box::new(file.take(limit)) as Box<dyn Read>)
            }
            Self::Bucket(bucket) => bucket
                .read(name, limit)?
                .map(|bytes| Box::new(std::io::Cursor::new(bytes)) as Box<dyn Read>),
        })
    }

    /// Reads a file of at most `limit` bytes; `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read, or is larger.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, StorageError> {
        if let Self::Bucket(bucket) = self {
            return bucket.read(name, limit);
        }
        let Some(mut file) = self.open(name, limit.saturating_add(1))? else { return Ok(None) };
        let mut bytes = Vec::new();
        let found =
            file.read_to_end(&mut bytes).map_err(StorageError::io("read", self.place(name)))?;
        if found as u64 > limit {
            return Err(StorageError::TooLarge { place: self.place(name), limit });
        }
        Ok(Some(bytes))
    }

    /// Writes or replaces a small file, atomically and durably.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), StorageError> {
        let root = match self {
            Self::Folder(root) => root,
            Self::Bucket(bucket) => return bucket.put(name, bytes),
        };
        durable::replace(&root.join(name), &bytes)
            .map_err(StorageError::io("write", self.place(name)))
    }

    /// Size of a file in bytes; `None` if it does not exist.
    pub fn size(&self, name: &str) -> Result<Option<u64>, StorageError> {
        match self {
            Self::Folder(root) => {
                Ok(optional(fs::metadata(root.join(name)), "look up", || self.place(name))?
                    .map(|file| file.len()))
            }
            Self::Bucket(bucket) => bucket.size(name),
        }
    }

    /// SHA-256 of a file in hexadecimal digits.
    pub fn sha256(&self, name: &str) -> Result<String, StorageError> {
        let hash = match self {
            Self::Folder(root) => {
                sha256(&root.join(name)).map_err(StorageError::io("read", self.place(name)))?
            }
            Self::Bucket(bucket) => bucket.sha256(name)?,
        };
        Ok(hash.finalize().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}")))
    }

    /// Removes a folder, its marker first.
    pub fn remove_folder(&self, folder: &str, marker: &str) -> Result<(), StorageError> {
        let root = match self {
            Self::Folder(root) => root,
            Self::Bucket(bucket) => return bucket.remove_folder(folder, marker),
        };
        let path = root.join(folder);
        match fs::remove_file(path.join(marker)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => fs::remove_dir_all(&path),
        }
        .map_err(StorageError::io("remove", self.place(folder)))
    }
}

fn optional<T>(
    result: std::io::Result<T>,
    action: &'static str,
    place: impl FnOnce() -> String,
) -> Result<Option<T>, StorageError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io(action, place())(error)),
    }
}

fn folders(of: &Path, marker: &str) -> Result<Vec<Folder>, StorageError> {
    let failed = || StorageError::io("list", of.display().to_string());
    let Some(entries) = optional(fs::read_dir(of), "list", || of.display().to_string())? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed())?;
        if let Ok(name) = entry.file_name().into_string() {
            found.push(Folder { name, complete: entry.path().join(marker).is_file() });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

fn sha256(path: &Path) -> std::io::Result<Sha256> {
    let (mut file, mut hash) =
        (BufReader::with_capacity(1 << 20, File::open(path)?), Sha256::new());
    std::io::copy(&mut file, &mut hash)?;
    Ok(hash)
}
