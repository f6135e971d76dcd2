//! Run-directory fencing: rejects calls of superseded coordinators.
//!
//! `fence.json` names the coordinator that may act and its journal file. A coordinator that finds
//! another name there was superseded: it rejects all requests and exits.
//!
//! ```text
//!  claim(epoch)   fence.json {uid, epoch, from: old journal}
//!                   ─▶ copies of the old journal and JSONL files
//!                   ─▶ fence.json {uid, epoch, journal: the copy}
//!  journal call   commit ─▶ check ─▶ result
//! ```
//!
//! A superseded coordinator may still have its journal open, and locks of a process that lost its
//! volume prove nothing. A successor therefore writes its own name first and then works on a copy
//! of the journal. Later commits of the old coordinator have no effect, because it checks the fence
//! before it answers; everything that it answered before is in the copy. The journal and the JSONL
//! files are named by process, so that the old coordinator only writes or removes its own;
//! `journal.sqlite`, `metrics.jsonl` and so on are symbolic links for readers.

mod holder;
mod links;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rljob_crds::names::{JOURNAL_FILE, JSONL_FILES};
use tokio_util::sync::CancellationToken;

use crate::persistence::journal::{Journal, JournalError, copy};
pub use holder::FenceError;
use holder::{Holder, file, read, write};
use links::name_of_process;
pub use links::relink;

/// An answer that commits nothing may rest on a check that is so old.
const FRESH: Duration = Duration::from_secs(1);

/// A claimed run directory. Clones are the same claim.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Claim>);

#[derive(Debug)]
struct Claim {
    directory: PathBuf,
    held: Mutex<Holder>,
    checked: Mutex<Instant>,
    lost: CancellationToken,
}

impl Fence {
    /// Claims `directory` for the coordinator of this epoch and takes the journal over. A higher
    /// epoch of the same job is there to stay. Blocks.
    ///
    /// # Errors
    /// [`FenceError::Replaced`] if a higher one has claimed it.
    pub fn claim(
        directory: &Path,
        uid: &str,
        epoch: u64,
        incarnation: u64,
    ) -> Result<Self, FenceError> {
        let before = read(directory)?;
        let mut own = Holder { uid: uid.to_owned(), epoch, journal: None, from: None };
        match before {
            Some(other) if other.uid == uid && other.epoch > epoch => {
                return Err(own.replaced(&other));
            }
            // A restarted process of the same coordinator: it has no other one beside it.
            Some(same) if same.uid == uid && same.epoch == epoch && same.journal.is_some() => {
                return Self::undamaged(directory, same);
            }
            Some(other) => own.from = other.journal.or(other.from),
            None => {
                own.from = directory.join(JOURNAL_FILE).is_file().then(|| JOURNAL_FILE.to_owned());
            }
        }
        write(directory, &own)?;
        let name = format!("journal-{epoch}-{incarnation:x}.sqlite");
        if let Some(from) = &own.from {
            copy::copy(&directory.join(from), &directory.join(&name))?;
            JSONL_FILES.iter().try_for_each(|file| copy_lines(directory, file, from, &name))?;
        } else {
            // A journal that is named exists: a missing one was lost.
            Journal::open(&directory.join(&name))?;
        }
        match read(directory)? {
            Some(found) if found == own => {}
            Some(other) => return Err(own.replaced(&other)),
            None => return Err(file("find", directory)(ErrorKind::NotFound.into())),
        }
        let from = own.from.take();
        own.journal = Some(name);
        write(directory, &own)?;
        if let Some(from) = from {
            forget(directory, &from);
        }
        let fence = Self::held(directory, own);
        fence.link();
        Ok(fence)
    }

    /// The claim in force, for a program that holds the lock of a local run without coordinator;
    /// `None` without one, or if a coordinator was stopped while it took the journal over. Blocks.
    ///
    /// # Errors
    /// [`JournalError::Damaged`], or a file cannot be read.
    pub fn of_stopped_run(directory: &Path) -> Result<Option<Self>, FenceError> {
        let holder = read(directory)?.filter(|holder| holder.journal.is_some());
        holder.map(|holder| Self::undamaged(directory, holder)).transpose()
    }

    /// The claim of a holder whose journal has no damage.
    fn undamaged(directory: &Path, holder: Holder) -> Result<Self, FenceError> {
        let fence = Self::held(directory, holder);
        let journal = fence.journal();
        Journal::open(&journal)?.check(&journal)?;
        Ok(fence)
    }

    /// Checks that the journal of a run directory was not lost. `is_claimed` tells whether a run
    /// has begun there. Not for scratch folders of runs in a bucket. Blocks.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if the journal is missing or empty.
    pub fn check_journal(directory: &Path, is_claimed: bool) -> Result<(), FenceError> {
        let name = match read(directory)? {
            Some(holder) => holder.journal.or(holder.from),
            None => is_claimed.then(|| JOURNAL_FILE.to_owned()),
        };
        let Some(path) = name.map(|name| directory.join(name)) else { return Ok(()) };
        // What is committed may be in the write-ahead log alone.
        let log = PathBuf::from(format!("{}-wal", path.display()));
        let is_empty = |path: &Path| path.metadata().map_or(true, |metadata| metadata.len() == 0);
        if !path.is_file() || is_empty(&path) && is_empty(&log) {
            let detail = "the file is missing or empty".to_owned();
            return Err(JournalError::Damaged { path, detail }.into());
        }
        Ok(())
    }

    fn held(directory: &Path, holder: Holder) -> Self {
        let (held, checked) = (Mutex::new(holder), Mutex::new(Instant::now()));
        Self(Arc::new(Claim {
            directory: directory.to_owned(),
            held,
            checked,
            lost: CancellationToken::new(),
        }))
    }

    /// The journal that this coordinator works on.
    pub fn journal(&self) -> PathBuf {
        let name = self.holder().journal.clone();
        self.0.directory.join(name.as_deref().unwrap_or(JOURNAL_FILE))
    }

    pub fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// The JSONL file that this coordinator appends to and that readers find as `name`.
    pub fn file(&self, name: &str) -> PathBuf {
        let journal = self.holder().journal.clone();
        let journal = journal.as_deref().unwrap_or(JOURNAL_FILE);
        self.0.directory.join(name_of_process(name, journal))
    }

    /// The epoch in force.
    pub fn epoch(&self) -> u64 {
        self.holder().epoch
    }

    /// Completes when this coordinator is found to be superseded.
    pub async fn lost(&self) {
        self.0.lost.cancelled().await;
    }

    /// Checks that this coordinator may still act. Callers check after a durable write and before
    /// they return its result. Blocks.
    pub fn check(&self) -> Result<(), FenceError> {
        let held = self.holder().clone();
        match read(&self.0.directory)? {
            Some(found) if found == held => {
                *self.0.checked.lock() = Instant::now();
                Ok(())
            }
            Some(other) => {
                self.0.lost.cancel();
                Err(held.replaced(&other))
            }
            None => Err(file("find", &self.0.directory)(ErrorKind::NotFound.into())),
        }
    }

    /// The same for what commits nothing, unless it was asked a moment ago. A process that was
    /// stopped finds that it was not.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub async fn check_now_and_then(&self) -> Result<(), FenceError> {
        let age = self.0.checked.lock().elapsed();
        if age < FRESH { Ok(()) } else { self.ask().await }
    }

    /// [`Self::check`] from where nothing may block.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub async fn ask(&self) -> Result<(), FenceError> {
        let fence = self.clone();
        let asked = tokio::task::spawn_blocking(move || fence.check()).await;
        asked.unwrap_or_else(|error| {
            Err(file("read", &self.0.directory)(std::io::Error::other(error)))
        })
    }

    /// Raises the epoch, after the operator lost its status and assigned a new one.
    /// Blocks.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub fn raise(&self, epoch: u64) -> Result<(), FenceError> {
        let raised = Holder { epoch, ..self.holder().clone() };
        if epoch <= self.epoch() {
            return Ok(());
        }
        self.check()?;
        write(&self.0.directory, &raised)?;
        *self.holder() = raised;
        Ok(())
    }

    /// Links `journal.sqlite` to the journal, for readers.
    fn link(&self) {
        let Some(name) = self.holder().journal.clone() else { return };
        let link = self.0.directory.join(JOURNAL_FILE);
        if let Err(error) = relink(&link, &name) {
            tracing::warn!(%error, "failed to link {} to the journal", link.display());
        }
    }

    fn holder(&self) -> MutexGuard<'_, Holder> {
        self.0.held.lock()
    }
}

/// Copies a JSONL file of the process with journal `from`. Earlier releases have one file for all
/// processes.
fn copy_lines(directory: &Path, file: &str, from: &str, to: &str) -> Result<(), FenceError> {
    let target = directory.join(name_of_process(file, to));
    for source in [name_of_process(file, from), file.to_owned()] {
        let path = directory.join(source);
        match std::fs::copy(&path, &target) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(FenceError::Copy { path, source }),
        }
    }
    Ok(())
}

/// Removes the files of a process whose journal was taken over. Those that readers find stay until
/// the links name the files of this process. A file that cannot be removed only occupies space.
fn forget(directory: &Path, journal: &str) {
    let lines = JSONL_FILES.iter().map(|file| (*file, name_of_process(file, journal)));
    let lines = lines.filter(|(file, name)| {
        let linked = std::fs::read_link(directory.join(file));
        file != name && !linked.is_ok_and(|linked| linked == Path::new(name))
    });
    let names = [journal.to_owned(), format!("{journal}-wal")];
    for name in names.into_iter().chain(lines.map(|(_, name)| name)) {
        let _ = std::fs::remove_file(directory.join(name));
    }
}

#[cfg(test)]
mod tests;
