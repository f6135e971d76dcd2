//! Algorithms that learn from pairs: what their runs report and export, also after kills.

use std::fs;
use std::path::Path;

use rljob_crds::names::{EXPORT_ADAPTER_DIR, EXPORT_DIR};
use rljob_protocol::metrics::PAIR_ACCURACY;
use serde_json::{Value, json};

use super::{LocalRun, evaluations, folder_with, weights};

/// A DPO job, one of a reward model, and a DPO job of adapters with dropout over the first.
const JOBS: &str = include_str!("pairs.yaml");

/// Exported weights, and validations as steps with bits of loss and accuracy.
fn results(run: &Path) -> (Vec<u8>, Vec<(u32, [u64; 2])>) {
    let bits = |measured: Option<f64>| measured.unwrap().to_bits();
    let validations = evaluations(run);
    let facts = validations
        .iter()
        .map(|one| (one.step, [bits(one.loss), bits(one.scalars.get(PAIR_ACCURACY))]));
    (weights(&run.join(EXPORT_DIR)), facts.collect())
}

/// The first loss is that of equal scores; at the end, most pairs are in the right order.
fn assert_learned(run: &Path, output: &str) {
    let validations = evaluations(run);
    let (first, last) = (&validations[0], &validations[validations.len() - 1]);
    assert_eq!((first.step, last.step, first.prompts), (0, 30, 100));
    assert!((first.loss.unwrap() - std::f64::consts::LN_2).abs() < 1e-6, "{first:?}");
    assert!(last.loss < first.loss && last.scalars.get(PAIR_ACCURACY) > Some(0.5), "{last:?}");
    let line = format!("pair accuracy {:.3}", last.scalars.get(PAIR_ACCURACY).unwrap());
    assert!(output.contains(&line), "{output}");
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    // The steps have a column, evaluations a value each.
    assert!(
        report.contains("\"pairAccuracy\":[") && report.contains("\"pairMargin\":["),
        "{report}"
    );
    assert_eq!(report.matches("\"pairMargin\":").count(), 1 + validations.len(), "{report}");
}

#[test]
#[ignore = "long: make thorough"]
fn killed_learners_do_not_change_the_weights_and_validations_of_runs_on_pairs() {
    let folder = folder_with(JOBS);
    let (code, output) = LocalRun::start(folder.path(), "baseline").end();
    assert_eq!(code, Some(0), "{output}");
    let run = |runs: &str, job: &str| folder.path().join(runs).join("default").join(job);
    let killed = LocalRun::start(folder.path(), "killed");
    for job in ["prefer", "judge"] {
        assert_learned(&run("baseline", job), &output);
        killed.wait_for_steps(job, 2); // before the first checkpoint
        killed.kill("rljob-learner");
        killed.wait_for_steps(job, 11);
        killed.kill("rljob-learner");
    }
    killed.wait_for_steps("adapt", 2);
    killed.kill("rljob-learner");
    killed.wait_for_steps("adapt", 6);
    killed.kill("rljob-learner");
    let (code, output) = killed.end();
    assert_eq!(code, Some(0), "{output}");
    let adapters = |runs: &str| {
        let folder = run(runs, "adapt").join(EXPORT_DIR).join(EXPORT_ADAPTER_DIR);
        fs::read(folder.join("adapter_model.safetensors")).unwrap()
    };
    assert!(adapters("killed") == adapters("baseline"), "the adapters differ\n{output}");
    for job in ["prefer", "judge", "adapt"] {
        let (found, expected) = (results(&run("killed", job)), results(&run("baseline", job)));
        assert_eq!(found.1, expected.1, "{output}");
        assert!(found.0 == expected.0, "the weights of {job} differ from the baseline\n{output}");
    }
    let exported = fs::read(run("baseline", "judge").join(EXPORT_DIR).join("config.json")).unwrap();
    let exported: Value = serde_json::from_slice(&exported).unwrap();
    assert_eq!(exported["architectures"], json!(["LlamaForSequenceClassification"]));
    assert_eq!(
        (&exported["id2label"], &exported["pad_token_id"]),
        (&json!({"0": "LABEL_0"}), &json!(0))
    );
}
