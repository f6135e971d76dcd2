//! Damaged journals: what can be restored, and how.

use rljob_storage::RunStore;

use super::checkpoints;
use super::fence::FenceError;
use super::journal::JournalError;
use super::journal::shared::SharedJournalError;
use super::mirror::MirrorError;

/// Adds the way back to an error of a damaged journal. Blocks.
pub fn with_way_back(error: anyhow::Error, run_store: &RunStore) -> anyhow::Error {
    if is_damage(&error) { anyhow::anyhow!("{error:#}; {}", way_back(run_store)) } else { error }
}

fn is_damage(error: &anyhow::Error) -> bool {
    let journal = match (error.downcast_ref(), error.downcast_ref(), error.downcast_ref()) {
        (Some(FenceError::Journal(error)), ..)
        | (_, Some(SharedJournalError::Journal(error)), _)
        | (.., Some(MirrorError::Journal(error))) => Some(error),
        (.., Some(MirrorError::Torn { .. })) => return true,
        _ => error.downcast_ref(),
    };
    journal.is_some_and(JournalError::is_damage)
}

fn way_back(run_store: &RunStore) -> String {
    let newest = checkpoints::complete(run_store).ok().and_then(|mut all| all.pop_last());
    let Some(version) = newest else {
        return "the run has no complete checkpoint: restore the file from a backup, or start again \
                with another run directory"
            .to_owned();
    };
    let step = version.step;
    let place = run_store.place(&checkpoints::folder(version));
    let field = if place.contains("://") { "s3.uri" } else { "path" };
    format!(
        "the newest complete checkpoint is that of step {step}: create an RLJob with another name \
         and restoreFrom.{field}: {place}, which samples the steps after {step} again, or restore \
         the file from a backup"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::persistence::fence::Fence;
    use crate::persistence::journal::Journal;

    /// A run directory whose journal has several pages, one of them overwritten.
    fn damaged(directory: &Path) {
        let fence = Fence::claim(directory, "u", 1, 7).unwrap();
        let mut journal = Journal::open(&fence.journal()).unwrap();
        for number in 0..200 {
            journal.put_state(&format!("key {number}"), &json!("x".repeat(500))).unwrap();
        }
        drop(journal);
        let file = fs::File::options().write(true).open(fence.journal()).unwrap();
        file.write_all_at(&[0xff; 4096], file.metadata().unwrap().len() - 8192).unwrap();
    }

    fn explained(directory: &Path, epoch: u64) -> String {
        let error = Fence::claim(directory, "u", epoch, 8).err().unwrap();
        with_way_back(error.into(), &RunStore::Folder(directory.to_owned())).to_string()
    }

    #[test]
    fn a_damaged_journal_is_named_with_the_checkpoint_that_can_be_restored() {
        let directory = tempfile::tempdir().unwrap();
        damaged(directory.path());
        let journal = directory.path().join("journal-1-7.sqlite");
        let same_process = explained(directory.path(), 1);
        let start = format!(
            "failed to take over the run's journal: the journal {} is damaged: ",
            journal.display()
        );
        assert!(same_process.starts_with(&start), "{same_process}");
        assert!(same_process.contains("; the run has no complete checkpoint: "), "{same_process}");

        let checkpoint = directory.path().join("checkpoints/step-40.attempt-1");
        fs::create_dir_all(&checkpoint).unwrap();
        fs::write(checkpoint.join(checkpoints::MANIFEST), "{}").unwrap();
        let successor = explained(directory.path(), 2);
        assert!(successor.starts_with(&start), "{successor}");
        let end = format!(
            "; the newest complete checkpoint is that of step 40: create an RLJob with another \
             name and restoreFrom.path: {}, which samples the steps after 40 again, or restore \
             the file from a backup",
            checkpoint.display()
        );
        assert!(successor.ends_with(&end), "{successor}");
    }

    #[test]
    fn a_journal_that_was_lost_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let check = |is_claimed| {
            let checked = Fence::check_journal(directory.path(), is_claimed);
            checked.map_err(|error| {
                let run_store = RunStore::Folder(directory.path().to_owned());
                with_way_back(error.into(), &run_store).to_string()
            })
        };
        assert_eq!(check(false), Ok(()), "nothing has begun");
        let fence = Fence::claim(directory.path(), "u", 1, 7).unwrap();
        assert_eq!(check(true), Ok(()));
        fs::write(fence.journal(), "").unwrap();
        let start = format!(
            "failed to take over the run's journal: the journal {} is damaged: the file is \
             missing or empty; the run has no complete checkpoint: ",
            fence.journal().display()
        );
        let lost = || check(true).unwrap_err();
        assert!(lost().starts_with(&start), "{}", lost());
        fs::remove_file(fence.journal()).unwrap();
        assert!(lost().starts_with(&start), "{}", lost());
        fs::remove_file(directory.path().join("fence.json")).unwrap();
        assert!(lost().contains("journal.sqlite is damaged: "), "{}", lost());
    }

    #[test]
    fn other_errors_have_no_way_back() {
        let error = || anyhow::anyhow!("the disk is full");
        let run_store = RunStore::Folder("/nowhere".into());
        assert_eq!(with_way_back(error(), &run_store).to_string(), "the disk is full");
    }
}
