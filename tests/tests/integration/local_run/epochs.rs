//! `training.epochs`: the run has the steps of its data, as a run with this number of steps.

use std::fs;
use std::path::Path;

use rljob_crds::names::EXPORT_DIR;

use super::{JOBS, LocalRun, folder_with, weights};

/// The SFT job with this `training`, on 160 rows in batches of 64, with a rate that falls to 0.
fn job(training: &str) -> String {
    let (imitate, _) = JOBS.split_once("---\n").unwrap();
    imitate
        .replace("steps: 120", training)
        .replace("warmupSteps: 10", "warmupSteps: 3, schedule: Linear")
        .replace("path: teacher.jsonl", "path: few.jsonl")
}

fn write_few_rows(folder: &Path) {
    let rows = fs::read_to_string(folder.join("teacher.jsonl")).unwrap();
    let few: Vec<&str> = rows.split_inclusive('\n').take(160).collect();
    fs::write(folder.join("few.jsonl"), few.concat()).unwrap();
}

#[test]
fn a_run_of_epochs_ends_with_the_weights_of_a_run_with_their_steps() {
    let folder = folder_with(&job("epochs: 4"));
    write_few_rows(folder.path());
    let (code, output) = LocalRun::start(folder.path(), "epochs").end();
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("imitate: 4 epochs in "), "{output}");
    assert!(output.contains("step 10/10  loss"), "{output}");
    fs::write(folder.path().join("jobs.yaml"), job("steps: 10")).unwrap();
    let (code, output) = LocalRun::start(folder.path(), "steps").end();
    assert_eq!(code, Some(0), "{output}");
    let export =
        |runs: &str| weights(&folder.path().join(runs).join("default/imitate").join(EXPORT_DIR));
    assert!(export("epochs") == export("steps"), "the weights differ");

    fs::write(folder.path().join("jobs.yaml"), job("epochs: 4")).unwrap();
    let (code, output) = LocalRun::start(folder.path(), "epochs").end();
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("to train further, raise spec.training.epochs"), "{output}");
    fs::write(folder.path().join("jobs.yaml"), job("epochs: 5")).unwrap();
    let (code, output) = LocalRun::start(folder.path(), "epochs").end();
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("step 13/13  loss"), "{output}");
}

#[test]
fn too_few_steps_of_epochs_fail_the_run_with_the_number_of_steps() {
    let folder = folder_with(&job("epochs: 1"));
    write_few_rows(folder.path());
    let jobs = job("epochs: 1").replace("warmupSteps: 3", "warmupSteps: 4");
    fs::write(folder.path().join("jobs.yaml"), jobs).unwrap();
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(1), "{output}");
    let cause = "training.epochs is 1, which is 3 steps of this data, but optimizer.warmupSteps is \
        4; lower it to 3 or less";
    assert!(output.contains(cause), "{output}");
}
