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

#[test]
fn kills_do_not_change_which_rows_a_curriculum_skips() {
    let folder = &baseline().folder;
    let rows = fs::read_to_string(folder.join("train.jsonl")).unwrap();
    let rows: String = rows.split_inclusive('\n').take(ROWS).collect();
    fs::write(folder.join("few.jsonl"), rows).unwrap();
    let sets = [
        "practise:spec.dataset.train.path=few.jsonl",
        "practise:spec.dataset.train.curriculum={min: 0.1, max: 0.9, epochs: 2}",
    ];
    let kills = [
        (2, Victim::Coordinator),
        (4, Victim::Engine),
        (5, Victim::Coordinator),
        (7, Victim::Learner(1)),
        (8, Victim::Coordinator),
    ];
    let ([expected, found], steps) = with_and_without_kills("curriculum", &sets, &kills);
    assert_eq!(query(&found, PASS_RATES), query(&expected, PASS_RATES));
    let skipped: u64 = steps.iter().map(|step| step[SKIPPED_ROWS].as_f64().unwrap() as u64).sum();
    let used: u64 = query(&found, "SELECT max(next_position) FROM batches").trim().parse().unwrap();
    assert!(skipped > 0, "{steps:?}");
    assert_eq!(used, PROMPTS + skipped);
}
