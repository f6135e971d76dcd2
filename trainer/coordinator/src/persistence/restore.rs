//! Initial checkpoint of a run without checkpoints: the one that its spec names, or the newest one
//! of another job. The choice is journaled, so that a restarted run starts from the same weights
//! while the other job continues.

use std::path::{Path, PathBuf};

use rljob_crds::RunConfig;
use rljob_crds::restore::JobCheckpoint;
use rljob_protocol::supervisor::Restore;
use rljob_storage::{RunStore, StorageError};
use serde::{Deserialize, Serialize};

use crate::persistence::checkpoints;
use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};

/// The choice in the journal.
const KEY: &str = "restoreFrom";

/// Nothing to start from.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The named job has no complete checkpoint.
    #[error(
        "restoreFrom.rljob: the job `{job}` has no complete checkpoint{} in {place}: let it make \
            one first",
        step.map(|step| format!(" of step {step}")).unwrap_or_default()
    )]
    None {
        job: String,
        /// The step that the spec names.
        step: Option<u32>,
        /// Run store of that job.
        place: String,
    },
    /// The other job's run store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Store(#[from] SharedJournalError),
    /// The choice in the journal.
    #[error("failed to understand the initial checkpoint in the journal")]
    Journal(#[from] serde_json::Error),
}

/// Chosen checkpoint of a job.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Choice {
    job: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<u32>,
    restore: Restore,
}

/// The initial checkpoint that the spec names. With `has_own`, the run has its own checkpoint,
/// which takes precedence, and no new choice is made.
pub async fn choose(
    config: &RunConfig,
    store: &SharedJournal,
    has_own: bool,
) -> Result<Option<Restore>, RestoreError> {
    let Some(source) = &config.spec.restore_from else { return Ok(None) };
    let Some(from) = source.rljob.clone() else { return Ok(source.location().and_then(at)) };
    let before = store
        .call(|journal| journal.get_state(KEY))
        .await?
        .map(serde_json::from_value::<Choice>)
        .transpose()?
        .filter(|choice| choice.job == from.name && choice.step == from.step);
    if has_own || before.is_some() {
        // The folder of runs may have moved since the choice.
        let path = |version| other_run(config, &from).join(checkpoints::folder(version));
        let restore = before.map(|choice| choice.restore);
        return Ok(restore.map(|Restore { version, .. }| Restore { version, path: path(version) }));
    }
    let restore = newest(config, &from).await?;
    let choice = Choice { restore, job: from.name, step: from.step };
    tracing::info!(source = choice.job, version = %choice.restore.version, "the run starts from \
        another job's checkpoint");
    let json = serde_json::to_value(&choice)?;
    store.call(move |journal| journal.put_state(KEY, &json)).await?;
    Ok(Some(choice.restore))
}

/// The checkpoint of a path or URI `…/step-N.attempt-K`.
fn at(path: &str) -> Option<Restore> {
    let path = Path::new(path);
    Some(Restore { version: path.file_name()?.to_str()?.parse().ok()?, path: path.to_owned() })
}

/// Run store of another job.
fn other_run(config: &RunConfig, from: &JobCheckpoint) -> PathBuf {
    config.run_store().with_file_name(&from.name)
}

/// The newest complete checkpoint of another job, or of its step that the spec names.
async fn newest(config: &RunConfig, from: &JobCheckpoint) -> Result<Restore, RestoreError> {
    let place = other_run(config, from);
    let run_store = RunStore::at(&place, config.bucket.as_ref())?;
    let listed = tokio::task::spawn_blocking(move || checkpoints::complete(&run_store))
        .await
        .map_err(SharedJournalError::from)??;
    let none = || RestoreError::None {
        job: from.name.clone(),
        step: from.step,
        place: place.display().to_string(),
    };
    let wanted = listed.iter().rfind(|version| from.step.is_none_or(|step| version.step == step));
    let version = *wanted.ok_or_else(none)?;
    Ok(Restore { version, path: place.join(checkpoints::folder(version)) })
}

#[cfg(test)]
mod tests {
    use super::at;

    #[test]
    fn the_version_of_a_checkpoint_is_in_its_path() {
        let restore = at("s3://bucket/lab/a/checkpoints/step-2.attempt-1/").unwrap();
        assert_eq!((restore.version.step, restore.version.attempt), (2, 1));
        assert_eq!(at("step-2"), None);
    }
}
