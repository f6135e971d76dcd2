//! Steps done, evaluations, checkpoints, events and single values.

use jiff::Timestamp;
use rljob_protocol::status::{EvaluationMetrics, StepMetrics};
use rljob_protocol::version::Version;
use rusqlite::{OptionalExtension, params};
use serde::de::DeserializeOwned;

use super::{Checkpoint, Event, Journal, JournalError};

impl Journal {
    /// Records that a step is done. False if it was before (a replay after a restore): the first
    /// report stays.
    pub fn report_step(&mut self, metrics: &StepMetrics) -> Result<bool, JournalError> {
        let json =
            serde_json::to_string(metrics).map_err(JournalError::malformed("steps.metrics"))?;
        let sql =
            "INSERT INTO steps (step, attempt, metrics) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
        let rows = self
            .connection
            .execute(sql, params![metrics.step, metrics.attempt, json])
            .map_err(JournalError::sqlite("record a step"))?;
        self.bound_steps(metrics.step)?;
        Ok(rows == 1)
    }

    /// The newest step reported; 0 if none was.
    pub fn last_step(&self) -> Result<u32, JournalError> {
        let sql = "SELECT coalesce(max(step), 0) FROM steps";
        self.connection
            .query_row(sql, [], |row| row.get(0))
            .map_err(JournalError::sqlite("read the newest step"))
    }

    /// A step's numbers as first reported; `None` for old steps ([`super::history`]).
    pub fn metrics(&self, step: u32) -> Result<Option<StepMetrics>, JournalError> {
        self.json("SELECT metrics FROM steps WHERE step = ?1", step, "steps.metrics")
    }

    /// Records an evaluation. False if the step has one: the first stays.
    pub fn put_evaluation(&mut self, metrics: &EvaluationMetrics) -> Result<bool, JournalError> {
        let json = serde_json::to_string(metrics)
            .map_err(JournalError::malformed("evaluations.metrics"))?;
        let sql = "INSERT INTO evaluations (step, metrics) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        let rows = self
            .connection
            .execute(sql, params![metrics.step, json])
            .map_err(JournalError::sqlite("record an evaluation"))?;
        Ok(rows == 1)
    }

    /// Evaluation after `step` steps.
    pub fn evaluation(&self, step: u32) -> Result<Option<EvaluationMetrics>, JournalError> {
        self.json("SELECT metrics FROM evaluations WHERE step = ?1", step, "evaluations.metrics")
    }

    /// Steps with an evaluation.
    pub fn evaluated_steps(&self) -> Result<std::collections::BTreeSet<u32>, JournalError> {
        let failed = || JournalError::sqlite("read the evaluations");
        let mut statement =
            self.connection.prepare_cached("SELECT step FROM evaluations").map_err(failed())?;
        statement
            .query_map([], |row| row.get(0))
            .map_err(failed())?
            .collect::<Result<_, _>>()
            .map_err(failed())
    }

    /// The newest evaluation, with the newest numbers of suites that it lacks.
    pub fn last_evaluation(&self) -> Result<Option<EvaluationMetrics>, JournalError> {
        let mut newest = None;
        for step in self.evaluated_steps()? {
            newest = self.evaluation(step)?.map(|own| own.after(newest.as_ref())).or(newest);
        }
        Ok(newest)
    }

    /// Records a complete checkpoint; again for the same version replaces its folder.
    pub fn put_checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), JournalError> {
        let sql = "INSERT INTO checkpoints (step, attempt, path) VALUES (?1, ?2, ?3) ON \
            CONFLICT DO UPDATE SET path = excluded.path";
        let Some(path) = checkpoint.path.to_str() else {
            return Err(JournalError::Malformed {
                what: "checkpoints.path",
                source: format!("{} is not UTF-8", checkpoint.path.display()).into(),
            });
        };
        let Version { step, attempt } = checkpoint.version;
        self.connection
            .execute(sql, params![step, attempt, path])
            .map_err(JournalError::sqlite("record a checkpoint"))?;
        Ok(())
    }

    /// The checkpoints that are kept, by step and attempt: the newest last.
    pub fn checkpoints(&self) -> Result<Vec<Checkpoint>, JournalError> {
        let failed = || JournalError::sqlite("read the checkpoints");
        let mut statement = self
            .connection
            .prepare_cached("SELECT step, attempt, path FROM checkpoints ORDER BY step, attempt")
            .map_err(failed())?;
        let rows = statement.query_map([], |row| {
            let version = Version { step: row.get(0)?, attempt: row.get(1)? };
            Ok(Checkpoint { version, path: row.get::<_, String>(2)?.into() })
        });
        rows.map_err(failed())?.collect::<Result<_, _>>().map_err(failed())
    }

    /// Forgets a checkpoint; its folder is the caller's to remove, afterwards.
    pub fn drop_checkpoint(&mut self, version: Version) -> Result<(), JournalError> {
        let sql = "DELETE FROM checkpoints WHERE step = ?1 AND attempt = ?2";
        self.connection
            .execute(sql, [version.step, version.attempt])
            .map_err(JournalError::sqlite("forget a checkpoint"))?;
        Ok(())
    }

    /// Adds to the audit trail, whose oldest events are removed.
    pub fn put_event(&mut self, event: &Event) -> Result<(), JournalError> {
        let sql = "INSERT INTO events (at, kind, detail) VALUES (?1, ?2, ?3)";
        let values = params![event.at.to_string(), event.kind, event.detail.to_string()];
        self.connection.execute(sql, values).map_err(JournalError::sqlite("record an event"))?;
        self.bound_events(self.connection.last_insert_rowid())
    }

    /// The newest `limit` events, oldest first.
    pub fn events(&self, limit: u32) -> Result<Vec<Event>, JournalError> {
        let failed = || JournalError::sqlite("read events");
        let sql = "SELECT at, kind, detail FROM (SELECT * FROM events ORDER BY id DESC LIMIT \
            ?1) ORDER BY id";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed())?;
        let mut rows = statement.query([limit]).map_err(failed())?;
        let mut events = Vec::new();
        while let Some(row) = rows.next().map_err(failed())? {
            let (at, kind, detail): (String, String, String) = row.try_into().map_err(failed())?;
            let at: Timestamp = at.parse().map_err(JournalError::malformed("events.at"))?;
            events.push(Event {
                at,
                kind,
                detail: serde_json::from_str(&detail)
                    .map_err(JournalError::malformed("events.detail"))?,
            });
        }
        Ok(events)
    }

    /// Sets a single value.
    pub fn put_state(&mut self, key: &str, value: &serde_json::Value) -> Result<(), JournalError> {
        let sql = "INSERT INTO state (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET \
            value = excluded.value";
        self.connection
            .execute(sql, params![key, value.to_string()])
            .map_err(JournalError::sqlite("record state"))?;
        Ok(())
    }

    /// A single value.
    pub fn get_state(&self, key: &str) -> Result<Option<serde_json::Value>, JournalError> {
        self.json("SELECT value FROM state WHERE key = ?1", key, "state.value")
    }

    fn json<T: DeserializeOwned>(
        &self,
        sql: &str,
        key: impl rusqlite::ToSql,
        what: &'static str,
    ) -> Result<Option<T>, JournalError> {
        let row = self.connection.query_row(sql, [key], |row| row.get::<_, String>(0)).optional();
        let text = row.map_err(JournalError::sqlite("read a value"))?;
        text.map(|text| serde_json::from_str(&text).map_err(JournalError::malformed(what)))
            .transpose()
    }
}
