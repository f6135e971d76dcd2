//! Claims of run directories by coordinators of the same and of different jobs.

use super::{Fence, FenceError};
use crate::persistence::journal::Journal;
use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};
use serde_json::json;

fn replaced(result: Result<(), FenceError>) -> String {
    let Err(error @ FenceError::Replaced { .. }) = result else { panic!("{result:?}") };
    error.to_string()
}

#[tokio::test]
async fn what_a_replaced_coordinator_writes_changes_nothing_and_what_it_answered_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let claim = |epoch| Fence::claim(directory.path(), "u", epoch, epoch + 100).unwrap();
    let open =
        |fence: &Fence| SharedJournal::new(Journal::open(&fence.journal()).unwrap(), fence.clone());
    let old = claim(1);
    let old_journal = open(&old);
    old_journal.call(|journal| journal.put_state("told", &json!(1))).await.unwrap();
    // The old one is neither stopped nor gone, and its lock stands.
    let new = claim(2);
    let new_journal = open(&new);
    let refused =
        old_journal.call(|journal| journal.put_state("told", &json!(2))).await.unwrap_err();
    assert!(
        matches!(
            refused,
            SharedJournalError::Fenced(FenceError::Replaced { own: 1, epoch: 2, .. })
        ),
        "{refused:?}"
    );
    old.lost().await;
    drop(old_journal);
    let (told, link) = (
        new_journal.call(|journal| journal.get_state("told")).await.unwrap(),
        directory.path().join("journal.sqlite"),
    );
    assert_eq!(
        (told, std::fs::canonicalize(link).unwrap()),
        (Some(json!(1)), std::fs::canonicalize(new.journal()).unwrap())
    );
    new_journal.call(|journal| journal.put_state("told", &json!(3))).await.unwrap();
}

#[test]
fn the_highest_epoch_wins_and_a_recreated_job_starts_at_any_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let claim =
        |uid: &str, epoch, incarnation| Fence::claim(directory.path(), uid, epoch, incarnation);
    let first = claim("u1", 4, 1).unwrap();
    let lower = replaced(claim("u1", 3, 2).map(drop));
    assert_eq!(
        lower,
        "this coordinator (epoch 3) was replaced by that of epoch 4 of the job with uid u1"
    );
    assert_eq!(
        claim("u1", 4, 3).unwrap().journal(),
        first.journal(),
        "a restarted process continues"
    );
    first.raise(6).unwrap();
    assert_eq!(
        (first.epoch(), replaced(claim("u1", 5, 4).map(drop)).contains("epoch 6")),
        (6, true)
    );
    let recreated = claim("u2", 1, 5).unwrap();
    assert_eq!(
        replaced(first.check()),
        "this coordinator (epoch 6) was replaced by that of epoch 1 of the job with uid u2"
    );
    recreated.check().unwrap();
}

#[test]
fn a_journal_of_an_earlier_release_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("journal.sqlite");
    Journal::open(&plain).unwrap().put_state("told", &json!(1)).unwrap();
    let fence = Fence::claim(directory.path(), "u", 1, 1).unwrap();
    assert_eq!(Journal::open(&fence.journal()).unwrap().get_state("told").unwrap(), Some(json!(1)));
    assert!(plain.is_symlink());
}
