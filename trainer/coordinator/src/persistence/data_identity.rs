//! Identity of the training data: journaled when a run first opens its data and compared at every
//! later start, because loader positions and supervised batches refer to rows.
//!
//! Changed fields of the spec (after a suspension, or with `--accept-changes`) begin a new
//! identity.

use std::path::PathBuf;

use rljob_crds::RLJobSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};

/// The identity in the journal.
const KEY: &str = "trainingData";

/// The rows that a run trains on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataIdentity {
    /// SHA-256 of `spec.dataset.train`, as hexadecimal.
    spec: String,
    /// Number of rows.
    rows: u64,
    /// SHA-256 of the rendered rows, as hexadecimal.
    fingerprint: String,
}

/// Data that the run cannot continue on.
#[derive(Debug, thiserror::Error)]
pub enum DataIdentityError {
    #[error(
        "the rows of the training data at {} have changed since the run began ({before} rows then, \
         {now} now): restore them, or continue on the new rows in another job with \
         restoreFrom.rljob",
        path.display()
    )]
    Changed { path: PathBuf, before: u64, now: u64 },
    #[error("failed to understand the identity of the training data in the journal")]
    Malformed(#[from] serde_json::Error),
    #[error(transparent)]
    Journal(#[from] SharedJournalError),
}

impl DataIdentity {
    /// The identity of rows that were read for this spec.
    pub fn new(
        spec: &RLJobSpec,
        rows: u64,
        fingerprint: String,
    ) -> Result<Self, serde_json::Error> {
        let text = serde_json::to_vec(&spec.dataset.train)?;
        Ok(Self { spec: format!("{:x}", Sha256::digest(text)), rows, fingerprint })
    }

    /// Compares the identity with the journaled one, and journals it if that is missing or of
    /// another spec. `path` is the place of the data.
    pub async fn check(
        self,
        journal: &SharedJournal,
        path: PathBuf,
    ) -> Result<(), DataIdentityError> {
        let before = journal.call(|journal| journal.get_state(KEY)).await?;
        let before = before.map(serde_json::from_value::<Self>).transpose()?;
        match before.filter(|before| before.spec == self.spec) {
            Some(before) if before == self => Ok(()),
            Some(before) => {
                Err(DataIdentityError::Changed { path, before: before.rows, now: self.rows })
            }
            None => {
                let json = serde_json::to_value(&self)?;
                Ok(journal.call(move |journal| journal.put_state(KEY, &json)).await?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::RLJobSpec;
    use serde_json::json;

    use super::*;
    use crate::persistence::fence::Fence;
    use crate::persistence::journal::Journal;

    fn spec(prompt: &str) -> RLJobSpec {
        serde_json::from_value(json!({
            "model": {"path": "/model"},
            "storage": {"hostPath": {"path": "/runs"}},
            "dataset": {"train": {"path": "/train.jsonl", "prompt": prompt, "answer": "answer"}},
            "algorithm": {"sft": {}},
            "training": {"steps": 3},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn changed_rows_are_rejected_unless_the_spec_of_the_data_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let fence = Fence::claim(directory.path(), "u", 1, 1).unwrap();
        let journal = SharedJournal::new(Journal::open(&fence.journal()).unwrap(), fence);
        let check = async |prompt: &str, rows, fingerprint: &str| {
            let identity = DataIdentity::new(&spec(prompt), rows, fingerprint.to_owned()).unwrap();
            identity.check(&journal, "/train.jsonl".into()).await.map_err(|error| error.to_string())
        };
        assert_eq!(check("{{question}}", 30, "aa").await, Ok(()), "first start");
        assert_eq!(check("{{question}}", 30, "aa").await, Ok(()), "resume");
        let changed = check("{{question}}", 31, "bb").await.unwrap_err();
        assert_eq!(
            changed,
            "the rows of the training data at /train.jsonl have changed since the run began (30 \
             rows then, 31 now): restore them, or continue on the new rows in another job with \
             restoreFrom.rljob"
        );
        assert_eq!(check("Q: {{question}}", 31, "bb").await, Ok(()), "an accepted change");
        assert!(check("Q: {{question}}", 31, "cc").await.is_err());
    }
}
