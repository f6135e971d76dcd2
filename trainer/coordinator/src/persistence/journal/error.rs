//! Errors of the journal.

use std::path::PathBuf;

use rusqlite::ErrorCode;

/// A journal that cannot be used, or a call that would break a promise.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another coordinator has the file open.
    #[error("the journal {} is held by another process: a run directory has one coordinator at \
        a time", path.display())]
    Held { path: PathBuf },
    /// Another process keeps writing to it.
    #[error(
        "the journal {} is being written by another process, which does not stop",
        path.display()
    )]
    Busy { path: PathBuf },
    /// Its name cannot be made durable.
    #[error("failed to create the journal {}", path.display())]
    Create { path: PathBuf, source: std::io::Error },
    /// It cannot be copied.
    #[error("failed to copy the journal {}", path.display())]
    Copy { path: PathBuf, source: std::io::Error },
    /// The file cannot be opened.
    #[error("failed to open the journal {}", path.display())]
    Open { path: PathBuf, source: rusqlite::Error },
    /// The file is a database of something else.
    #[error(
        "{} is a database, but not a journal of rljob (application id {application_id})",
        path.display()
    )]
    NotAJournal {
        path: PathBuf,
        /// Value of `application_id`.
        application_id: i32,
    },
    /// The file is of another release.
    #[error("the journal {} has schema version {found}, this release reads {expected}: use the \
        release that wrote it", path.display())]
    SchemaVersion {
        path: PathBuf,
        /// Its version.
        found: i32,
        /// The version that is understood.
        expected: i32,
    },
    /// The batch that the position was for is fixed and this sample is not in it.
    #[error(
        "positions below {next_position} are used up: sample {index} of position {position} \
            comes too late"
    )]
    Fixed {
        /// The first position that is not.
        next_position: u64,
        /// The sample's loader position.
        position: u64,
        /// Its index in the group.
        index: u32,
    },
    /// Batches are fixed in order, without gaps.
    #[error("the batch of step {step} cannot be fixed: the newest fixed one is of step {last}")]
    OutOfOrder {
        step: u32,
        /// The newest fixed step.
        last: u32,
    },
    /// A fixed batch is not whole any more.
    #[error(
        "the journal holds {found} of the {expected} samples of step {step}: they were pruned, \
            since a newer checkpoint was kept"
    )]
    Pruned {
        step: u32,
        /// Samples there.
        found: u64,
        /// Number of samples of the batch.
        expected: u64,
    },
    /// The file is not what SQLite wrote.
    #[error("the journal {} is damaged: {detail}", path.display())]
    Damaged {
        path: PathBuf,
        /// First problem that SQLite found.
        detail: String,
    },
    /// A stored value cannot be read back.
    #[error("failed to read `{what}` from the journal")]
    Malformed {
        /// Table and column.
        what: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// SQLite failed.
    #[error("failed to {action} in the journal")]
    Sqlite {
        /// Verb of the operation.
        action: &'static str,
        source: rusqlite::Error,
    },
}

impl JournalError {
    /// Whether the file is damaged: every later call would fail as well.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::NotAJournal { .. } | Self::Malformed { .. } => true,
            Self::Open { source, .. } | Self::Sqlite { source, .. } => is_damage(source),
            _ => false,
        }
    }

    /// Whether the storage failed to write or read, so that a later call may succeed.
    pub fn is_of_storage(&self) -> bool {
        let (Self::Open { source, .. } | Self::Sqlite { source, .. }) = self else { return false };
        let code = source.sqlite_error_code();
        let codes = [
            ErrorCode::DiskFull,
            ErrorCode::SystemIoFailure,
            ErrorCode::ReadOnly,
            ErrorCode::PermissionDenied,
            ErrorCode::CannotOpen,
        ];
        code.is_some_and(|code| codes.contains(&code))
    }

    /// For `map_err` on SQLite's errors.
    pub(super) fn sqlite(action: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sqlite { action, source }
    }

    /// For `map_err` on whatever a stored value fails to parse with.
    pub(super) fn malformed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Malformed { what, source: source.into() }
    }
}

/// Whether SQLite found that the file is not what it wrote.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}
