//! Validation loss and intermediate exports of SFT runs.

use std::fs;

use rljob_crds::names::EXPORT_DIR;

use crate::local_run::{JOBS, LocalRun, baseline, evaluations, folder_with, weights};

#[test]
fn a_run_validates_and_exports_at_the_configured_steps() {
    let artifacts = &baseline().artifacts;
    assert_eq!(
        artifacts.validation.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        [0, 40, 80, 120]
    );
    let [first, .., last] = artifacts.validation[..] else { panic!("{:?}", artifacts.validation) };
    assert!(
        f64::from_bits(last.1) < f64::from_bits(first.1),
        "the loss does not decrease: {:?}",
        artifacts.validation
    );
    assert_eq!(
        artifacts.intermediate_exports.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["step-60", "step-90"],
        "keepLast is 2"
    );
    let run = baseline().folder.join("baseline/default/imitate");
    let line = evaluations(&run).pop().unwrap();
    assert_eq!(
        (line.prompts, line.samples, line.sampled, line.loss_tokens),
        (100, 0, None, Some(400)),
        "three digits and an end-of-sequence token each: {line:?}"
    );
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(report.contains("\"lossTokens\":400"), "{report}");
    let log = fs::read_to_string(baseline().folder.join("baseline.log")).unwrap();
    assert!(
        log.contains(&format!("eval 120/120  loss {:.4}  (100 prompts, ", f64::from_bits(last.1))),
        "{log}"
    );
}

#[test]
fn an_intermediate_export_equals_the_final_export_of_a_shorter_run() {
    let export = baseline().folder.join("baseline/default/imitate/exports/step-60");
    let (imitate, practise) = JOBS.split_once("---\n").unwrap();
    let imitate = imitate.replace("steps: 120", "steps: 60");
    let practise = practise
        .replace("rljob: {name: imitate}", &format!("path: {}", export.display()))
        .replace("steps: 12,", "steps: 1,");
    let folder = folder_with(&format!("{imitate}---\n{practise}"));
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    assert!(
        weights(&folder.path().join("runs/default/imitate").join(EXPORT_DIR)) == weights(&export),
        "the weights differ from those of a run of 60 steps"
    );
    let accuracy = evaluations(&folder.path().join("runs/default/practise")).remove(0).greedy;
    assert!(accuracy.is_some(), "engines and learners can load the export");
}

#[test]
fn a_finished_run_whose_steps_are_raised_ends_with_the_weights_of_one_longer_run() {
    let (imitate, _) = JOBS.split_once("---\n").unwrap();
    let folder = folder_with(&imitate.replace("steps: 120", "steps: 60"));
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("to train further, raise spec.training.steps"), "{output}");

    fs::write(folder.path().join("jobs.yaml"), imitate).unwrap();
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    let run = folder.path().join("runs/default/imitate");
    assert!(
        weights(&run.join(EXPORT_DIR)) == baseline().artifacts.exports[0],
        "the weights differ from those of a run of 120 steps\n{output}"
    );
    assert_eq!(
        evaluations(&run).iter().map(|evaluation| evaluation.step).collect::<Vec<_>>(),
        [0, 40, 60, 80, 120],
        "the end of each part is evaluated"
    );
}
