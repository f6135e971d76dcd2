//! Pass rates of rows, by the loader position of the group that measured them.

use rusqlite::{Transaction, params};

use super::{Journal, JournalError, PassRate};

impl Journal {
    /// The pass rates that later decisions of a curriculum need, in the order of positions.
    pub fn pass_rates(&self) -> Result<Vec<PassRate>, JournalError> {
        let failed = || JournalError::sqlite("read the pass rates");
        let sql = "SELECT position, part, data_row, epoch, correct, samples FROM pass_rates \
            ORDER BY position";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed())?;
        let rows = statement.query_map([], |row| {
            Ok(PassRate {
                position: row.get(0)?,
                part: row.get(1)?,
                row: row.get(2)?,
                epoch: row.get(3)?,
                correct: row.get(4)?,
                samples: row.get(5)?,
            })
        });
        rows.map_err(failed())?.collect::<Result<_, _>>().map_err(failed())
    }
}

/// Adds the pass rates that a batch measured and removes those that they supersede.
pub(super) fn change(
    transaction: &Transaction<'_>,
    measured: &[PassRate],
    superseded: &[u64],
) -> Result<(), JournalError> {
    let failed = || JournalError::sqlite("write the pass rates");
    let sql = "INSERT INTO pass_rates (position, part, data_row, epoch, correct, samples) VALUES \
        (?1, ?2, ?3, ?4, ?5, ?6)";
    let mut insert = transaction.prepare_cached(sql).map_err(failed())?;
    for PassRate { position, part, row, epoch, correct, samples } in measured {
        insert.execute(params![position, part, row, epoch, correct, samples]).map_err(failed())?;
    }
    let sql = "DELETE FROM pass_rates WHERE position = ?1";
    let mut delete = transaction.prepare_cached(sql).map_err(failed())?;
    for position in superseded {
        delete.execute([position]).map_err(failed())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{FixedBatch, PassRate, tests::sample};
    use super::Journal;

    fn rate(position: u64, correct: u32) -> PassRate {
        PassRate { position, part: 1, row: 4, epoch: 2, correct, samples: 3 }
    }

    #[test]
    fn pass_rates_are_recorded_with_their_batch_and_skipped_positions_are_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.sqlite");
        let mut journal = Journal::open(&path).unwrap();
        journal.put_samples(&[0, 3, 4, 8].map(|position| sample(position, 0))).unwrap();
        let first = FixedBatch {
            step: 1,
            positions: vec![0, 3],
            next_position: 4,
            dropped_groups: 1,
            pass_rates: vec![rate(0, 1), rate(3, 2)],
            ..FixedBatch::default()
        };
        let second = FixedBatch {
            step: 2,
            positions: vec![4, 8],
            next_position: 9,
            pass_rates: vec![rate(8, 3)],
            superseded_pass_rates: vec![0],
            ..FixedBatch::default()
        };
        journal.fix_batch(&first).unwrap();
        assert_eq!(journal.pass_rates().unwrap(), [rate(0, 1), rate(3, 2)]);
        for _ in 0..2 {
            journal.fix_batch(&second).unwrap();
        }
        drop(journal);
        let journal = Journal::open(&path).unwrap();
        assert_eq!(journal.pass_rates().unwrap(), [rate(3, 2), rate(8, 3)]);
        let skipped = [0, 1, 2, 3].map(|step| journal.skipped_positions(step).unwrap());
        assert_eq!(skipped, [None, Some(1), Some(3), None]);
    }
}
