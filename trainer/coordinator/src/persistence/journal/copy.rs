//! A copy of a journal that another process may still have open, and even be stopped in the middle
//! of a write.
//!
//! What is committed is in the file and its write-ahead log together, whose frames carry checksums:
//! a torn end counts for nothing. So both are copied as bytes, without asking for a lock, and
//! SQLite recovers the copy as after a crash. Only a holder that moves pages between the two at
//! that moment could spoil it; then both files change meanwhile, and the copy is made again.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rljob_storage::durable;

use super::{Journal, JournalError};

/// Tries, and the wait between two: a holder that is alive stops writing when it finds that it was
/// replaced, which it looks for after every write.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Size and time of change of a file and of its log.
type Trace = [Option<(u64, SystemTime)>; 2];

/// Copies the journal `source` to `target`, which appears when it is whole. Blocks.
pub fn copy(source: &Path, target: &Path) -> Result<(), JournalError> {
    let failed = |error: io::Error| JournalError::Copy { path: source.to_owned(), source: error };
    let partial = PathBuf::from(format!("{}.partial", target.display()));
    for _ in 0..TRIES {
        let before = trace(source).map_err(failed)?;
        copy_or_remove(source, &partial)
            .and_then(|()| copy_or_remove(&log(source), &log(&partial)))
            .map_err(failed)?;
        if trace(source).map_err(failed)? == before {
            recover(&partial, source)?;
            File::open(&partial)
                .and_then(|file| file.sync_all())
                .and_then(|()| fs::rename(&partial, target))
                .and_then(|()| durable::sync_parent(target))
                .map_err(failed)?;
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(JournalError::Busy { path: source.to_owned() })
}

/// Makes one whole file of a copy of `source` and its log.
fn recover(partial: &Path, source: &Path) -> Result<(), JournalError> {
    let journal = Journal::open(partial).map_err(|error| match error {
        JournalError::Damaged { detail, .. } => {
            JournalError::Damaged { path: source.to_owned(), detail }
        }
        error => error,
    })?;
    journal.check(source)?;
    // Closing it moves the log into the file.
    journal.connection.close().map_err(|(_, error)| JournalError::sqlite("close the copy")(error))
}

fn log(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}-wal", path.display()))
}

fn trace(source: &Path) -> io::Result<Trace> {
    let of = |path: &Path| match fs::metadata(path) {
        Ok(metadata) => Ok(Some((metadata.len(), metadata.modified()?))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    Ok([of(source)?, of(&log(source))?])
}

fn copy_or_remove(from: &Path, to: &Path) -> io::Result<()> {
    match fs::copy(from, to) {
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::remove_file(to) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
        result => result.map(drop),
    }
}
