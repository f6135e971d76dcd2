//! Elements read back: an engine that holds other weights than the learners sent is replaced.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rljob_crds::names::{WEIGHT_PROBES_FILE, WEIGHTS_DIR};
use rljob_tests::process::{wait_until, wait_until_still};
use serde_json::{Value, json};

use super::{Victim, assert_same, practise};
use crate::journal::query;
use crate::local_run::LIMIT;

/// Part of the error about another element.
const WRONG: &str = "the learners sent";

/// Time after which a run that waits for its engine does nothing else: a step takes less.
const STILL: Duration = Duration::from_secs(6);

/// Changes the first element that the learners noted of each published folder, and returns the
/// files with their contents.
fn change_elements(directory: &Path) -> Vec<(PathBuf, String)> {
    let folders = fs::read_dir(directory.join(WEIGHTS_DIR)).unwrap();
    let files = folders.map(|folder| folder.unwrap().path().join(WEIGHT_PROBES_FILE));
    let change = |file: PathBuf| {
        let content = fs::read_to_string(&file).unwrap();
        let mut probes: Value = serde_json::from_str(&content).unwrap();
        let value = probes[0]["values"][0].as_f64().unwrap();
        probes[0]["values"][0] = json!(value + 1.0);
        fs::write(&file, probes.to_string()).unwrap();
        (file, content)
    };
    files.filter(|file| file.exists()).map(change).collect()
}

#[test]
fn an_engine_that_holds_other_weights_is_replaced_and_the_result_does_not_change() {
    // The run waits for its only engine.
    let sets = ["practise:spec.weightSync.method=Disk", "practise:spec.inference.replicas=1"];
    let mut run = practise("read-back", &sets, &[]);
    let directory = run.local.runs.join("default/practise");
    run.wait_for_steps(2);
    run.pause(Victim::Engine);
    let log = run.log("coordinator");
    let lines = || Ok(fs::read_to_string(&log)?.matches("weights are on disk").count());
    wait_until_still("the run without its engine", LIMIT, STILL, lines).unwrap();
    let files = change_elements(&directory);
    run.kill_after_log_lines(Victim::Engine, 0);
    let failed = || Ok(fs::read_to_string(&log).unwrap_or_default().contains(WRONG));
    wait_until("an update with other weights to fail", LIMIT, failed).unwrap();
    for (file, content) in files {
        fs::write(file, content).unwrap();
    }
    assert_same(run);
    let failures = "SELECT count(*) > 0 FROM events WHERE kind = 'EngineUpdateFailed' \
        AND json_extract(detail, '$.error') LIKE '%the learners sent%'";
    assert_eq!(query(&directory, failures), "1");
}
