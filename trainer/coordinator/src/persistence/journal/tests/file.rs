//! Tests of the file: its durability, its lock, and its schema across releases.

use rusqlite::Connection;
use serde_json::json;

use super::super::{Journal, JournalError, Pending};
use super::{Place, batch, reopened, sample};

#[test]
fn a_journal_has_one_user_at_a_time() {
    let place = Place::new();
    let journal = place.open();
    let error = Journal::open(&place.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the journal {} is held by another process: a run directory has one coordinator at \
                a time",
            place.path().display()
        )
    );
    reopened(journal, &place);
}

#[test]
fn a_batch_that_was_fixed_is_on_the_disk_though_the_journal_is_never_closed() {
    let place = Place::new();
    let mut journal = place.open();
    journal.put_samples(&[sample(0, 0)]).unwrap();
    journal.fix_batch(&batch(1, &[0])).unwrap();
    // The files as a power cut would leave them: no checkpoint of the write-ahead log, no farewell.
    let after = Place::new();
    for name in ["journal.sqlite", "journal.sqlite-wal"] {
        std::fs::copy(place.folder.path().join(name), after.folder.path().join(name)).unwrap();
    }
    let journal_after = after.open();
    assert_eq!(
        (journal_after.newest_batch().unwrap(), journal_after.samples(1).unwrap()),
        ((1, 1), vec![sample(0, 0)])
    );
    drop(journal);
}

#[test]
fn durability_and_locking_are_what_the_module_says() {
    let place = Place::new();
    let journal = place.open();
    let text = |name| {
        journal.connection.pragma_query_value(None, name, |row| row.get::<_, String>(0)).unwrap()
    };
    let synchronous: i64 =
        journal.connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
    assert_eq!(
        (text("journal_mode").as_str(), text("locking_mode").as_str(), synchronous),
        ("wal", "exclusive", 2)
    );
}

#[test]
fn a_newer_release_s_journal_and_another_program_s_database_are_rejected() {
    let place = Place::new();
    drop(place.open());
    let connection = Connection::open(place.path()).unwrap();
    connection.pragma_update(None, "user_version", 7).unwrap();
    drop(connection);
    let error = Journal::open(&place.path()).unwrap_err();
    assert!(matches!(error, JournalError::SchemaVersion { found: 7, expected: 3, .. }), "{error}");

    let other = Place::new();
    Connection::open(other.path()).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let error = Journal::open(&other.path()).unwrap_err();
    assert!(matches!(error, JournalError::NotAJournal { application_id: 0, .. }), "{error}");

    let noise = Place::new();
    std::fs::write(noise.path(), "not a database, but long enough to be taken for one".repeat(100))
        .unwrap();
    let error = Journal::open(&noise.path()).unwrap_err();
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
}

#[test]
fn people_can_read_the_tables() {
    let place = Place::new();
    let mut journal = place.open();
    journal.put_samples(&[sample(0, 0)]).unwrap();
    drop(journal);
    let connection = Connection::open(place.path()).unwrap();
    let sql = "SELECT json_extract(segments, '$[1].text'), \
        json_extract(segments, '$[1].versions'), json_extract(sampling, '$.temperature'), \
        hex(tokens), hex(sampler_logprobs) FROM samples";
    let row: (String, String, f64, String, String) =
        connection.query_row(sql, [], |row| row.try_into()).unwrap();
    let prompt = "0100000000000000".to_owned() + "0200000000000000";
    let tokens = prompt + "FFFFFFFF00000000" + "0300000000000000" + "0200000000000000";
    let logprobs = "CDCCCCBD".to_owned() + "00008000" + "000080FF";
    let versions =
        r#"[{"version":"step-4.attempt-0","tokens":2},{"version":"step-3.attempt-0","tokens":1}]"#
            .to_owned();
    assert_eq!(row, ("5 – fünf".to_owned(), versions, 0.7, tokens, logprobs));
}

/// The journal that release 0.1 wrote: schema version 2.
fn previous_journal(place: &Place) {
    std::fs::write(place.path(), include_bytes!("../fixtures/journal-v2.sqlite")).unwrap();
}

#[test]
fn a_journal_of_the_previous_release_is_migrated_when_it_is_opened() {
    let place = Place::new();
    previous_journal(&place);
    let mut journal = place.open();
    assert_eq!(journal.samples(1).unwrap(), [sample(0, 0), sample(0, 1)]);
    assert_eq!(journal.samples(2).unwrap(), [sample(1, 0), sample(1, 1)]);
    let pending = Pending {
        position: 2,
        index: 0,
        reward: sample(2, 0).reward,
        tokens: 3,
        oldest: 3,
        rejected: 0,
    };
    assert_eq!(journal.pending().unwrap(), [pending]);
    assert_eq!(journal.newest_batch().unwrap(), (2, 2));
    assert_eq!(journal.get_state("loader").unwrap(), Some(json!({"position": 3})));
    let columns = |journal: &Journal| {
        let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
        let mut statement = journal.connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        rows.map(|row| row.unwrap().replace(" IF NOT EXISTS", "")).collect::<Vec<_>>()
    };
    let new = Place::new();
    assert_eq!(columns(&journal), columns(&new.open()), "the tables differ from a new journal's");
    journal.put_samples(&[sample(2, 1)]).unwrap();
    journal.fix_batch(&batch(3, &[2])).unwrap();
    assert_eq!(reopened(journal, &place).samples(3).unwrap(), [sample(2, 0), sample(2, 1)]);
}

#[test]
fn parts_of_the_previous_release_are_read() {
    let (place, new) = (Place::new(), Place::new());
    previous_journal(&place);
    let mut journal = new.open();
    journal.read_part(&place.path()).unwrap();
    assert_eq!(journal.samples(1).unwrap(), [sample(0, 0), sample(0, 1)]);
    assert_eq!(journal.newest_batch().unwrap(), (2, 2));
}
