//! Rollbacks that a run configuration requests.

use std::fs;
use std::path::Path;

use rljob_protocol::status::StepMetrics;
use serde_json::{Value, json};

use super::*;
use crate::persistence::journal::FixedBatch;

/// A claimed run directory with three steps and checkpoints of steps 2 and 3.
struct RunDirectory {
    folder: tempfile::TempDir,
    fence: Fence,
    journal: Journal,
}

impl RunDirectory {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fence = Fence::claim(folder.path(), "u", 1, 7).unwrap();
        let journal = Journal::open(&fence.journal()).unwrap();
        Self { folder, fence, journal }
    }

    fn train(&mut self) {
        for step in self.journal.newest_batch().unwrap().0 + 1..=3 {
            let position = u64::from(step);
            let (positions, next_position) = (vec![position - 1], position);
            let batch = FixedBatch { step, positions, next_position, ..FixedBatch::default() };
            self.journal.fix_batch(&batch).unwrap();
            self.journal.report_step(&StepMetrics::with_scalars(step, [("loss", 0.5)])).unwrap();
        }
        for step in [2, 3] {
            put_checkpoint(self.folder.path(), step);
        }
    }

    fn open(&mut self, target: &Value) -> Result<(), String> {
        let config = config(self.folder.path(), target);
        let run_store = RunStore::Folder(self.folder.path().to_owned());
        let done = requested(&config, &run_store, &self.fence, &mut self.journal);
        done.map_err(|error| format!("{error:#}"))
    }

    /// Last step, and number of events.
    fn state(&self) -> (u32, usize) {
        (self.journal.last_step().unwrap(), self.journal.events(9).unwrap().len())
    }

    fn has_checkpoint(&self, step: u32) -> bool {
        self.folder.path().join(format!("checkpoints/step-{step}.attempt-0")).exists()
    }
}

fn config(directory: &Path, target: &Value) -> RunConfig {
    serde_json::from_value(json!({
        "namespace": "default", "name": "job", "uid": "u", "runDirectory": directory,
        "modelDirectory": directory,
        "spec": {
            "model": {"path": "/models/none"},
            "storage": {"hostPath": {"path": "/tmp"}},
            "dataset": {
                "train": {"path": "/data/a.jsonl", "prompt": "{{q}}", "completion": "{{a}}"},
            },
            "algorithm": {"sft": {}},
            "training": {"steps": 3},
            "rollbackTo": target,
        },
    }))
    .unwrap()
}

fn put_checkpoint(directory: &Path, step: u32) {
    let version = Version { step, attempt: 0 };
    let folder = directory.join(checkpoints::folder(version));
    fs::create_dir_all(&folder).unwrap();
    let manifest = json!({
        "format": 1, "version": version, "worldSize": 1,
        "model": {"sha256": "0", "blockNumels": []},
        "optimizer": {"updates": step, "skippedInARow": 0}, "files": [],
    });
    fs::write(folder.join(checkpoints::MANIFEST), manifest.to_string()).unwrap();
}

#[test]
fn a_request_is_done_once_and_another_time_repeats_it() {
    let mut run = RunDirectory::new();
    run.train();
    run.open(&Value::Null).unwrap();
    assert_eq!(run.state(), (3, 0));
    let target = json!({"step": 2});
    run.open(&target).unwrap();
    assert_eq!(run.state(), (2, 1));
    assert!(run.has_checkpoint(2) && !run.has_checkpoint(3));
    let record = run.journal.get_state(record::KEY).unwrap().unwrap();
    assert_eq!(record["attempt"], 1, "names of checkpoints are not used twice");

    run.train();
    run.open(&target).unwrap();
    assert_eq!(run.state(), (3, 1), "the request was done");
    run.open(&json!({"step": 2, "requestedAt": "2026-01-01T00:00:00Z"})).unwrap();
    assert_eq!(run.state(), (2, 2));
}

#[test]
fn an_impossible_request_changes_nothing_and_says_what_to_do() {
    let mut run = RunDirectory::new();
    run.train();
    for _ in 0..2 {
        let error = run.open(&json!({"step": 1})).unwrap_err();
        let expected = "failed to roll back to step 1: to continue the run, suspend it, then \
            change or remove spec.rollbackTo: no complete checkpoint of step 1; complete ones: \
            step-2.attempt-0, step-3.attempt-0";
        assert_eq!(error, expected);
    }
    assert_eq!(run.state(), (3, 0));
    assert!(run.has_checkpoint(3));
}

#[test]
fn a_run_that_has_not_begun_has_nothing_to_discard() {
    let mut run = RunDirectory::new();
    run.open(&json!({"step": 2})).unwrap();
    run.train();
    run.open(&json!({"step": 2})).unwrap();
    assert_eq!(run.state(), (3, 0));
}
