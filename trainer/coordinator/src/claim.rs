//! Claims a run store for this coordinator and opens its journal. While the volume takes no writes,
//! it reports the fault and tries again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rljob_crds::RunConfig;
use rljob_storage::{RunStore, durable};

use crate::persistence::fence::Fence;
use crate::persistence::identity::{Identity, renew};
use crate::persistence::journal::Journal;
use crate::persistence::journal::shared::SharedJournal;
use crate::persistence::mirror::Mirror;
use crate::persistence::{copies, damage, recorded_config, volume_fault};
use crate::rollback;

/// First and longest delay before the next attempt on a volume that takes no writes.
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(15);

/// Claims the run store and opens its journal. `report` receives every fault of the volume, which
/// delays the claim.
///
/// # Errors
/// What another attempt cannot change: another run or coordinator owns the run store, or its
/// journal is damaged.
pub(crate) async fn claim(
    config: &Arc<RunConfig>,
    incarnation: u64,
    epoch: u64,
    report: impl Fn(String),
) -> anyhow::Result<SharedJournal> {
    let run_store = RunStore::of(config)?;
    let attempt = async || {
        let (config, run_store) = (Arc::clone(config), run_store.clone());
        let claimed = tokio::task::spawn_blocking(move || {
            claim_blocking(&config, &run_store, incarnation, epoch)
                .map_err(|error| damage::with_way_back(error, &run_store))
        });
        claimed.await?
    };
    let mut delay = RETRY;
    loop {
        let error = match attempt().await {
            Ok(journal) => return Ok(journal),
            Err(error) => error,
        };
        let Some(fault) = volume_fault::describe(&error, &config.run_directory) else {
            return Err(error);
        };
        tracing::error!(fault, retry_seconds = delay.as_secs(), "failed to claim the run");
        report(fault);
        tokio::time::sleep(delay).await;
        delay = delay.saturating_mul(2).min(MAX_RETRY);
    }
}

fn claim_blocking(
    config: &RunConfig,
    run_store: &RunStore,
    incarnation: u64,
    epoch: u64,
) -> anyhow::Result<SharedJournal> {
    let (identity, directory) = (Identity::of(config)?, &config.run_directory);
    durable::create_folder(directory)
        .with_context(|| format!("failed to make the run directory {}", directory.display()))?;
    let is_claimed = identity.check(run_store)?;
    if let RunStore::Folder(_) = run_store {
        Fence::check_journal(directory, is_claimed)?;
    }
    let fence = Fence::claim(directory, &config.uid, epoch, incarnation)?;
    let store = match run_store {
        RunStore::Folder(_) => {
            let mut journal = Journal::open(&fence.journal())?;
            rollback::requested(config, run_store, &fence, &mut journal)?;
            SharedJournal::new(journal, fence)
        }
        RunStore::Bucket(bucket) => {
            copies::fetch(run_store, &fence)?;
            let (mirror, journal) =
                Mirror::restore(bucket.clone(), directory, &fence.journal(), incarnation)?;
            SharedJournal::mirrored(journal, mirror, fence)
        }
    };
    identity.claim(run_store, || Ok(store.call_blocking(renew)?))?;
    store.fence().check()?;
    recorded_config::record(config, run_store)?;
    Ok(store)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;

    use rljob_crds::names::RUN_CONFIG_FILE;
    use rljob_protocol::run_config;
    use serde_json::json;

    use super::*;

    fn config(directory: &Path, steps: u32) -> RunConfig {
        let spec = json!({
            "model": {"path": "/model"},
            "storage": {"hostPath": {"path": "/runs"}},
            "dataset": {"train": {"path": "/train.jsonl", "prompt": "{{q}}", "answer": "a"}},
            "algorithm": {"sft": {}},
            "training": {"steps": steps},
        });
        serde_json::from_value(json!({
            "namespace": "lab", "name": "sums", "uid": "u", "runDirectory": directory,
            "modelDirectory": "/model", "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn the_owner_of_a_run_directory_records_its_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let (directory, run_store) = (folder.path(), RunStore::Folder(folder.path().to_owned()));
        let claim = |steps, epoch| {
            claim_blocking(&config(directory, steps), &run_store, epoch, epoch).map(drop)
        };
        let file = directory.join(RUN_CONFIG_FILE);
        let recorded = || run_config::read(&file).unwrap().0;
        claim(3, 2).unwrap();
        assert_eq!(recorded(), config(directory, 3));
        claim(4, 3).unwrap();
        assert_eq!(recorded(), config(directory, 4), "changed settings");
        let error = claim(5, 2).unwrap_err().to_string();
        assert!(error.contains("was replaced by that of epoch 3"), "{error}");
        assert_eq!(recorded(), config(directory, 4), "of a superseded coordinator");

        fs::write(&file, serde_json::to_string(&config(directory, 4)).unwrap()).unwrap();
        let inode = || fs::metadata(&file).unwrap().ino();
        let before = inode();
        claim(4, 4).unwrap();
        assert_eq!(inode(), before, "the same configuration, written by `rljob run`");
        fs::write(&file, "{").unwrap();
        claim(4, 5).unwrap();
        assert_eq!(recorded(), config(directory, 4), "a damaged file");
    }

    #[tokio::test]
    async fn a_volume_that_takes_no_writes_delays_the_claim() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("run");
        // sysfs rejects new files, also from root.
        symlink("/sys", &directory).unwrap();
        let config = Arc::new(config(&directory, 3));
        let faults = RefCell::new(Vec::new());
        let report = |fault| {
            faults.borrow_mut().push(fault);
            fs::remove_file(&directory).unwrap();
        };
        claim(&config, 7, 1, report).await.unwrap();
        let faults = faults.into_inner();
        let start = format!("failed to write {}/fence.json: ", directory.display());
        assert!(faults.len() == 1 && faults[0].starts_with(&start), "{faults:?}");
        assert!(directory.join(RUN_CONFIG_FILE).is_file());
    }
}
