//! Finished samples, by loader position.

use rusqlite::{Row, Transaction, named_params, params};
use serde::{Deserialize, Serialize};

use super::records::{REJECTED_TRIES, oldest};
use super::{Journal, JournalError, Pending, Sample, Segment, VersionRun, blob};

const INSERT: &str = "INSERT INTO main.samples (position, sample_index, step, data_row, reward, \
        finish_reason, reward_components, turn_rewards, metadata, sampling, segments, tokens, \
        sampler_logprobs) \
    VALUES (:position, :index, :step, :row, :reward, :finish_reason, :reward_components, \
        :turn_rewards, :metadata, :sampling, :segments, :tokens, :sampler_logprobs) \
    ON CONFLICT DO NOTHING";

const SELECT: &str = "SELECT * FROM samples WHERE step = ?1 ORDER BY position, sample_index";

/// A segment without its blobs: the column `segments` is a list of these.
#[derive(Serialize, Deserialize)]
struct SegmentRow {
    turn: u32,
    /// Entries of the blob `tokens`.
    tokens: usize,
    trained: bool,
    /// Entries of the blob `sampler_logprobs`.
    logprobs: usize,
    /// Entries after them in the blob, of a served teacher.
    #[serde(default, skip_serializing_if = "is_zero")]
    teacher_logprobs: usize,
    versions: Vec<VersionRun>,
    text: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Journal {
    /// Adds samples in one transaction. Samples whose (position, index) exists are unchanged.
    /// Returns the number of new samples.
    ///
    /// Fails with [`JournalError::Fixed`] if a new one's position is used up.
    pub fn put_samples(&mut self, samples: &[Sample]) -> Result<usize, JournalError> {
        let failed = || JournalError::sqlite("write samples");
        let (_, data) = self.resume()?;
        let transaction = self.connection.transaction().map_err(failed())?;
        let mut new = 0_usize;
        for sample in samples {
            if insert(&transaction, sample, None)? {
                if data.has_used(sample.position) {
                    return Err(JournalError::Fixed {
                        next_position: data.next_position,
                        position: sample.position,
                        index: sample.index,
                    });
                }
                new = new.saturating_add(1);
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
        let (step, next_position) = self.newest_batch()?;
        let sql = "SELECT position, sample_index, reward, segments, \
            coalesce(json_extract(metadata, '$.' || ?3), 0) FROM samples WHERE position >= ?1 OR \
            position IN (SELECT position FROM passed_over WHERE step = ?2) ORDER BY position, \
            sample_index";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed())?;
        let values = params![next_position, step, REJECTED_TRIES];
        let mut rows = statement.query(values).map_err(failed())?;
        let mut pending = Vec::new();
        while let Some(row) = rows.next().map_err(failed())? {
            let (position, index, reward, segments, rejected): (u64, u32, f64, String, u32) =
                row.try_into().map_err(failed())?;
            let segments: Vec<SegmentRow> = serde_json::from_str(&segments)
                .map_err(JournalError::malformed("samples.segments"))?;
            let versions = segments.iter().flat_map(|segment| &segment.versions);
            let oldest = oldest(versions).unwrap_or(0);
            let trained = segments.iter().filter(|segment| segment.trained);
            let tokens = trained.map(|segment| segment.tokens).sum::<usize>() as u32;
            pending.push(Pending { position, index, reward, tokens, oldest, rejected });
        }
        Ok(pending)
    }

    /// Removes samples of a position that is in no batch, so that they are sampled again. Returns
    /// how many, and the others.
    pub fn discard_if(
        &mut self,
        position: u64,
        is_unusable: impl Fn(&Pending) -> bool,
    ) -> Result<(u32, Vec<Pending>), JournalError> {
        let samples = self.pending()?.into_iter().filter(|sample| sample.position == position);
        let (unusable, others): (Vec<_>, Vec<_>) = samples.partition(is_unusable);
        unusable.iter().try_for_each(|sample| self.discard(position, sample.index))?;
        Ok((unusable.len() as u32, others))
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
pub(super) fn insert(
    transaction: &Transaction<'_>,
    sample: &Sample,
    step: Option<u32>,
) -> Result<bool, JournalError> {
    let mut statement =
        transaction.prepare_cached(INSERT).map_err(JournalError::sqlite("write samples"))?;
    let segments: Vec<SegmentRow> = sample.segments.iter().map(SegmentRow::of).collect();
    let tokens: Vec<u8> =
        sample.segments.iter().flat_map(|s| blob::from_tokens(&s.tokens)).collect();
    let logprobs = sample.segments.iter().flat_map(|s| [&s.sampler_logprobs, &s.teacher_logprobs]);
    let logprobs: Vec<u8> = logprobs.flat_map(|own| blob::from_logprobs(own)).collect();
    let rows = statement.execute(named_params! {
        ":position": sample.position,
        ":index": sample.index,
        ":step": step,
        ":row": sample.row,
        ":reward": sample.reward,
        ":finish_reason": sample.finish_reason,
        ":reward_components": json("samples.reward_components", &sample.reward_components)?,
        ":turn_rewards": json("samples.turn_rewards", &sample.turn_rewards)?,
        ":metadata": json("samples.metadata", &sample.metadata)?,
        ":sampling": sample.sampling.to_string(),
        ":segments": json("samples.segments", &segments)?,
        ":tokens": tokens,
        ":sampler_logprobs": logprobs,
    });
    Ok(rows.map_err(JournalError::sqlite("write samples"))? == 1)
}

fn json(what: &'static str, value: &impl Serialize) -> Result<String, JournalError> {
    serde_json::to_string(value).map_err(JournalError::malformed(what))
}

fn read(row: &Row<'_>) -> Result<Sample, JournalError> {
    let failed = || JournalError::sqlite("read samples");
    let text = |column: &str| row.get::<_, String>(column).map_err(failed());
    let bytes = |column: &str| row.get::<_, Vec<u8>>(column).map_err(failed());
    let rows: Vec<SegmentRow> = serde_json::from_str(&text("segments")?)
        .map_err(JournalError::malformed("samples.segments"))?;
    let tokens =
        blob::to_tokens(&bytes("tokens")?).map_err(JournalError::malformed("samples.tokens"))?;
    let logprobs = blob::to_logprobs(&bytes("sampler_logprobs")?)
        .map_err(JournalError::malformed("samples.sampler_logprobs"))?;
    Ok(Sample {
        position: row.get("position").map_err(failed())?,
        index: row.get("sample_index").map_err(failed())?,
        row: row.get("data_row").map_err(failed())?,
        segments: segments(rows, &tokens, &logprobs)?,
        finish_reason: text("finish_reason")?,
        sampling: serde_json::from_str(&text("sampling")?)
            .map_err(JournalError::malformed("samples.sampling"))?,
        reward: row.get("reward").map_err(failed())?,
        reward_components: serde_json::from_str(&text("reward_components")?)
            .map_err(JournalError::malformed("samples.reward_components"))?,
        turn_rewards: serde_json::from_str(&text("turn_rewards")?)
            .map_err(JournalError::malformed("samples.turn_rewards"))?,
        metadata: serde_json::from_str(&text("metadata")?)
            .map_err(JournalError::malformed("samples.metadata"))?,
    })
}

/// Splits the blobs at the segments' lengths.
fn segments(
    rows: Vec<SegmentRow>,
    mut tokens: &[i64],
    mut logprobs: &[f32],
) -> Result<Vec<Segment>, JournalError> {
    let mismatch = || JournalError::malformed("samples.segments")("the blobs have other lengths");
    let mut segments = Vec::with_capacity(rows.len());
    for row in rows {
        let (own, others) = tokens.split_at_checked(row.tokens).ok_or_else(mismatch)?;
        let (sampler, after) = logprobs.split_at_checked(row.logprobs).ok_or_else(mismatch)?;
        let (teacher, after) = after.split_at_checked(row.teacher_logprobs).ok_or_else(mismatch)?;
        (tokens, logprobs) = (others, after);
        segments.push(Segment {
            turn: row.turn,
            tokens: own.to_vec(),
            trained: row.trained,
            sampler_logprobs: sampler.to_vec(),
            teacher_logprobs: teacher.to_vec(),
            versions: row.versions,
            text: row.text,
        });
    }
    if tokens.is_empty() && logprobs.is_empty() { Ok(segments) } else { Err(mismatch()) }
}

impl SegmentRow {
    fn of(segment: &Segment) -> Self {
        Self {
            turn: segment.turn,
            tokens: segment.tokens.len(),
            trained: segment.trained,
            logprobs: segment.sampler_logprobs.len(),
            teacher_logprobs: segment.teacher_logprobs.len(),
            versions: segment.versions.clone(),
            text: segment.text.clone(),
        }
    }
}
