//! What a supervised run makes on the way: the loss of data that it does not train on, and exports.

use std::fs;

use rljob_crds::names::EXPORT_DIR;

use crate::local_run::{JOBS, LocalRun, evaluations, folder_with, undisturbed, weights};

#[test]
fn a_run_validates_before_its_first_step_every_n_steps_and_at_its_end_and_exports_on_the_way() {
    let made = &undisturbed().made;
    assert_eq!(made.validation.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 40, 80, 120]);
    let [first, .., last] = made.validation[..] else { panic!("{:?}", made.validation) };
    assert!(
        f64::from_bits(last.1) < f64::from_bits(first.1),
        "it learns nothing: {:?}",
        made.validation
    );
    assert_eq!(
        made.on_the_way.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["step-60", "step-90"],
        "keepLast is 2"
    );
    let run = undisturbed().folder.path().join("undisturbed/default/imitate");
    let line = evaluations(&run).pop().unwrap();
    assert_eq!(
        (line.prompts, line.samples, line.sampled, line.loss_tokens),
        (100, 0, None, Some(400)),
        "three digits and an end each: {line:?}"
    );
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(report.contains("Validation loss") && report.contains("validation"), "{report}");
    let log = fs::read_to_string(undisturbed().folder.path().join("undisturbed.log")).unwrap();
    assert!(
        log.contains(&format!("eval 120/120  loss {:.4}  (100 prompts, ", f64::from_bits(last.1))),
        "{log}"
    );
}

#[test]
fn an_export_made_on_the_way_is_that_of_a_run_that_ended_there_and_another_job_starts_from_it() {
    let export = undisturbed().folder.path().join("undisturbed/default/imitate/exports/step-60");
    let (imitate, practise) = JOBS.split_once("---\n").unwrap();
    let imitate = imitate.replace("steps: 120", "steps: 60");
    let practise = practise
        .replace("exportOf: imitate", &format!("path: {}", export.display()))
        .replace("steps: 12,", "steps: 1,");
    let folder = folder_with(&format!("{imitate}---\n{practise}"));
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    assert!(
        weights(&folder.path().join("runs/default/imitate").join(EXPORT_DIR)) == weights(&export),
        "other weights than those of 60 steps"
    );
    let accuracy = evaluations(&folder.path().join("runs/default/practise")).remove(0).greedy;
    assert!(accuracy.is_some(), "engines and learners read it, with its tokenizer");
}
