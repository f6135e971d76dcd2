//! Run-store identity: written at the first start and compared at every later one, so that two jobs
//! never share a journal.
//!
//! Namespace, name, model, lora and kind of algorithm identify a run; the rest of the spec may
//! change between two starts. Under a new UID (the job was deleted and recreated) the run continues
//! with a fresh restart budget and fresh fencing numbers.

use rljob_crds::RunConfig;
use rljob_crds::algorithm::Capabilities;
use rljob_storage::{MAX_MANIFEST, RunStore, StorageError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::core::{Record, record};
use crate::persistence::journal::{Journal, JournalError};

const FILE: &str = "identity.json";

/// The owner of a run store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// Namespace of the RLJob.
    pub namespace: String,
    pub name: String,
    /// UID of the RLJob. A recreated job has another one and continues the run.
    pub uid: String,
    /// SHA-256 of what may not change: the model, lora and the kind of algorithm, as hexadecimal.
    pub spec_hash: String,
}

/// A run directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It belongs to another job.
    #[error(
        "the run directory {directory} belongs to {}/{} (uid {}) with {}: use another directory, \
            or remove this one to start over",
        held.namespace, held.name, held.uid, if *same_name { "another model, lora or \
            kind of algorithm" } else { "its own run" }
    )]
    Another {
        /// The directory.
        directory: String,
        /// Whose it is.
        held: Box<Identity>,
        /// Whether only the spec differs.
        same_name: bool,
    },
    /// The file cannot be read or written.
    #[error("failed to keep the run directory's identity")]
    File(#[from] StorageError),
}

impl Identity {
    /// The identity of a configured run.
    pub fn of(config: &RunConfig) -> Result<Self, serde_json::Error> {
        let algorithm = &config.spec.algorithm;
        let kind = algorithm.capabilities().map(Capabilities::name);
        let mut model = config.spec.model.clone();
        model.path = config.model_identity.clone().or(model.path);
        if let Some(hub) = &mut model.hugging_face {
            hub.token_secret_ref = None;
        }
        // The first algorithms have a flag each, so that the hash of existing runs stays the same.
        let text = match kind {
            Some("grpo") => serde_json::to_string(&(&model, true, false)),
            Some("sft") => serde_json::to_string(&(&model, false, true)),
            Some("ppo") => serde_json::to_string(&(&model, false, false, true)),
            Some("dpo") => serde_json::to_string(&(&model, false, false, false, true)),
            Some("rewardModel") => {
                serde_json::to_string(&(&model, false, false, false, false, true))
            }
            _ => serde_json::to_string(&(&model, kind)),
        }?;
        let mut hash = Sha256::new_with_prefix(text);
        // Samples of a served teacher have its log-probabilities.
        if algorithm.capabilities().and_then(Capabilities::served_teacher).is_some() {
            hash.update("teacher.server");
        }
        // Checkpoints of a value head have no model of the critic.
        if algorithm.capabilities().is_some_and(Capabilities::has_value_head) {
            hash.update("ppo.valueHead");
        }
        if let Some(lora) = &config.spec.lora {
            hash.update(serde_json::to_string(lora)?);
        }
        let spec_hash = format!("{:x}", hash.finalize());
        Ok(Self {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            uid: config.uid.clone(),
            spec_hash,
        })
    }

    /// Checks that a run store is unclaimed or belongs to this run. Returns whether it is claimed.
    /// Blocks.
    pub fn check(&self, run_store: &RunStore) -> Result<bool, IdentityError> {
        Ok(self.held(run_store)?.is_some())
    }

    /// Claims the run store for this run; its journal must be claimed already. For a recreated job,
    /// `renew` resets the counters in the journal. Blocks.
    pub fn claim(
        &self,
        run_store: &RunStore,
        renew: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let held = self.held(run_store)?;
        if held.as_ref() == Some(self) {
            return Ok(());
        }
        if let Some(held) = held {
            // Renewal is idempotent and comes first, so that a crash in between repeats it.
            renew()?;
            tracing::info!(
                before = held.uid,
                now = self.uid,
                "the job was recreated; its run continues"
            );
        } else if let RunStore::Bucket(bucket) = run_store {
            // Of two jobs that find no identity, one creates it and the other is rejected.
            bucket.put_if_absent(FILE, &self.json(run_store)?)?;
            self.check(run_store)?;
            return Ok(());
        }
        Ok(run_store.put(FILE, self.json(run_store)?)?)
    }

    fn held(&self, run_store: &RunStore) -> Result<Option<Self>, IdentityError> {
        let Some(bytes) = run_store.read(FILE, MAX_MANIFEST)? else { return Ok(None) };
        let held: Self = serde_json::from_slice(&bytes)
            .map_err(|error| failed("read", run_store)(error.into()))?;
        let same_name = (&held.namespace, &held.name) == (&self.namespace, &self.name);
        if !same_name || held.spec_hash != self.spec_hash {
            let directory = run_store.place("").trim_end_matches('/').to_owned();
            return Err(IdentityError::Another { directory, held: Box::new(held), same_name });
        }
        Ok(Some(held))
    }

    fn json(&self, run_store: &RunStore) -> Result<Vec<u8>, StorageError> {
        serde_json::to_vec_pretty(self).map_err(|error| failed("write", run_store)(error.into()))
    }
}

fn failed(
    action: &'static str,
    run_store: &RunStore,
) -> impl FnOnce(std::io::Error) -> StorageError {
    let place = run_store.place(FILE);
    move |source| StorageError::Io { action, place, source }
}

/// Resets the counters of the journal for a recreated job.
pub fn renew(journal: &mut Journal) -> Result<(), JournalError> {
    let Some(json) = journal.get_state(record::KEY)? else { return Ok(()) };
    let malformed = |error: serde_json::Error| JournalError::Malformed {
        what: "state.value",
        source: error.into(),
    };
    let mut record: Record = serde_json::from_value(json).map_err(malformed)?;
    record.renew();
    journal.put_state(record::KEY, &serde_json::to_value(&record).map_err(malformed)?)
}

#[cfg(test)]
mod tests {
    use rljob_storage::RunStore;

    use super::{Identity, renew};
    use crate::core::record::{GroupRecord, KEY};
    use crate::core::{Record, Stage};
    use crate::persistence::journal::Journal;

    fn identity(uid: &str) -> Identity {
        Identity {
            namespace: "default".to_owned(),
            name: "gsm8k".to_owned(),
            uid: uid.to_owned(),
            spec_hash: "aa".to_owned(),
        }
    }

    #[test]
    fn a_recreated_job_continues_with_fresh_counters() {
        let directory = tempfile::tempdir().unwrap();
        let run_store = RunStore::Folder(directory.path().to_owned());
        let mut journal = Journal::open(&directory.path().join("journal")).unwrap();
        identity("u1").claim(&run_store, || Ok(renew(&mut journal)?)).unwrap();
        let failed = Record {
            epoch: Some(9),
            trainer: GroupRecord {
                attempt: 4,
                restarts: 3,
                stage: Stage::Failed,
                ..GroupRecord::default()
            },
            ..Record::default()
        };
        journal.put_state(KEY, &serde_json::to_value(&failed).unwrap()).unwrap();
        identity("u1").claim(&run_store, || Ok(renew(&mut journal)?)).unwrap();
        let read = |journal: &Journal| {
            serde_json::from_value::<Record>(journal.get_state(KEY).unwrap().unwrap()).unwrap()
        };
        assert_eq!(read(&journal), failed, "the same UID is the same job");
        identity("u2").claim(&run_store, || Ok(renew(&mut journal)?)).unwrap();
        let fifth = GroupRecord { attempt: 5, ..GroupRecord::default() };
        assert_eq!(read(&journal), Record { trainer: fifth.clone(), ..Record::default() });
        let finished = Record {
            epoch: Some(2),
            trainer: GroupRecord { stage: Stage::Finished, ..fifth },
            exported: true,
            ..Record::default()
        };
        journal.put_state(KEY, &serde_json::to_value(&finished).unwrap()).unwrap();
        identity("u3").claim(&run_store, || Ok(renew(&mut journal)?)).unwrap();
        assert_eq!(read(&journal), Record { epoch: None, ..finished }, "what is finished stays so");
    }

    #[test]
    fn a_directory_is_claimed_once_and_kept_by_the_same_job_alone() {
        let directory = tempfile::tempdir().unwrap();
        let run_store = RunStore::Folder(directory.path().to_owned());
        let first = identity("u1");
        let mut journal = Journal::open(&directory.path().join("journal")).unwrap();
        first.check(&run_store).unwrap();
        first.claim(&run_store, || Ok(renew(&mut journal)?)).unwrap();
        Identity { uid: "u2".to_owned(), ..first.clone() }
            .claim(&run_store, || Ok(renew(&mut journal)?))
            .unwrap();
        let other =
            Identity { name: "other".to_owned(), ..first.clone() }.check(&run_store).unwrap_err();
        assert!(
            other.to_string().contains("belongs to default/gsm8k (uid u2) with its own run"),
            "{other}"
        );
        let changed =
            Identity { spec_hash: "bb".to_owned(), ..first }.check(&run_store).unwrap_err();
        assert!(
            changed.to_string().contains("with another model, lora or kind of algorithm"),
            "{changed}"
        );
    }
}
