//! Finished samples, by loader position.

use rusqlite::{Row, Transaction, named_params, params};

use super::{Journal, JournalError, Pending, Sample, VersionRun, blob};

const INSERT: &str = "INSERT INTO samples (position, sample_index, data_row, reward, finish_reason, prompt_text, completion_text,
        reward_components, versions, sampling, prompt_tokens, completion_tokens, sampler_logprobs)
    VALUES (:position, :index, :row, :reward, :finish_reason, :prompt_text, :completion_text,
        :reward_components, :versions, :sampling, :prompt_tokens, :completion_tokens, :sampler_logprobs)
    ON CONFLICT DO NOTHING";

const SELECT: &str =
    "SELECT position, sample_index, data_row, reward, finish_reason, prompt_text, completion_text,
        reward_components, versions, sampling, prompt_tokens, completion_tokens, sampler_logprobs
    FROM samples WHERE step = ?1 ORDER BY position, sample_index";

impl Journal {
    /// Adds samples, all or none; one whose (position, index) exists is unchanged.
    /// Returns how many are new.
    ///
    /// Fails with [`JournalError::Fixed`] if a new one's position is used up.
    pub fn put_samples(&mut self, samples: &[Sample]) -> Result<usize, JournalError> {
        let failed = || JournalError::sqlite("write samples");
        let (_, next_position) = self.newest_batch()?;
        let transaction = self.connection.transaction().map_err(failed())?;
        let mut new = 0;
        for sample in samples {
            if insert(&transaction, sample)? {
                if sample.position < next_position {
                    return Err(JournalError::Fixed {
                        next_position,
                        position: sample.position,
                        index: sample.index,
                    });
                }
                new += 1;
            }
        }
        transaction.commit().map_err(failed())?;
        Ok(new)
    }

    /// A fixed step's samples in canonical order: (position, index). None for a step that is not
    /// fixed.
    ///
    /// Fails with [`JournalError::Pruned`] if the batch is not whole any more.
    pub fn samples(&self, step: u32) -> Result<Vec<Sample>, JournalError> {
        let failed = || JournalError::sqlite("read samples");
        let mut statement = self.connection.prepare_cached(SELECT).map_err(failed())?;
        let mut rows = statement.query([step]).map_err(failed())?;
        let mut samples = Vec::new();
        while let Some(row) = rows.next().map_err(failed())? {
            samples.push(read(row)?);
        }
        match self.samples_in(step)? {
            Some(expected) if expected != samples.len() as u64 => {
                Err(JournalError::Pruned { step, found: samples.len() as u64, expected })
            }
            _ => Ok(samples),
        }
    }

    /// The samples at positions that are not used up, in canonical order.
    pub fn pending(&self) -> Result<Vec<Pending>, JournalError> {
        let failed = || JournalError::sqlite("read samples");
        let (_, next_position) = self.newest_batch()?;
        let sql = "SELECT position, sample_index, reward, versions FROM samples WHERE position \
            >= ?1 ORDER BY position, sample_index";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed())?;
        let mut rows = statement.query([next_position]).map_err(failed())?;
        let mut pending = Vec::new();
        while let Some(row) = rows.next().map_err(failed())? {
            let (position, index, reward, versions): (u64, u32, f64, String) =
                row.try_into().map_err(failed())?;
            let versions: Vec<VersionRun> = serde_json::from_str(&versions)
                .map_err(JournalError::malformed("samples.versions"))?;
            let oldest = versions.iter().map(|run| run.version.step).min().unwrap_or(0);
            pending.push(Pending { position, index, reward, oldest });
        }
        Ok(pending)
    }

    /// Removes a sample of no batch, so that it is sampled again.
    pub fn discard(&mut self, position: u64, index: u32) -> Result<(), JournalError> {
        let sql = "DELETE FROM samples WHERE position = ?1 AND sample_index = ?2 AND step IS NULL";
        self.connection
            .execute(sql, params![position, index])
            .map_err(JournalError::sqlite("forget a sample"))?;
        Ok(())
    }
}

/// Whether the sample is new.
fn insert(transaction: &Transaction<'_>, sample: &Sample) -> Result<bool, JournalError> {
    let mut statement =
        transaction.prepare_cached(INSERT).map_err(JournalError::sqlite("write samples"))?;
    let versions = serde_json::to_string(&sample.versions)
        .map_err(JournalError::malformed("samples.versions"))?;
    let components = serde_json::to_string(&sample.reward_components)
        .map_err(JournalError::malformed("samples.reward_components"))?;
    let rows = statement.execute(named_params! {
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
        position: row.get("position").map_err(failed())?,
        index: row.get("sample_index").map_err(failed())?,
        row: row.get("data_row").map_err(failed())?,
        prompt_tokens: blob::to_tokens(&bytes("prompt_tokens")?)
            .map_err(JournalError::malformed("samples.prompt_tokens"))?,
        completion_tokens: blob::to_tokens(&bytes("completion_tokens")?)
            .map_err(JournalError::malformed("samples.completion_tokens"))?,
        sampler_logprobs: blob::to_logprobs(&bytes("sampler_logprobs")?)
            .map_err(JournalError::malformed("samples.sampler_logprobs"))?,
        versions: serde_json::from_str(&text("versions")?)
            .map_err(JournalError::malformed("samples.versions"))?,
        finish_reason: text("finish_reason")?,
        sampling: serde_json::from_str(&text("sampling")?)
            .map_err(JournalError::malformed("samples.sampling"))?,
        reward: row.get("reward").map_err(failed())?,
        reward_components: serde_json::from_str(&text("reward_components")?)
            .map_err(JournalError::malformed("samples.reward_components"))?,
        prompt_text: text("prompt_text")?,
        completion_text: text("completion_text")?,
    })
}
