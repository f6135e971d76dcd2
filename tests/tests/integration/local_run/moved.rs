//! A run whose project folder has moved continues if its inputs have the same contents.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use super::{INTERRUPTED, JOBS, LocalRun, assert_same_weights, fill};

/// Runs up to a step of a job, then moves the folder with its runs.
fn interrupt_and_move(from: &Path, to: &Path, job: &str, steps: usize) {
    let local = LocalRun::start(from, "runs");
    local.wait_for_steps(job, steps);
    local.signal(Signal::INT);
    let (code, output) = local.end();
    assert_eq!(code, Some(INTERRUPTED), "{output}");
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::rename(from, to).unwrap();
}

/// Starts the run with a changed file and asserts that it is refused.
fn assert_refused(folder: &Path, file: &str, expected: &str) {
    let path = folder.join(file);
    let before = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{before}\n")).unwrap();
    let (code, output) = LocalRun::start(folder, "runs").end();
    assert!(code == Some(1) && output.contains(expected), "{code:?} {expected}\n{output}");
    fs::write(&path, before).unwrap();
}

#[test]
fn a_run_resumes_after_its_folder_has_moved_with_the_same_weights_and_other_inputs_are_refused() {
    let parent = tempfile::tempdir().unwrap();
    let [first, second, third] =
        ["first", "second/project", "third"].map(|name| parent.path().join(name));
    fs::create_dir(&first).unwrap();
    fill(&first, JOBS);
    interrupt_and_move(&first, &second, "imitate", 70);
    let model = "a run with another spec.model (other contents)";
    assert_refused(&second, "model/config.json", model);
    let data =
        "spec.dataset.train.path differ, and the contents of spec.dataset.train.path are others";
    assert_refused(&second, "teacher.jsonl", data);
    interrupt_and_move(&second, &third, "practise", 7);
    assert_refused(&third, "train.jsonl", data);
    assert_same_weights(LocalRun::start(&third, "runs"));
}
