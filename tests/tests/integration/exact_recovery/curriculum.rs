//! Curriculum: kills do not change which rows are skipped.

use std::fs;

use rljob_protocol::metrics::SKIPPED_ROWS;

use super::{Victim, with_and_without_kills};
use crate::journal::query;
use crate::local_run::baseline;

/// Rows of the data, which 12 steps of 16 prompts read several times.
const ROWS: usize = 40;
const PROMPTS: u64 = 12 * 16;
const PASS_RATES: &str = "SELECT * FROM pass_rates ORDER BY position";

/// Runs 12 steps on few rows with and without kills. Returns the skipped rows of each step.
fn skipped_rows(name: &str, curriculum: &str, kills: &[(usize, Victim)]) -> Vec<u64> {
    let folder = &baseline().folder;
    let rows = fs::read_to_string(folder.join("train.jsonl")).unwrap();
    let rows: String = rows.split_inclusive('\n').take(ROWS).collect();
    let file = format!("{name}.jsonl");
    fs::write(folder.join(&file), rows).unwrap();
    let sets = [
        format!("practise:spec.dataset.train.path={file}"),
        format!("practise:spec.dataset.train.curriculum={curriculum}"),
    ];
    let ([expected, found], steps) =
        with_and_without_kills(name, &sets.each_ref().map(String::as_str), kills);
    assert_eq!(query(&found, PASS_RATES), query(&expected, PASS_RATES));
    let skipped: Vec<_> =
        steps.iter().map(|step| step[SKIPPED_ROWS].as_f64().unwrap() as u64).collect();
    let used: u64 = query(&found, "SELECT max(next_position) FROM batches").trim().parse().unwrap();
    assert_eq!(used, PROMPTS + skipped.iter().sum::<u64>(), "{skipped:?}");
    skipped
}

#[test]
#[ignore = "long: make thorough"]
fn kills_do_not_change_which_rows_a_curriculum_skips() {
    let kills = [
        (2, Victim::Coordinator),
        (4, Victim::Engine),
        (5, Victim::Coordinator),
        (7, Victim::Learner(1)),
        (8, Victim::Coordinator),
    ];
    let skipped = skipped_rows("curriculum", "{min: 0.1, max: 0.9, epochs: 2}", &kills);
    assert!(skipped.iter().any(|rows| *rows > 0), "{skipped:?}");
}

#[test]
fn a_run_whose_curriculum_skips_all_rows_continues_with_one_of_each_epoch() {
    let curriculum = "{min: 0.5, correctReward: 1000, epochs: 1000}";
    let skipped = skipped_rows("all-skipped", curriculum, &[(5, Victim::Coordinator)]);
    // The first epoch ends in the third step.
    assert_eq!(skipped[..2], [0, 0], "{skipped:?}");
    assert_eq!(skipped[3..], [16 * ROWS as u64; 9], "{skipped:?}");
}
