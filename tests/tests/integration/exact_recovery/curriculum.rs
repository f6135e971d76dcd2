//! Curriculum: kills do not change which rows are skipped.

use std::fs;

use rljob_crds::names::METRICS_FILE;
use rljob_protocol::metrics::SKIPPED_ROWS;

use super::{Victim, assert_same_result, practise, untimed_lines};
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
    let [expected, found] = ["curriculum", "curriculum-killed"].map(|runs| {
        let mut run = practise(runs, &sets, &[]);
        if runs == "curriculum-killed" {
            for (step, victim) in [
                (2, Victim::Coordinator),
                (4, Victim::Engine),
                (5, Victim::Coordinator),
                (7, Victim::Learner(1)),
                (8, Victim::Coordinator),
            ] {
                run.wait_for_steps(step);
                run.kill_after_log_lines(victim, 5);
            }
        }
        let directory = run.local.runs.join("default/practise");
        let (code, output) = run.local.end();
        assert_eq!(code, Some(0), "{output}");
        directory
    });
    assert_same_result(&found, &expected);
    assert_eq!(query(&found, PASS_RATES), query(&expected, PASS_RATES));
    let [steps, expected_steps] =
        [&found, &expected].map(|run| untimed_lines(&run.join(METRICS_FILE)));
    assert_eq!(steps, expected_steps);
    let skipped: u64 = steps.iter().map(|step| step[SKIPPED_ROWS].as_f64().unwrap() as u64).sum();
    let used: u64 = query(&found, "SELECT max(next_position) FROM batches").trim().parse().unwrap();
    assert!(skipped > 0, "{steps:?}");
    assert_eq!(used, PROMPTS + skipped);
}
