//! Journal mirror: a log in the run's bucket, from which the journal is restored on another
//! machine.
//!
//! ```text
//!  call ─▶ local journal ─▶ journal/samples/STEP.…  samples of a fixed batch
//!                        └▶ journal/log/NUMBER      changed rows; every 64th entry has all rows
//!                                └─▶ result           and replaces the entries before it
//! ```
//!
//! The log is authoritative: a starting coordinator rebuilds its local journal from it. An entry is
//! only created if its number is free, so that one of two coordinators of a run fails before it
//! returns a result. Samples of no batch are not mirrored; they are sampled again.

use std::fs;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use rljob_storage::{Bucket, StorageError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::persistence::journal::{Journal, JournalError};

/// Folder of the log.
const LOG: &str = "journal/log";
/// Folder of the batches' samples.
const SAMPLES: &str = "journal/samples";
/// Object by which it is found out whether the store heeds conditions.
const PROBE: &str = "journal/condition";
/// Number of entries after which an entry contains all rows.
const WHOLE_EVERY: u64 = 64;
/// Bytes at the end of an entry: the SHA-256 of those before.
const SEAL: usize = 32;
/// Largest entry of the log that is read: more than the samples of any batch.
const MAX_ENTRY: u64 = 4 << 30;

/// A journal that cannot be kept in the bucket.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// Another coordinator writes it.
    #[error(
        "another coordinator of this run has written `{0}`: this one was replaced and must stop"
    )]
    Replaced(String),
    /// An object is missing or corrupted.
    #[error("the journal in the bucket is corrupted: `{place}` {detail}")]
    Torn {
        /// The object.
        place: String,
        /// Problem of the object.
        detail: &'static str,
    },
    /// The bucket.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The local journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A local file.
    #[error("failed to {action} `{}`", path.display())]
    Io {
        /// Verb of the operation.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Sample object of a batch, as recorded in the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SampleObject {
    name: String,
    sha256: String,
}

/// The journal's copy in the bucket.
#[derive(Debug)]
pub struct Mirror {
    bucket: Bucket,
    scratch: PathBuf,
    incarnation: u64,
    conditional: bool,
    log: Mutex<Log>,
    /// Cancelled when another coordinator has taken the run over.
    pub replaced: CancellationToken,
}

#[derive(Debug, Default)]
struct Log {
    next: u64,
    /// Changes that are not in the bucket yet.
    waiting: Option<Entry>,
}

#[derive(Debug)]
struct Entry {
    samples: Vec<(String, PathBuf)>,
    bytes: Vec<u8>,
}

impl Mirror {
    /// Rebuilds the local journal `path` from the bucket. Blocks, at most for the bucket's
    /// deadline.
    pub fn restore(
        bucket: Bucket,
        run_directory: &Path,
        path: &Path,
        incarnation: u64,
    ) -> Result<(Self, Journal), MirrorError> {
        let conditional = bucket.rejects_overwrites(PROBE)?;
        if !conditional {
            tracing::warn!(
                "the bucket's store writes objects that must not be there: nothing but the \
                    operator keeps two coordinators of this run apart"
            );
        }
        for suffix in ["", "-wal", "-shm"] {
            let file = PathBuf::from(format!("{}{suffix}", path.display()));
            if file.exists() {
                fs::remove_file(&file).map_err(io("remove", &file))?;
            }
        }
        let mut journal = Journal::open(path)?;
        let log = Mutex::new(Log::default());
        let mirror = Self {
            bucket,
            scratch: run_directory.to_owned(),
            incarnation,
            conditional,
            log,
            replaced: CancellationToken::new(),
        };
        let next = mirror.read_log(&mut journal)?;
        mirror.read_samples(&mut journal)?;
        journal.follow()?;
        mirror.log().next = next;
        Ok((mirror, journal))
    }

    /// Writes to the bucket whatever changed in the journal. When this returns, all that was in the
    /// journal when it was called is there. Blocks.
    pub fn save(&self, journal: &Mutex<Journal>) -> Result<(), MirrorError> {
        // A caller that waits here finds its rows saved by the previous one.
        let mut log = self.log();
        loop {
            if log.waiting.is_none() {
                let mut journal = journal.lock();
                if !journal.has_changed()? {
                    return Ok(());
                }
                log.waiting = Some(self.take(&mut journal, log.next)?);
            }
            if let Some(entry) = &log.waiting {
                self.write(entry, log.next)?;
                log.waiting = None;
                log.next = log.next.saturating_add(1);
            }
        }
    }

    /// Removes the samples that the journal has no use for any more.
    pub fn tidy(&self, journal: &Mutex<Journal>) -> Result<(), MirrorError> {
        self.save(journal)?;
        let _log = self.log();
        let used = journal.lock().sample_objects()?;
        let used: Vec<String> = used
            .into_iter()
            .filter_map(|(_, object)| {
                Some(serde_json::from_value::<SampleObject>(object).ok()?.name)
            })
            .collect();
        let names = self.bucket.list(SAMPLES)?.into_keys().map(|name| format!("{SAMPLES}/{name}"));
        let unused: Vec<String> = names.filter(|name| !used.contains(name)).collect();
        if unused.is_empty() {
            return Ok(());
        }
        Ok(self.bucket.remove(&unused)?)
    }

    /// Changes as the log entry of this number.
    fn take(&self, journal: &mut Journal, number: u64) -> Result<Entry, MirrorError> {
        let mut samples = Vec::new();
        for step in journal.new_batches()? {
            let (name, file) = (
                format!("{SAMPLES}/{step}.{:x}", self.incarnation),
                self.scratch.join(format!("samples-{step}.part")),
            );
            journal.write_samples(step, &file)?;
            let sha256 =
                format!("{:x}", Sha256::digest(fs::read(&file).map_err(io("read", &file))?));
            let object = SampleObject { name: name.clone(), sha256 };
            let json = serde_json::to_value(&object).map_err(|error| JournalError::Malformed {
                what: "state.value",
                source: error.into(),
            })?;
            journal.put_sample_object(step, &json)?;
            samples.push((name, file));
        }
        let file = self.scratch.join("journal.part");
        journal.write_part(&file, number.is_multiple_of(WHOLE_EVERY))?;
        let bytes = fs::read(&file).map_err(io("read", &file))?;
        Ok(Entry { samples, bytes: sealed(bytes) })
    }

    fn write(&self, entry: &Entry, number: u64) -> Result<(), MirrorError> {
        for (name, file) in &entry.samples {
            self.bucket.upload(file, name)?;
        }
        let name = entry_name(number);
        if !self.conditional {
            self.bucket.put(&name, entry.bytes.clone())?;
        } else if !self.bucket.put_if_absent(&name, &entry.bytes)? {
            self.replaced.cancel();
            return Err(MirrorError::Replaced(self.bucket.place(&name)));
        }
        for (_, file) in &entry.samples {
            fs::remove_file(file).map_err(io("remove", file))?;
        }
        if number.is_multiple_of(WHOLE_EVERY)
            && number > 0
            && let Err(error) = self
                .bucket
                .list(LOG)
                .and_then(|names| self.bucket.remove(&before(names.into_keys(), number)))
        {
            tracing::warn!(error = %crate::error_line(&error), "failed to remove old entries of \
                the journal; tried again after {WHOLE_EVERY} more");
        }
        Ok(())
    }

    /// Answers the number of the next entry.
    fn read_log(&self, journal: &mut Journal) -> Result<u64, MirrorError> {
        let numbers: Vec<u64> =
            self.bucket.list(LOG)?.into_keys().filter_map(|name| name.parse().ok()).collect();
        let Some(last) = numbers.iter().max().copied() else { return Ok(0) };
        let entries = last % WHOLE_EVERY;
        for number in last.saturating_sub(entries)..=last {
            let bytes = self.bucket.read(&entry_name(number), MAX_ENTRY)?;
            let torn = |detail| MirrorError::Torn {
                place: self.bucket.place(&entry_name(number)),
                detail,
            };
            let bytes = unsealed(bytes.ok_or_else(|| torn("is missing"))?)
                .ok_or_else(|| torn("was altered"))?;
            self.apply(journal, &bytes)?;
        }
        tracing::info!(entries = entries.saturating_add(1), "rebuilt the journal from the bucket");
        Ok(last.saturating_add(1))
    }

    fn read_samples(&self, journal: &mut Journal) -> Result<(), MirrorError> {
        for (_, object) in journal.sample_objects()? {
            let object: SampleObject = serde_json::from_value(object).map_err(|error| {
                JournalError::Malformed { what: "state.value", source: error.into() }
            })?;
            let torn =
                |detail| MirrorError::Torn { place: self.bucket.place(&object.name), detail };
            let bytes =
                self.bucket.read(&object.name, MAX_ENTRY)?.ok_or_else(|| torn("is missing"))?;
            if format!("{:x}", Sha256::digest(&bytes)) != object.sha256 {
                return Err(torn("was altered"));
            }
            self.apply(journal, &bytes)?;
        }
        Ok(())
    }

    fn apply(&self, journal: &mut Journal, bytes: &[u8]) -> Result<(), MirrorError> {
        let file = self.scratch.join("journal.part");
        fs::write(&file, bytes).map_err(io("write", &file))?;
        Ok(journal.read_part(&file)?)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> MirrorError {
    let path = path.to_owned();
    move |source| MirrorError::Io { action, path, source }
}

/// In order of numbers as of names.
fn entry_name(number: u64) -> String {
    format!("{LOG}/{number:020}")
}

/// Entries before a number, by their names in full.
fn before(names: impl Iterator<Item = String>, number: u64) -> Vec<String> {
    names
        .filter(|name| name.parse::<u64>().is_ok_and(|other| other < number))
        .map(|name| format!("{LOG}/{name}"))
        .collect()
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend_from_slice(&Sha256::digest(&bytes));
    bytes
}

/// The bytes that were sealed, if they are the same still.
fn unsealed(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let seal = bytes.split_off(bytes.len().checked_sub(SEAL)?);
    (Sha256::digest(&bytes)[..] == seal[..]).then_some(bytes)
}

#[cfg(test)]
pub(crate) mod tests;
