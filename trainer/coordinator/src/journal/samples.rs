//! Samples and the batches that they make up.

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use super::{Journal, JournalError, Sample, blob};

const INSERT: &str = "INSERT INTO samples (step, position, sample_index, data_row, reward, finish_reason, prompt_text, completion_text,
        reward_components, versions, sampling, prompt_tokens, completion_tokens, sampler_logprobs)
    VALUES (:step, :position, :index, :row, :reward, :finish_reason, :prompt_text, :completion_text,
        :reward_components, :versions, :sampling, :prompt_tokens, :completion_tokens, :sampler_logprobs)
    ON CONFLICT DO NOTHING";

const SELECT: &str = "SELECT step, position, sample_index, data_row, reward, finish_reason, prompt_text, completion_text,
        reward_components, versions, sampling, prompt_tokens, completion_tokens, sampler_logprobs
    FROM samples WHERE step = ?1 ORDER BY position, sample_index";

impl Journal {
    /// Adds samples, all or none; one whose (step, position, index) is there already is left as it is. Returns how many are new.
    ///
    /// Fails with [`JournalError::Fixed`] if a new one belongs to a step whose batch is fixed.
    pub fn put_samples(&mut self, samples: &[Sample]) -> Result<usize, JournalError> {
        let failed = || JournalError::sqlite("write samples");
        let transaction = self.connection.transaction().map_err(failed())?;
        let mut new = 0;
        for sample in samples {
            if insert(&transaction, sample)? {
                if fixed_samples(&transaction, sample.step)?.is_some() {
                    return Err(JournalError::Fixed { step: sample.step, position: sample.position, index: sample.index });
                }
                new += 1;
            }
        }
        transaction.commit().map_err(failed())?;
        Ok(new)
    }

    /// A step's samples in canonical order: (position, index). Of a step that is not fixed, those that are there so far.
    ///
    /// Fails with [`JournalError::Pruned`] if the step's batch was fixed and is not whole any more.
    pub fn samples(&self, step: u32) -> Result<Vec<Sample>, JournalError> {
        let failed = || JournalError::sqlite("read samples");
        let mut statement = self.connection.prepare_cached(SELECT).map_err(failed())?;
        let mut rows = statement.query([step]).map_err(failed())?;
        let mut samples = Vec::new();
        while let Some(row) = rows.next().map_err(failed())? {
            samples.push(read(row)?);
        }
        match fixed_samples(&self.connection, step)? {
            Some(expected) if expected != samples.len() as u64 => Err(JournalError::Pruned { step, found: samples.len() as u64, expected }),
            _ => Ok(samples),
        }
    }

    /// Declares that the step's batch is the samples that are there now (none, for an algorithm that samples nothing). Again for the same step does nothing.
    ///
    /// Steps are fixed one after the other; in a new journal the first may be any. Fails with [`JournalError::OutOfOrder`] otherwise.
    pub fn fix_batch(&mut self, step: u32) -> Result<(), JournalError> {
        let last = self.last_fixed_step()?;
        if self.is_fixed(step)? {
            return Ok(());
        }
        if step == 0 || (last != 0 && step != last + 1) {
            return Err(JournalError::OutOfOrder { step, last });
        }
        let sql = "INSERT INTO batches (step, samples) SELECT ?1, count(*) FROM samples WHERE step = ?1";
        self.connection.execute(sql, [step]).map_err(JournalError::sqlite("fix a batch"))?;
        Ok(())
    }

    /// Whether the step's batch is fixed.
    pub fn is_fixed(&self, step: u32) -> Result<bool, JournalError> {
        Ok(fixed_samples(&self.connection, step)?.is_some())
    }

    /// The newest step whose batch is fixed; 0 if none is.
    pub fn last_fixed_step(&self) -> Result<u32, JournalError> {
        let sql = "SELECT coalesce(max(step), 0) FROM batches";
        self.connection.query_row(sql, [], |row| row.get(0)).map_err(JournalError::sqlite("read the newest batch"))
    }

    /// Removes the samples of fixed steps up to and including `step`: those that no kept checkpoint needs, if it is the oldest one's step. Returns how many.
    pub fn prune_through(&mut self, step: u32) -> Result<usize, JournalError> {
        let sql = "DELETE FROM samples WHERE step <= ?1 AND step IN (SELECT step FROM batches)";
        self.connection.execute(sql, [step]).map_err(JournalError::sqlite("prune samples"))
    }
}

fn fixed_samples(connection: &rusqlite::Connection, step: u32) -> Result<Option<u64>, JournalError> {
    let mut statement = connection.prepare_cached("SELECT samples FROM batches WHERE step = ?1").map_err(JournalError::sqlite("read a batch"))?;
    statement.query_row([step], |row| row.get(0)).optional().map_err(JournalError::sqlite("read a batch"))
}

/// Whether the sample is new.
fn insert(transaction: &Transaction<'_>, sample: &Sample) -> Result<bool, JournalError> {
    let mut statement = transaction.prepare_cached(INSERT).map_err(JournalError::sqlite("write samples"))?;
    let versions = serde_json::to_string(&sample.versions).map_err(JournalError::malformed("samples.versions"))?;
    let components = serde_json::to_string(&sample.reward_components).map_err(JournalError::malformed("samples.reward_components"))?;
    let rows = statement.execute(named_params! {
        ":step": sample.step,
        ":position": sample.position,
        ":index": sample.index,
        ":row": sample.row,
        ":reward": sample.reward,
        ":finish_reason": sample.finish_reason,
        ":prompt_text": sample.prompt_text,
        ":completion_text": sample.completion_text,
        ":reward_components": components,
        ":versions": versions,
        ":sampling": sample.sampling.to_string(),
        ":prompt_tokens": blob::from_tokens(&sample.prompt_tokens),
        ":completion_tokens": blob::from_tokens(&sample.completion_tokens),
        ":sampler_logprobs": blob::from_logprobs(&sample.sampler_logprobs),
    });
    Ok(rows.map_err(JournalError::sqlite("write samples"))? == 1)
}

fn read(row: &Row<'_>) -> Result<Sample, JournalError> {
    let failed = || JournalError::sqlite("read samples");
    let text = |column: &str| row.get::<_, String>(column).map_err(failed());
    let bytes = |column: &str| row.get::<_, Vec<u8>>(column).map_err(failed());
    Ok(Sample {
        step: row.get("step").map_err(failed())?,
        position: row.get("position").map_err(failed())?,
        index: row.get("sample_index").map_err(failed())?,
        row: row.get("data_row").map_err(failed())?,
        prompt_tokens: blob::to_tokens(&bytes("prompt_tokens")?).map_err(JournalError::malformed("samples.prompt_tokens"))?,
        completion_tokens: blob::to_tokens(&bytes("completion_tokens")?).map_err(JournalError::malformed("samples.completion_tokens"))?,
        sampler_logprobs: blob::to_logprobs(&bytes("sampler_logprobs")?).map_err(JournalError::malformed("samples.sampler_logprobs"))?,
        versions: serde_json::from_str(&text("versions")?).map_err(JournalError::malformed("samples.versions"))?,
        finish_reason: text("finish_reason")?,
        sampling: serde_json::from_str(&text("sampling")?).map_err(JournalError::malformed("samples.sampling"))?,
        reward: row.get("reward").map_err(failed())?,
        reward_components: serde_json::from_str(&text("reward_components")?).map_err(JournalError::malformed("samples.reward_components"))?,
        prompt_text: text("prompt_text")?,
        completion_text: text("completion_text")?,
    })
}
