//! Rollback to a checkpoint: removes what the journal has of later steps, in one transaction.

use rljob_protocol::version::Version;
use rusqlite::{Connection, params};
use serde_json::Value;

use super::{Event, Journal, JournalError};

/// Condition of a row whose position the batches up to step ?1 have not used up.
const LATER: &str = "(position >= (SELECT next_position FROM batches WHERE step = ?1) OR \
    position IN (SELECT position FROM passed_over WHERE step = ?1))";

/// What the journal has after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Later {
    /// Newest reported step; at most the step itself if none is later.
    pub last_step: u32,
    /// Fixed batches.
    pub batches: u64,
    /// Samples of later batches, and pending ones.
    pub samples: u64,
    /// Pass rates of a curriculum.
    pub pass_rates: u64,
    /// Evaluations.
    pub evaluations: u64,
}

impl Journal {
    /// Counts what [`Self::roll_back`] to a step would remove; `None` if the journal does not have
    /// the step's batch, after which the data would continue.
    pub fn later(&self, step: u32) -> Result<Option<Later>, JournalError> {
        if !self.is_fixed(step)? {
            return Ok(None);
        }
        let count = |table: &str, later: &str| {
            let sql = format!("SELECT count(*) FROM {table} WHERE {later}");
            let counted = self.connection.query_row(&sql, [step], |row| row.get(0));
            counted.map_err(JournalError::sqlite("count later records"))
        };
        Ok(Some(Later {
            last_step: self.last_step()?,
            batches: count("batches", "step > ?1")?,
            samples: count("samples", LATER)?,
            pass_rates: count("pass_rates", LATER)?,
            evaluations: count("evaluations", "step > ?1")?,
        }))
    }

    /// Removes steps, batches, samples and evaluations after the step of `version`, and checkpoints
    /// after it; sets the `states`, of which null values are removed, and adds the event.
    ///
    /// Pass rates that later groups superseded are lost: the caller does not roll back beyond them.
    pub fn roll_back(
        &mut self,
        version: Version,
        states: &[(&str, Value)],
        event: &Event,
    ) -> Result<(), JournalError> {
        let failed = || JournalError::sqlite("roll back");
        let transaction = self.connection.transaction().map_err(failed())?;
        remove(&transaction, version).map_err(failed())?;
        for (key, value) in states {
            match value {
                Value::Null => transaction.execute("DELETE FROM state WHERE key = ?1", [key]),
                value => transaction.execute(
                    "INSERT OR REPLACE INTO state (key, value) VALUES (?1, ?2)",
                    params![key, value.to_string()],
                ),
            }
            .map_err(failed())?;
        }
        let sql = "INSERT INTO events (at, kind, detail) VALUES (?1, ?2, ?3)";
        let values = params![event.at.to_string(), event.kind, event.detail.to_string()];
        transaction.execute(sql, values).map_err(failed())?;
        transaction.commit().map_err(failed())
    }
}

fn remove(connection: &Connection, version: Version) -> Result<(), rusqlite::Error> {
    let Version { step, attempt } = version;
    for table in ["samples", "pass_rates"] {
        connection.execute(&format!("DELETE FROM {table} WHERE {LATER}"), [step])?;
    }
    let of_steps = ["batches", "rejections", "passed_over", "inferred", "steps", "evaluations"];
    for table in of_steps {
        connection.execute(&format!("DELETE FROM {table} WHERE step > ?1"), [step])?;
    }
    let sql = "DELETE FROM checkpoints WHERE (step, attempt) > (?1, ?2)";
    connection.execute(sql, [step, attempt])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rljob_protocol::status::{EvaluationMetrics, StepMetrics};
    use serde_json::json;

    use super::super::tests::sample;
    use super::super::{Checkpoint, FixedBatch, Rejections};
    use super::*;

    #[test]
    fn later_steps_are_removed_and_earlier_ones_are_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&folder.path().join("journal.sqlite")).unwrap();
        let version = |step, attempt| Version { step, attempt };
        journal.put_samples(&[0, 1, 2, 3, 4, 5].map(|position| sample(position, 0))).unwrap();
        // Position 1 was dropped; 4 and 5 are pending.
        for (step, positions, next_position) in [(1, vec![0], 2), (2, vec![2], 3), (3, vec![3], 4)]
        {
            let rejections = Rejections { samples: step, groups: 0 };
            let others = FixedBatch::default();
            let batch = FixedBatch { step, positions, next_position, rejections, ..others };
            journal.fix_batch(&batch).unwrap();
            journal.report_step(&StepMetrics::with_scalars(step, [("loss", 0.5)])).unwrap();
            let evaluation = EvaluationMetrics { step, ..EvaluationMetrics::default() };
            journal.put_evaluation(&evaluation).unwrap();
        }
        for version in [version(1, 0), version(2, 0), version(2, 1), version(3, 1)] {
            let path = version.to_string().into();
            journal.put_checkpoint(&Checkpoint { version, path }).unwrap();
        }
        journal.put_state("mlflow", &json!("key")).unwrap();
        assert_eq!(journal.later(4).unwrap(), None);
        let later = Later { last_step: 3, batches: 1, samples: 3, pass_rates: 0, evaluations: 1 };
        assert_eq!(journal.later(2).unwrap(), Some(later));

        let kept = journal.samples(2).unwrap();
        let event =
            Event { at: Timestamp::UNIX_EPOCH, kind: "RolledBack".into(), detail: 1.into() };
        let states = [("run", json!({"attempt": 2})), ("mlflow", Value::Null)];
        journal.roll_back(version(2, 0), &states, &event).unwrap();
        assert_eq!(journal.later(2).unwrap(), Some(Later { last_step: 2, ..Later::default() }));
        assert_eq!(journal.newest_batch().unwrap(), (2, 3));
        assert_eq!((journal.samples(2).unwrap(), journal.pending().unwrap()), (kept, vec![]));
        assert_eq!(journal.samples(1).unwrap().len(), 1);
        let rejected = [2, 3].map(|step| journal.rejections(step).unwrap().samples);
        assert_eq!(rejected, [2, 0]);
        assert_eq!(journal.evaluated_steps().unwrap(), [1, 2].into());
        let left = journal.checkpoints().unwrap().into_iter().map(|checkpoint| checkpoint.version);
        assert_eq!(left.collect::<Vec<_>>(), [version(1, 0), version(2, 0)]);
        assert_eq!(journal.get_state("run").unwrap(), Some(json!({"attempt": 2})));
        assert_eq!(journal.get_state("mlflow").unwrap(), None);
        assert_eq!(journal.events(9).unwrap(), [event]);
        let again =
            FixedBatch { step: 3, positions: vec![3], next_position: 4, ..FixedBatch::default() };
        journal.put_samples(&[sample(3, 0)]).unwrap();
        journal.fix_batch(&again).unwrap();
        assert_eq!(journal.samples(3).unwrap().len(), 1);
    }
}
