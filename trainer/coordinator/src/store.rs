//! The journal for async callers: calls are made one at a time on the blocking threads, since SQLite waits for the disk.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rljob_crds::names::JOURNAL_FILE;
use rljob_storage::Home;
use tokio_util::sync::CancellationToken;

use crate::journal::{Journal, JournalError};
use crate::mirror::{Mirror, MirrorError};

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal said no.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal's copy in the bucket could not be written or read.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The thread ended before its call did: the process is shutting down.
    #[error("the journal call was given up")]
    GivenUp(#[from] tokio::task::JoinError),
}

/// A shared journal. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Store {
    journal: Arc<Mutex<Journal>>,
    mirror: Option<Arc<Mirror>>,
    /// Whether changes go to the bucket.
    active: Arc<AtomicBool>,
}

impl Store {
    /// Shares a journal that is on a disk that outlives this machine.
    pub fn new(journal: Journal) -> Self {
        Self { journal: Arc::new(Mutex::new(journal)), mirror: None, active: Arc::default() }
    }

    /// Opens the journal of a run: where its home is a bucket, made anew from there. Blocks.
    pub fn open(home: &Home, run_directory: &Path, incarnation: u64) -> Result<Self, StoreError> {
        match home {
            Home::Folder(_) => Ok(Self::new(Journal::open(&run_directory.join(JOURNAL_FILE))?)),
            Home::Bucket(bucket) => {
                let (mirror, journal) = Mirror::restore(bucket.clone(), run_directory, incarnation)?;
                Ok(Self { mirror: Some(Arc::new(mirror)), ..Self::new(journal) })
            }
        }
    }

    /// Cancelled when another coordinator has taken the run over; never where nobody could.
    pub fn replaced(&self) -> CancellationToken {
        self.mirror.as_ref().map_or_else(CancellationToken::new, |mirror| mirror.replaced.clone())
    }

    /// From now on changes go to the bucket, and with the next one those before it. Until somebody has told a process that it is the run's coordinator, it may be an
    /// old one that comes back, and must not take the log from the one that runs.
    pub fn activate(&self) {
        self.active.store(true, Ordering::SeqCst);
    }

    /// Makes one call. What it wrote is on the disk, or in the bucket, when this returns; samples of no batch are on the disk alone.
    pub async fn call<T, F>(&self, call: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Journal) -> Result<T, JournalError> + Send + 'static,
    {
        let Self { journal, mirror, active } = self.clone();
        let job = move || {
            let mut locked = journal.lock().unwrap_or_else(PoisonError::into_inner);
            let result = call(&mut locked)?;
            if let Some(mirror) = mirror
                && active.load(Ordering::SeqCst)
                && locked.has_changed()?
            {
                drop(locked);
                mirror.save(&journal)?;
            }
            Ok(result)
        };
        tokio::task::spawn_blocking(job).await?
    }

    /// Removes what the journal's copy has no use for any more.
    pub async fn tidy(&self) -> Result<(), StoreError> {
        let (journal, Some(mirror)) = (Arc::clone(&self.journal), self.mirror.clone()) else { return Ok(()) };
        Ok(tokio::task::spawn_blocking(move || mirror.tidy(&journal)).await??)
    }
}
