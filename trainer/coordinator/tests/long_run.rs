//! Restart of a coordinator after 100,000 steps: memory stays far below the default request of
//! 256 MiB, in the directory of a run as in a bucket's copy. Prints the figures with --nocapture.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Instant;

use rljob_coordinator::files::Files;
use rljob_coordinator::persistence::fence::Fence;
use rljob_coordinator::persistence::journal::Journal;
use rljob_protocol::status::{EvaluationMetrics, StepMetrics};
use rusqlite::Connection;

const STEPS: u32 = 100_000;
/// Highest peak of resident memory, in KiB.
const LIMIT: u64 = 128 << 10;

/// A line of `metrics.jsonl` with the number of values that a run with GRPO has.
fn metrics(step: u32) -> String {
    let mut metrics = StepMetrics { step, ..StepMetrics::default() };
    for index in 0..40 {
        metrics.scalars.set(format!("group/metric_{index}"), f64::from(step) / 7.0);
    }
    serde_json::to_string(&metrics).unwrap()
}

/// Fills the journal of a run, and its JSONL files as earlier releases named them.
fn write_run(folder: &Path) {
    drop(Journal::open(&folder.join("journal.sqlite")).unwrap());
    let connection = Connection::open(folder.join("journal.sqlite")).unwrap();
    connection.pragma_update(None, "synchronous", "OFF").unwrap();
    let (mut metrics_file, mut samples_file) = (String::new(), String::new());
    let mut evaluations_file = String::new();
    connection.execute_batch("BEGIN").unwrap();
    let insert = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
        connection.prepare_cached(sql).unwrap().execute(values).unwrap();
    };
    for step in 1..=STEPS {
        let line = metrics(step);
        writeln!(metrics_file, "{line}").unwrap();
        let text = "word ".repeat(100);
        writeln!(samples_file, "{{\"step\":{step},\"completion\":\"{text}\"}}").unwrap();
        // The last step is in no file: a crash came between journal and file.
        if step > STEPS - 12_000 {
            insert("INSERT INTO steps VALUES (?1, 0, ?2)", &[&step, &line]);
        }
        insert("INSERT INTO batches VALUES (?1, 8, ?1, 0, 0)", &[&step]);
        if step % 10 == 0 {
            let metrics = EvaluationMetrics { step, ..EvaluationMetrics::default() };
            let line = serde_json::to_string(&metrics).unwrap();
            writeln!(evaluations_file, "{line}").unwrap();
            insert("INSERT INTO evaluations VALUES (?1, ?2)", &[&step, &line]);
        }
    }
    let metrics_file = metrics_file.trim_end().rsplit_once('\n').unwrap().0.to_owned() + "\n";
    connection.execute_batch("COMMIT").unwrap();
    for (name, text) in [
        ("metrics.jsonl", metrics_file),
        ("samples.jsonl", samples_file),
        ("evaluations.jsonl", evaluations_file),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// Peak of resident memory in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Starts as a coordinator does that finds the run of another process.
fn restart(folder: &Path) {
    let began = Instant::now();
    let fence = Fence::claim(folder, "uid", 1, 1).unwrap();
    let mut journal = Journal::open(&fence.journal()).unwrap();
    let files = Files::open(&fence).unwrap();
    assert_eq!(journal.evaluated_steps().unwrap().len(), STEPS as usize / 10);
    files.catch_up(&journal).unwrap();
    assert_eq!(journal.metrics(STEPS).unwrap().unwrap().step, STEPS);
    let lines = BufReader::new(File::open(folder.join("metrics.jsonl")).unwrap()).lines();
    assert_eq!(lines.count(), STEPS as usize, "every step is in metrics.jsonl");
    journal.follow().unwrap();
    journal.write_part(&folder.join("part"), true).unwrap();
    println!(
        "100,000 steps: journal {} MiB, whole part {} MiB, restart {:.1} s",
        fs::metadata(fence.journal()).unwrap().len() >> 20,
        fs::metadata(folder.join("part")).unwrap().len() >> 20,
        began.elapsed().as_secs_f64(),
    );
}

/// The run is written and restarted in separate processes, so that the peak is that of the
/// restart.
#[test]
fn a_run_of_100_000_steps_restarts_in_little_memory() {
    let part = "RLJOB_LONG_RUN";
    if let Some(folder) = std::env::var_os(part) {
        write_run(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let written = std::process::Command::new(std::env::current_exe().unwrap())
        .env(part, folder.path())
        .status()
        .unwrap();
    assert!(written.success());
    let before = peak();
    restart(folder.path());
    println!("peak of resident memory: {} MiB ({} MiB before)", peak() >> 10, before >> 10);
    assert!(peak() < LIMIT, "{} KiB", peak());
}
