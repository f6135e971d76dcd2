//! Opening: lock, durability, schema.

use std::path::Path;

use rljob_storage::durable;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::error::is_damage;
use super::migrate::{self, PREVIOUS_VERSION};
use super::{Journal, JournalError};

/// `PRAGMA application_id` of a journal: `rljb` in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x726c_6a62;
/// Version of the tables in `schema.sql`.
pub(super) const SCHEMA_VERSION: i32 = 3;

const SCHEMA: &str = include_str!("schema.sql");

impl Journal {
    /// Opens a journal, or creates an empty one, and locks it until it is dropped. A journal of the
    /// previous schema version is migrated. The folder must exist.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let failed = |source: rusqlite::Error| match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                JournalError::Held { path: path.to_owned() }
            }
            _ if is_damage(&source) => {
                JournalError::Damaged { path: path.to_owned(), detail: source.to_string() }
            }
            _ => JournalError::Open { path: path.to_owned(), source },
        };
        let mut connection = Connection::open(path).map_err(failed)?;
        lock(&connection).map_err(failed)?;
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(failed)?;
        match identity(&transaction).map_err(failed)? {
            (0, 0, 0) => {
                create(&transaction).map_err(failed)?;
                durable::sync_parent(path)
                    .map_err(|source| JournalError::Create { path: path.to_owned(), source })?;
            }
            // Creates tables that were added to the version.
            (APPLICATION_ID, SCHEMA_VERSION, _) => {
                transaction.execute_batch(SCHEMA).map_err(failed)?;
            }
            (APPLICATION_ID, PREVIOUS_VERSION, _) => {
                migrate::migrate(&transaction, SCHEMA)?;
                let version = transaction.pragma_update(None, "user_version", SCHEMA_VERSION);
                version.map_err(failed)?;
                tracing::info!(
                    path = %path.display(),
                    from = PREVIOUS_VERSION,
                    to = SCHEMA_VERSION,
                    "migrated the journal"
                );
            }
            (APPLICATION_ID, found, _) => {
                return Err(JournalError::SchemaVersion {
                    path: path.to_owned(),
                    found,
                    expected: SCHEMA_VERSION,
                });
            }
            (application_id, _, _) => {
                return Err(JournalError::NotAJournal { path: path.to_owned(), application_id });
            }
        }
        transaction.commit().map_err(failed)?;
        Ok(Self { connection })
    }

    /// Checks the pages of the file, `path`, all of which are read.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] with the first problem.
    pub fn check(&self, path: &Path) -> Result<(), JournalError> {
        let damaged = |detail| JournalError::Damaged { path: path.to_owned(), detail };
        let check = self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
        match check {
            Ok(found) if found == "ok" => Ok(()),
            Ok(found) => Err(damaged(found)),
            Err(error) if is_damage(&error) => Err(damaged(error.to_string())),
            Err(error) => Err(JournalError::sqlite("check the pages")(error)),
        }
    }
}

/// The lock mode comes before the first access: then the write-ahead log needs no shared memory. A
/// dead holder's lock is gone with its process, so nothing is waited for.
fn lock(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(std::time::Duration::ZERO)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")
}

/// Application id, schema version, number of tables.
fn identity(transaction: &Transaction<'_>) -> Result<(i32, i32, i64), rusqlite::Error> {
    let pragma = |name| transaction.pragma_query_value(None, name, |row| row.get(0));
    let tables =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok((pragma("application_id")?, pragma("user_version")?, tables))
}

fn create(transaction: &Transaction<'_>) -> Result<(), rusqlite::Error> {
    transaction.execute_batch(SCHEMA)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)
}
