//! Log-probabilities of batches under the frozen models of `trainer.groups`.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, params};

use super::{Journal, JournalError, blob};

/// What a group inferred of a step's batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Inferred {
    /// Seconds of the slowest rank.
    pub seconds: f64,
    /// One log-probability for each trained token of the batch, sample by sample.
    pub logprobs: Vec<f32>,
}

impl Journal {
    /// Stores what a group inferred of a step. The first result of a step is kept, so that a replay
    /// gets the same bytes.
    pub fn put_inferred(&mut self, step: u32, inferred: &Inferred) -> Result<(), JournalError> {
        let sql = "INSERT OR IGNORE INTO inferred (step, seconds, logprobs) VALUES (?1, ?2, ?3)";
        let values = params![step, inferred.seconds, blob::from_logprobs(&inferred.logprobs)];
        let stored = self.connection.execute(sql, values);
        stored.map(drop).map_err(JournalError::sqlite("store what a group inferred"))
    }

    /// What a group inferred of a step; `None` if it has not, or if no kept checkpoint needs it.
    pub fn inferred(&self, step: u32) -> Result<Option<Inferred>, JournalError> {
        let sql = "SELECT seconds, logprobs FROM inferred WHERE step = ?1";
        let row = self.connection.query_row(sql, [step], |row| row.try_into()).optional();
        let row: Option<(f64, Vec<u8>)> =
            row.map_err(JournalError::sqlite("read what a group inferred"))?;
        let Some((seconds, bytes)) = row else { return Ok(None) };
        let logprobs =
            blob::to_logprobs(&bytes).map_err(JournalError::malformed("inferred.logprobs"))?;
        Ok(Some(Inferred { seconds, logprobs }))
    }

    /// Steps of which [`Self::inferred`] has a result.
    pub fn inferred_steps(&self) -> Result<BTreeSet<u32>, JournalError> {
        let failed = || JournalError::sqlite("read what a group inferred");
        let sql = "SELECT step FROM inferred";
        let mut statement = self.connection.prepare(sql).map_err(failed())?;
        let steps = statement.query_map([], |row| row.get(0)).map_err(failed())?;
        steps.collect::<Result<_, _>>().map_err(failed())
    }
}

#[cfg(test)]
mod tests {
    use super::super::FixedBatch;
    use super::*;

    #[test]
    fn the_first_result_of_a_step_is_kept_until_no_checkpoint_needs_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&folder.path().join("journal.sqlite")).unwrap();
        let result = |logprob| Inferred { seconds: 0.5, logprobs: vec![logprob, -0.0] };
        for step in 1..=3 {
            journal.fix_batch(&FixedBatch { step, ..FixedBatch::default() }).unwrap();
            journal.put_inferred(step, &result(-1.5)).unwrap();
        }
        journal.put_inferred(2, &result(-9.0)).unwrap();
        assert_eq!(journal.inferred(2).unwrap(), Some(result(-1.5)));
        assert_eq!(journal.inferred(4).unwrap(), None);
        journal.prune_through(1).unwrap();
        assert_eq!(journal.inferred_steps().unwrap(), [2, 3].into());
    }
}
