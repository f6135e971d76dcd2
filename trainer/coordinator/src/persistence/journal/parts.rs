//! Parts of a journal as files, from which it can be put together again elsewhere: the rows that
//! changed since the last part, or all of them; and a batch's samples.
//!
//! A part is a SQLite database with some of the journal's rows; its table `gone_T` has the keys of
//! rows that were removed from `T`. Samples of no batch are in no part: they are made again.

use std::path::Path;

use rusqlite::params;

use super::migrate::{self, PREVIOUS_VERSION};
use super::open::{APPLICATION_ID, SCHEMA_VERSION};
use super::{Journal, JournalError};

/// Tables whose changes are recorded, with their keys.
const FOLLOWED: [(&str, &str); 10] = [
    ("batches", "step"),
    ("rejections", "step"),
    ("passed_over", "step, position"),
    ("inferred", "step"),
    ("pass_rates", "position"),
    ("steps", "step"),
    ("evaluations", "step"),
    ("checkpoints", "step, attempt"),
    ("events", "id"),
    ("state", "key"),
];
/// The newest events that a whole copy has.
const EVENTS: u32 = 1000;
/// Prefix of the keys of sample objects of batches.
const SAMPLES_KEY: &str = "samples/";

impl Journal {
    /// Starts to record changed rows.
    pub fn follow(&mut self) -> Result<(), JournalError> {
        let follow = |(table, keys): (&str, &str)| {
            let values = |row: &str| {
                keys.split(", ").map(|key| format!("{row}.{key}")).collect::<Vec<_>>().join(", ")
            };
            let trigger = |event: &str, row: &str| {
                format!(
                    "CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN \
                        INSERT INTO changed_{table} VALUES ({}); END;",
                    values(row)
                )
            };
            let triggers = [("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")]
                .map(|(event, row)| trigger(event, row))
                .concat();
            format!(
                "CREATE TEMP TABLE changed_{table} AS SELECT {keys} FROM main.{table} WHERE 0; \
                    {triggers}"
            )
        };
        let sql = format!("PRAGMA temp_store = MEMORY; {}", FOLLOWED.map(follow).concat());
        self.connection.execute_batch(&sql).map_err(JournalError::sqlite("follow changes"))
    }

    /// Whether rows changed since the last part.
    pub fn has_changed(&self) -> Result<bool, JournalError> {
        let any = FOLLOWED
            .map(|(table, _)| format!("EXISTS (SELECT 1 FROM temp.changed_{table})"))
            .join(" OR ");
        let mut statement = self
            .connection
            .prepare_cached(&format!("SELECT {any}"))
            .map_err(JournalError::sqlite("look for changes"))?;
        statement.query_row([], |row| row.get(0)).map_err(JournalError::sqlite("look for changes"))
    }

    /// Steps with samples whose batch was fixed since the last part.
    pub fn new_batches(&self) -> Result<Vec<u32>, JournalError> {
        let failed = || JournalError::sqlite("look for new batches");
        let sql = "SELECT step FROM batches WHERE step IN (SELECT step FROM \
            temp.changed_batches) AND samples > 0 ORDER BY step";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed())?;
        statement
            .query_map([], |row| row.get(0))
            .map_err(failed())?
            .collect::<Result<_, _>>()
            .map_err(failed())
    }

    /// Writes the rows that changed since the last part, or all of them, to a new file.
    pub fn write_part(&mut self, path: &Path, whole: bool) -> Result<(), JournalError> {
        let rows = |(table, keys): (&str, &str)| {
            let rows = match (whole, table) {
                (true, "events") => {
                    format!("WHERE id > (SELECT max(id) FROM main.events) - {EVENTS}")
                }
                (true, _) => String::new(),
                (false, _) => {
                    format!("WHERE ({keys}) IN (SELECT {keys} FROM temp.changed_{table})")
                }
            };
            let gone = format!(
                "SELECT {keys} FROM temp.changed_{table} WHERE ({keys}) NOT IN (SELECT {keys} \
                    FROM main.{table})"
            );
            let gone = if whole {
                String::new()
            } else {
                format!("CREATE TABLE part.gone_{table} AS {gone};")
            };
            format!(
                "CREATE TABLE part.{table} AS SELECT * FROM main.{table} {rows}; {gone} DELETE \
                    FROM temp.changed_{table};"
            )
        };
        self.write(path, &FOLLOWED.map(rows).concat())
    }

    /// Writes a fixed step's samples to a new file.
    pub fn write_samples(&mut self, step: u32, path: &Path) -> Result<(), JournalError> {
        self.write(
            path,
            &format!(
                "CREATE TABLE part.samples AS SELECT * FROM main.samples WHERE step = {step};"
            ),
        )
    }

    /// Takes over the rows of a part.
    pub fn read_part(&mut self, path: &Path) -> Result<(), JournalError> {
        self.attached(path, |journal| {
            let failed = || JournalError::sqlite("read a part");
            let pragma = |name| {
                journal
                    .connection
                    .pragma_query_value(Some("part"), name, |row| row.get::<_, i32>(0))
                    .map_err(failed())
            };
            let (application_id, version) = (pragma("application_id")?, pragma("user_version")?);
            if application_id != APPLICATION_ID {
                return Err(JournalError::NotAJournal { path: path.to_owned(), application_id });
            }
            if ![PREVIOUS_VERSION, SCHEMA_VERSION].contains(&version) {
                return Err(JournalError::SchemaVersion {
                    path: path.to_owned(),
                    found: version,
                    expected: SCHEMA_VERSION,
                });
            }
            let transaction = journal.connection.transaction().map_err(failed())?;
            let has = |table: &str| {
                transaction
                    .query_row(
                        "SELECT count(*) FROM part.sqlite_schema WHERE name = ?1",
                        [table],
                        |row| row.get::<_, u32>(0),
                    )
                    .map_err(failed())
            };
            for (table, keys) in FOLLOWED.into_iter().chain([("samples", "")]) {
                if has(&format!("gone_{table}"))? > 0 {
                    let sql = format!(
                        "DELETE FROM main.{table} WHERE ({keys}) IN (SELECT \
                        {keys} FROM part.gone_{table})"
                    );
                    transaction.execute(&sql, []).map_err(failed())?;
                }
                if table == "samples" && version == PREVIOUS_VERSION && has(table)? > 0 {
                    migrate::copy_samples(&transaction, "part.samples")?;
                } else if has(table)? > 0 {
                    transaction
                        .execute(
                            &format!(
                                "INSERT OR REPLACE INTO main.{table} SELECT * \
                        FROM part.{table}"
                            ),
                            [],
                        )
                        .map_err(failed())?;
                }
            }
            transaction.commit().map_err(failed())
        })
    }

    /// Sample objects of fixed steps.
    pub fn sample_objects(&self) -> Result<Vec<(u32, serde_json::Value)>, JournalError> {
        let failed = || JournalError::sqlite("read where samples are");
        let sql = "SELECT CAST(substr(key, 1 + length(?1)) AS INTEGER), value FROM state WHERE \
            key LIKE ?1 || '%' ORDER BY 1";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed())?;
        let rows: Vec<(u32, String)> = statement
            .query_map([SAMPLES_KEY], |row| row.try_into())
            .map_err(failed())?
            .collect::<Result<_, _>>()
            .map_err(failed())?;
        rows.into_iter()
            .map(|(step, text)| {
                Ok((
                    step,
                    serde_json::from_str(&text).map_err(JournalError::malformed("state.value"))?,
                ))
            })
            .collect()
    }

    /// Notes where the samples of a fixed step are kept elsewhere.
    pub fn put_sample_object(
        &mut self,
        step: u32,
        object: &serde_json::Value,
    ) -> Result<(), JournalError> {
        self.put_state(&format!("{SAMPLES_KEY}{step}"), object)
    }

    /// Forgets where samples of steps up to `step` are.
    pub(super) fn drop_sample_objects(&mut self, step: u32) -> Result<(), JournalError> {
        let sql = "DELETE FROM state WHERE key LIKE ?1 || '%' AND CAST(substr(key, 1 + \
            length(?1)) AS INTEGER) <= ?2";
        self.connection
            .execute(sql, params![SAMPLES_KEY, step])
            .map_err(JournalError::sqlite("forget where samples are"))?;
        Ok(())
    }

    fn write(&mut self, path: &Path, sql: &str) -> Result<(), JournalError> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(JournalError::Malformed { what: "part", source: error.into() });
            }
            _ => {}
        }
        self.attached(path, |journal| {
            // The file is read at once and not used after a crash, so it is not synced.
            let pragmas = format!(
                "PRAGMA part.page_size = 1024; PRAGMA part.journal_mode = OFF;
                PRAGMA part.synchronous = OFF; PRAGMA part.application_id = {APPLICATION_ID};
                PRAGMA part.user_version = {SCHEMA_VERSION};"
            );
            let failed = || JournalError::sqlite("write a part");
            journal.connection.execute_batch(&pragmas).map_err(failed())?;
            let transaction = journal.connection.transaction().map_err(failed())?;
            transaction.execute_batch(sql).map_err(failed())?;
            transaction.commit().map_err(failed())
        })
    }

    fn attached(
        &mut self,
        path: &Path,
        call: impl FnOnce(&mut Self) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let failed = || JournalError::sqlite("open a part");
        let Some(text) = path.to_str() else {
            return Err(JournalError::Malformed {
                what: "part",
                source: format!("{} is not UTF-8", path.display()).into(),
            });
        };
        self.connection.execute("ATTACH ?1 AS part", [text]).map_err(failed())?;
        let result = call(self);
        self.connection.execute("DETACH part", []).map_err(failed())?;
        result
    }
}

#[cfg(test)]
mod tests;
