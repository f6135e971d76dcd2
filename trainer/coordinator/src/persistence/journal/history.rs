//! Bounds of tables that grow with the run: events, and metrics of steps that `metrics.jsonl` has
//! and no restart needs.

use super::{Journal, JournalError};

/// The newest events that are kept.
const EVENTS: i64 = 10_000;
/// Events between two removals of old ones.
const PRUNE_EVENTS_EVERY: i64 = 500;
/// The newest steps whose metrics are kept, at least.
const STEPS: u32 = 4_096;
/// Kept steps as a part of all: the copy of `metrics.jsonl` in a bucket lacks up to a sixteenth of
/// its lines, which a coordinator on another machine restores from the journal.
const STEPS_PART: u32 = 8;
/// Steps between two removals of old ones.
const PRUNE_STEPS_EVERY: u32 = 512;

impl Journal {
    /// Removes old events, after event `id` was added.
    pub(super) fn bound_events(&self, id: i64) -> Result<(), JournalError> {
        if id % PRUNE_EVENTS_EVERY != 0 {
            return Ok(());
        }
        self.connection
            .execute("DELETE FROM events WHERE id <= ?1", [id.saturating_sub(EVENTS)])
            .map_err(JournalError::sqlite("remove old events"))?;
        Ok(())
    }

    /// Removes the metrics of old steps, after `step` was done.
    pub(super) fn bound_steps(&self, step: u32) -> Result<(), JournalError> {
        if !step.is_multiple_of(PRUNE_STEPS_EVERY) {
            return Ok(());
        }
        let kept = STEPS.max(step / STEPS_PART);
        self.connection
            .execute("DELETE FROM steps WHERE step <= ?1", [step.saturating_sub(kept)])
            .map_err(JournalError::sqlite("remove metrics of old steps"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rljob_protocol::status::StepMetrics;

    use super::*;
    use crate::persistence::journal::Event;

    fn journal() -> (tempfile::TempDir, Journal) {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(&folder.path().join("journal.sqlite")).unwrap();
        journal.connection.pragma_update(None, "synchronous", "OFF").unwrap();
        (folder, journal)
    }

    fn count(journal: &Journal, table: &str) -> (u32, u32) {
        let key = if table == "events" { "id" } else { "step" };
        let sql = format!("SELECT count(*), min({key}) FROM {table}");
        journal.connection.query_row(&sql, [], |row| row.try_into()).unwrap()
    }

    #[test]
    fn the_newest_events_are_kept() {
        let (_folder, mut journal) = journal();
        let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < \
            99999) INSERT INTO events SELECT i, '2026-01-01T00:00:00Z', 'Old', '{}' FROM n";
        journal.connection.execute_batch(sql).unwrap();
        let event = Event { at: Timestamp::UNIX_EPOCH, kind: "New".to_owned(), detail: 1.into() };
        journal.put_event(&event).unwrap();
        assert_eq!(count(&journal, "events"), (10_000, 90_001));
        assert_eq!(journal.events(1).unwrap(), [event]);
    }

    #[test]
    fn metrics_of_the_newest_eighth_of_the_steps_are_kept() {
        let (_folder, mut journal) = journal();
        let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < \
            65535) INSERT INTO steps SELECT i, 0, '{}' FROM n";
        journal.connection.execute_batch(sql).unwrap();
        let done = |step| StepMetrics { step, ..StepMetrics::default() };
        assert!(journal.report_step(&done(65_536)).unwrap());
        assert_eq!(count(&journal, "steps"), (8_192, 57_345));
        assert_eq!(journal.last_step().unwrap(), 65_536);
        assert_eq!(journal.metrics(1).unwrap(), None);
    }
}
