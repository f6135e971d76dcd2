//! A run's run store, and what coordinator and learners do alike in both kinds: list folders, read,
//! measure, remove.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use rljob_crds::{BucketConfig, RunConfig};
use sha2::{Digest, Sha256};

use crate::{Bucket, StorageError};

/// Where a run is kept.
#[derive(Clone, Debug)]
pub enum RunStore {
    /// A folder that every process of the run sees.
    Folder(PathBuf),
    /// A prefix of a bucket.
    Bucket(Bucket),
}

/// A folder in a run store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// Its name.
    pub name: String,
    /// Whether its marker is in it.
    pub complete: bool,
}

impl RunStore {
    /// The run store of a run.
    pub fn of(config: &RunConfig) -> Result<Self, StorageError> {
        match &config.bucket {
            Some(bucket) => Ok(Self::Bucket(Bucket::open(bucket)?)),
            None => Ok(Self::Folder(config.run_directory.clone())),
        }
    }

    /// A folder of any run, absolute or `s3://bucket/prefix`, as a run store of its own; a bucket is
    /// reached as the run's own is.
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

    /// The same; of a bucket, what is called after every request that its server has answered.
    #[must_use]
    pub fn on_answer(self, answered: fn()) -> Self {
        match self {
            Self::Bucket(bucket) => Self::Bucket(bucket.on_answer(answered)),
            folder @ Self::Folder(_) => folder,
        }
    }

    /// A name in full, for people and for messages between processes.
    pub fn place(&self, name: &str) -> String {
        match self {
            Self::Folder(root) => root.join(name).display().to_string(),
            Self::Bucket(bucket) => bucket.place(name),
        }
    }

    /// Every folder in the folder `of`; complete are those with `marker` in them.
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

    /// A file's bytes; none if it is not there.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        match self {
            Self::Folder(root) => if_there(fs::read(root.join(name)), "read", || self.place(name)),
            Self::Bucket(bucket) => bucket.read(name),
        }
    }

    /// Makes or replaces a small file; it is there whole or as before.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), StorageError> {
        let root = match self {
            Self::Folder(root) => root,
            Self::Bucket(bucket) => return bucket.put(name, bytes),
        };
        let (path, writing) = (root.join(name), root.join(format!("{name}.writing")));
        let write = || {
            fs::write(&writing, bytes)?;
            File::open(&writing)?.sync_all()?;
            fs::rename(&writing, path)
        };
        write().map_err(StorageError::io("write", self.place(name)))
    }

    /// A file's size in bytes; none if it is not there.
    pub fn size(&self, name: &str) -> Result<Option<u64>, StorageError> {
        match self {
            Self::Folder(root) => {
                Ok(if_there(fs::metadata(root.join(name)), "look up", || self.place(name))?
                    .map(|file| file.len()))
            }
            Self::Bucket(bucket) => bucket.size(name),
        }
    }

    /// A file's SHA-256 in hexadecimal.
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

fn if_there<T>(
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
    let Some(entries) = if_there(fs::read_dir(of), "list", || of.display().to_string())? else {
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
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash),
            read => hash.update(&buffer[..read]),
        }
    }
}
