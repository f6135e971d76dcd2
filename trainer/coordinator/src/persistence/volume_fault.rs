//! Faults of the volume of a run directory, which end without a change of the job: a folder that
//! the coordinator may not write, a read-only or full file system, I/O errors.

use std::io::{self, ErrorKind};
use std::path::Path;

use rusqlite::ErrorCode;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Denied,
    ReadOnly,
    Full,
    Other,
}

/// The error and what ends it, on one line, if the volume of this run directory has a fault. `None`
/// for other errors.
pub fn describe(error: &anyhow::Error, directory: &Path) -> Option<String> {
    let fault = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(error) => of_io(error),
        None => of_sqlite(cause.downcast_ref()?),
    })?;
    let existing = directory.ancestors().find(|folder| folder.is_dir()).unwrap_or(directory);
    let place = existing.display();
    let advice = match fault {
        Fault::Denied => {
            let (user, group) = (geteuid().as_raw(), getegid().as_raw());
            format!("give user {user} or group {group} of the coordinator write access to {place}")
        }
        Fault::ReadOnly => format!("mount the file system of {place} read-write"),
        Fault::Full => format!("free or enlarge the file system of {place}"),
        Fault::Other => format!("check the file system of {place}"),
    };
    Some(format!("{error:#}; {advice}").replace('\n', " "))
}

fn of_io(error: &io::Error) -> Option<Fault> {
    match error.kind() {
        ErrorKind::PermissionDenied => Some(Fault::Denied),
        ErrorKind::ReadOnlyFilesystem => Some(Fault::ReadOnly),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some(Fault::Full),
        ErrorKind::StaleNetworkFileHandle => Some(Fault::Other),
        _ => (Errno::from_io_error(error) == Some(Errno::IO)).then_some(Fault::Other),
    }
}

fn of_sqlite(error: &rusqlite::Error) -> Option<Fault> {
    match error.sqlite_error_code()? {
        ErrorCode::PermissionDenied => Some(Fault::Denied),
        ErrorCode::ReadOnly => Some(Fault::ReadOnly),
        ErrorCode::DiskFull => Some(Fault::Full),
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => Some(Fault::Other),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use rljob_storage::StorageError;

    use super::*;
    use crate::persistence::fence::FenceError;
    use crate::persistence::journal::JournalError;

    fn fence(source: io::Error) -> anyhow::Error {
        let path = "/runs/lab/sums/fence.json".into();
        FenceError::File { action: "write", path, source }.into()
    }

    fn journal(code: i32) -> anyhow::Error {
        let source = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        let path = "/runs/lab/sums/journal.sqlite".into();
        FenceError::Journal(JournalError::Open { path, source }).into()
    }

    #[test]
    fn faults_of_the_volume_are_described_with_what_ends_them() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display().to_string();
        let described = |error| describe(&error, &folder.path().join("lab/sums"));
        let made = Err::<(), _>(io::Error::from(ErrorKind::ReadOnlyFilesystem))
            .context("failed to make the run directory")
            .unwrap_err();
        let stored = StorageError::Io {
            action: "read",
            place: "identity.json".to_owned(),
            source: ErrorKind::StorageFull.into(),
        };
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        for (error, expected) in [
            (
                fence(ErrorKind::PermissionDenied.into()),
                format!(
                    "failed to write /runs/lab/sums/fence.json: permission denied; give user \
                     {user} or group {group} of the coordinator write access to {place}"
                ),
            ),
            (made, format!("mount the file system of {place} read-write")),
            (stored.into(), format!("free or enlarge the file system of {place}")),
            (fence(Errno::IO.into()), format!("check the file system of {place}")),
            (
                journal(rusqlite::ffi::SQLITE_FULL),
                format!("free or enlarge the file system of {place}"),
            ),
        ] {
            let line = described(error).unwrap();
            assert!(line.ends_with(&expected), "{line}\n{expected}");
        }
        assert_eq!(described(fence(ErrorKind::NotFound.into())), None);
        assert_eq!(described(journal(rusqlite::ffi::SQLITE_CORRUPT)), None);
    }
}
