//! Tests of the parts of the journal.

use jiff::Timestamp;
use rljob_protocol::status::StepMetrics;
use rljob_protocol::version::Version;
use serde_json::json;

use super::super::{Checkpoint, Event, FixedBatch, PassRate, Rejections, tests::sample};
use super::*;

fn rows(journal: &Journal) -> Vec<String> {
    let of = |(table, _): &(&str, &str)| {
        let mut statement =
            journal.connection.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2")).unwrap();
        let columns = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            Ok((0..columns)
                .map(|index| format!("{:?}", row.get_ref(index).unwrap()))
                .collect::<Vec<_>>()
                .join("|"))
        };
        statement
            .query_map([], row)
            .unwrap()
            .map(|row| format!("{table}: {}", row.unwrap()))
            .collect::<Vec<_>>()
    };
    FOLLOWED.iter().chain([&("samples", "")]).flat_map(of).collect()
}

#[test]
fn a_journal_is_rebuilt_from_a_full_part_later_changes_and_samples() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut journal = Journal::open(&path("one")).unwrap();
    let (version, event) = (
        |step| Version { step, attempt: 0 },
        Event { at: Timestamp::UNIX_EPOCH, kind: "Begun".to_owned(), detail: json!({}) },
    );
    let rate = |position| PassRate { position, part: 0, row: 9, epoch: 0, correct: 1, samples: 2 };
    journal.follow().unwrap();
    assert!(!journal.has_changed().unwrap());
    journal.put_event(&event).unwrap();
    journal.put_state("run", &json!(1)).unwrap();
    journal.put_checkpoint(&Checkpoint { version: version(1), path: "/x".into() }).unwrap();
    journal.write_part(&path("0"), true).unwrap();
    assert!(!journal.has_changed().unwrap());

    journal.put_samples(&[sample(0, 0), sample(0, 1), sample(1, 0), sample(2, 0)]).unwrap();
    assert!(!journal.has_changed().unwrap(), "samples of no batch are in no part");
    journal
        .fix_batch(&FixedBatch {
            step: 1,
            positions: vec![0, 1],
            next_position: 4,
            passed_over: vec![2, 3],
            rejections: Rejections { samples: 2, groups: 0 },
            pass_rates: vec![rate(0), rate(1)],
            ..FixedBatch::default()
        })
        .unwrap();
    assert_eq!((journal.has_changed().unwrap(), journal.new_batches().unwrap()), (true, vec![1]));
    journal.write_samples(1, &path("samples")).unwrap();
    journal.put_sample_object(1, &json!("there")).unwrap();
    journal.put_state("run", &json!(2)).unwrap();
    journal.report_step(&StepMetrics::with_scalars(1, [("loss", 0.1)])).unwrap();
    journal.drop_checkpoint(version(1)).unwrap();
    journal.write_part(&path("1"), false).unwrap();

    let mut other = Journal::open(&path("two")).unwrap();
    for part in ["0", "1", "samples"] {
        other.read_part(&path(part)).unwrap();
    }
    let without_pending: Vec<String> =
        rows(&journal).into_iter().filter(|row| !row.starts_with("samples: Integer(2)|")).collect();
    assert_eq!(rows(&other), without_pending);
    assert_eq!(other.sample_objects().unwrap(), [(1, json!("there"))]);
    other.prune_through(1).unwrap();
    assert_eq!(other.sample_objects().unwrap(), []);
}
