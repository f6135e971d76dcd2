//! The batches that samples make up.

use rusqlite::{OptionalExtension, params};

use super::{DataPosition, FixedBatch, Journal, JournalError, Rejections, pass_rates};

impl Journal {
    /// Declares that the step's batch is the samples that are there at its positions. Again for the
    /// same step does nothing.
    ///
    /// Steps are fixed one after the other; in a new journal the first may be any. Fails with
    /// [`JournalError::OutOfOrder`] otherwise.
    pub fn fix_batch(&mut self, batch: &FixedBatch) -> Result<(), JournalError> {
        let failed = || JournalError::sqlite("fix a batch");
        let (last, _) = self.newest_batch()?;
        let step = batch.step;
        if self.is_fixed(step)? {
            return Ok(());
        }
        if step == 0 || (last != 0 && step != last.saturating_add(1)) {
            return Err(JournalError::OutOfOrder { step, last });
        }
        let transaction = self.connection.transaction().map_err(failed())?;
        let mut samples = 0_usize;
        for position in &batch.positions {
            let mut statement = transaction
                .prepare_cached("UPDATE samples SET step = ?1 WHERE position = ?2")
                .map_err(failed())?;
            let pruned = statement.execute(params![step, position]).map_err(failed())?;
            samples = samples.saturating_add(pruned);
        }
        let sql = "INSERT INTO batches (step, samples, next_position, dropped_groups, \
            stale_samples) VALUES (?1, ?2, ?3, ?4, ?5)";
        let values =
            params![step, samples, batch.next_position, batch.dropped_groups, batch.stale_samples];
        transaction.execute(sql, values).map_err(failed())?;
        if batch.rejections != Rejections::default() {
            let Rejections { samples, groups } = batch.rejections;
            let sql = "INSERT INTO rejections (step, samples, groups) VALUES (?1, ?2, ?3)";
            transaction.execute(sql, params![step, samples, groups]).map_err(failed())?;
        }
        for position in &batch.passed_over {
            transaction
                .prepare_cached("INSERT INTO passed_over (step, position) VALUES (?1, ?2)")
                .and_then(|mut statement| statement.execute(params![step, position]))
                .map_err(failed())?;
        }
        pass_rates::change(&transaction, &batch.pass_rates, &batch.superseded_pass_rates)?;
        transaction.commit().map_err(failed())
    }

    /// Whether the step's batch is fixed.
    pub fn is_fixed(&self, step: u32) -> Result<bool, JournalError> {
        Ok(self.samples_in(step)?.is_some())
    }

    /// The newest step whose batch is fixed and the first position after all that are used up; 0
    /// and 0 if none is.
    pub fn newest_batch(&self) -> Result<(u32, u64), JournalError> {
        let sql = "SELECT step, next_position FROM batches ORDER BY step DESC LIMIT 1";
        let newest = self.connection.query_row(sql, [], |row| row.try_into()).optional();
        Ok(newest.map_err(JournalError::sqlite("read the newest batch"))?.unwrap_or_default())
    }

    /// The first loader position after all that the batches up to a step have used up; `None` if
    /// that step's batch is not in the journal.
    pub fn next_position(&self, step: u32) -> Result<Option<u64>, JournalError> {
        let sql = "SELECT next_position FROM batches WHERE step = ?1";
        let position = self.connection.query_row(sql, [step], |row| row.get(0)).optional();
        position.map_err(JournalError::sqlite("read a batch"))
    }

    /// Where the data continues after the batch of a step; `None` if it is not in the journal.
    pub fn data_position(&self, step: u32) -> Result<Option<DataPosition>, JournalError> {
        let Some(next_position) = self.next_position(step)? else { return Ok(None) };
        let failed = || JournalError::sqlite("read the positions that were passed over");
        let sql = "SELECT position FROM passed_over WHERE step = ?1 ORDER BY position";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed())?;
        let positions = statement.query_map([step], |row| row.get(0)).map_err(failed())?;
        let passed_over = positions.collect::<Result<_, _>>().map_err(failed())?;
        Ok(Some(DataPosition { next_position, passed_over }))
    }

    /// The newest step whose batch is fixed, and where the data continues after it.
    pub fn resume(&self) -> Result<(u32, DataPosition), JournalError> {
        let (step, _) = self.newest_batch()?;
        Ok((step, self.data_position(step)?.unwrap_or_default()))
    }

    /// Groups dropped and samples made again while a step's batch was sampled.
    pub fn left_out(&self, step: u32) -> Result<(u32, u32), JournalError> {
        let sql = "SELECT dropped_groups, stale_samples FROM batches WHERE step = ?1";
        let counts = self.connection.query_row(sql, [step], |row| row.try_into()).optional();
        Ok(counts.map_err(JournalError::sqlite("read a batch"))?.unwrap_or_default())
    }

    /// What was rejected while a step's batch was sampled.
    pub fn rejections(&self, step: u32) -> Result<Rejections, JournalError> {
        let sql = "SELECT samples, groups FROM rejections WHERE step = ?1";
        let counts = self.connection.query_row(sql, [step], |row| {
            Ok(Rejections { samples: row.get(0)?, groups: row.get(1)? })
        });
        let counts = counts.optional().map_err(JournalError::sqlite("read a batch"))?;
        Ok(counts.unwrap_or_default())
    }

    /// Loader positions that a step's batch used up without a group: those that a curriculum
    /// skipped. `None` if the journal does not have the batch before, as after a restore.
    pub fn skipped_positions(&self, step: u32) -> Result<Option<u32>, JournalError> {
        let before = match step.checked_sub(1) {
            Some(0) => Some(DataPosition::default()),
            Some(before) => self.data_position(before)?,
            None => None,
        };
        let (Some(before), Some(after)) = (before, self.data_position(step)?) else {
            return Ok(None);
        };
        let used_through =
            |data: DataPosition| data.next_position.saturating_sub(data.passed_over.len() as u64);
        let used_up = used_through(after).saturating_sub(used_through(before));
        let sql = "SELECT count(DISTINCT position) FROM samples WHERE step = ?1";
        let groups: u64 = self
            .connection
            .query_row(sql, [step], |row| row.get(0))
            .map_err(JournalError::sqlite("read a batch"))?;
        let (dropped, _) = self.left_out(step)?;
        Ok(Some(used_up.saturating_sub(groups.saturating_add(dropped.into())) as u32))
    }

    /// Removes the samples at positions that were used up by `step`, what groups inferred up to it,
    /// and what was passed over before: what no kept checkpoint needs, if it is the oldest one's
    /// step. Returns how many samples.
    pub fn prune_through(&mut self, step: u32) -> Result<usize, JournalError> {
        self.drop_sample_objects(step)?;
        let unused = self.connection.execute("DELETE FROM inferred WHERE step <= ?1", [step]);
        unused.map_err(JournalError::sqlite("prune what groups inferred"))?;
        let failed = || JournalError::sqlite("prune samples");
        let sql = "SELECT coalesce(max(step), 0) FROM batches WHERE step <= ?1";
        let newest: u32 =
            self.connection.query_row(sql, [step], |row| row.get(0)).map_err(failed())?;
        let unused = self.connection.execute("DELETE FROM passed_over WHERE step < ?1", [newest]);
        unused.map_err(failed())?;
        let sql = "DELETE FROM samples WHERE position < (SELECT next_position FROM batches WHERE \
            step = ?1) AND position NOT IN (SELECT position FROM passed_over WHERE step = ?1)";
        self.connection.execute(sql, [newest]).map_err(failed())
    }

    /// Samples that made up the step's batch; none if it is not fixed.
    pub(super) fn samples_in(&self, step: u32) -> Result<Option<u64>, JournalError> {
        let failed = || JournalError::sqlite("read a batch");
        let mut statement = self
            .connection
            .prepare_cached("SELECT samples FROM batches WHERE step = ?1")
            .map_err(failed())?;
        statement.query_row([step], |row| row.get(0)).optional().map_err(failed())
    }
}
