//! Migration of journals of schema version 2, whose samples are one prompt and one completion.
//!
//! Only the table `samples` differs between versions 2 and 3.

use rusqlite::{Row, Transaction};

use super::{JournalError, Sample, Segment, blob, samples};

/// Schema version that [`migrate`] reads.
pub(super) const PREVIOUS_VERSION: i32 = 2;

/// Rebuilds the table `samples` of a journal in the current schema. `create` is the statement that
/// creates the table.
pub(super) fn migrate(transaction: &Transaction<'_>, create: &str) -> Result<(), JournalError> {
    let failed = || JournalError::sqlite("migrate the samples");
    let rename = "DROP INDEX samples_of_step; ALTER TABLE samples RENAME TO samples_of_version_2";
    transaction.execute_batch(rename).map_err(failed())?;
    transaction.execute_batch(create).map_err(failed())?;
    copy_samples(transaction, "main.samples_of_version_2")?;
    transaction.execute_batch("DROP TABLE samples_of_version_2").map_err(failed())
}

/// Copies samples of version 2 from `table` to the journal.
pub(super) fn copy_samples(transaction: &Transaction<'_>, table: &str) -> Result<(), JournalError> {
    let failed = || JournalError::sqlite("migrate the samples");
    let mut statement = transaction.prepare(&format!("SELECT * FROM {table}")).map_err(failed())?;
    let mut rows = statement.query([]).map_err(failed())?;
    while let Some(row) = rows.next().map_err(failed())? {
        let step = row.get("step").map_err(failed())?;
        samples::insert(transaction, &read(row)?, step)?;
    }
    Ok(())
}

fn read(row: &Row<'_>) -> Result<Sample, JournalError> {
    let failed = || JournalError::sqlite("migrate the samples");
    let text = |column: &str| row.get::<_, String>(column).map_err(failed());
    let bytes = |column: &str| row.get::<_, Vec<u8>>(column).map_err(failed());
    let tokens = |column: &'static str| {
        blob::to_tokens(&bytes(column)?).map_err(JournalError::malformed(column))
    };
    let reward = row.get("reward").map_err(failed())?;
    let completion = Segment {
        turn: 0,
        tokens: tokens("completion_tokens")?,
        trained: true,
        sampler_logprobs: blob::to_logprobs(&bytes("sampler_logprobs")?)
            .map_err(JournalError::malformed("samples.sampler_logprobs"))?,
        teacher_logprobs: Vec::new(),
        versions: serde_json::from_str(&text("versions")?)
            .map_err(JournalError::malformed("samples.versions"))?,
        text: text("completion_text")?,
    };
    Ok(Sample {
        position: row.get("position").map_err(failed())?,
        index: row.get("sample_index").map_err(failed())?,
        row: row.get("data_row").map_err(failed())?,
        segments: vec![
            Segment::given(0, tokens("prompt_tokens")?, text("prompt_text")?),
            completion,
        ],
        finish_reason: text("finish_reason")?,
        sampling: serde_json::from_str(&text("sampling")?)
            .map_err(JournalError::malformed("samples.sampling"))?,
        reward,
        reward_components: serde_json::from_str(&text("reward_components")?)
            .map_err(JournalError::malformed("samples.reward_components"))?,
        turn_rewards: vec![reward],
        metadata: serde_json::Map::new(),
    })
}
