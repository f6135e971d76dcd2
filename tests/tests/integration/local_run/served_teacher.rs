//! Distillation from a served teacher: `rljob-engine` serves the export of an earlier job, and the
//! losses are those of a run whose learners hold the same teacher.

use std::fs;

use rljob_crds::names::{EXPORT_DIR, METRICS_FILE};
use rljob_protocol::metrics::{LOSS, REFERENCE_KL, StepMetrics};
use serde_json::Value;

use super::served_model::ServedModel;
use super::{LocalRun, folder_with};

const JOBS: &str = include_str!("served_teacher.yaml");
/// Largest relative difference of fp32 passes of engine and learner: with equal weights of the
/// policy, in the first step (1e-8 was measured), and after updates, which amplify it (7e-5).
const ROUNDING: [f64; 2] = [1e-6, 1e-3];

#[test]
fn a_served_teacher_gives_the_losses_of_one_that_the_learners_hold() {
    assert_equal_losses(JOBS);
}

#[test]
fn a_served_teacher_beside_rewards_gives_the_losses_of_one_that_the_learners_hold() {
    let rewards = r#"  rewards: [{name: digits, regex: {pattern: "^[0-9]{3}"}}]"#;
    let jobs = JOBS
        .replace("distillation: {groupSize: 4, ", "grpo: {distillation: {coefficient: 10, ")
        .replace("export}}", "export}}, groupSize: 4}")
        .replace(r#"PORT"}}}"#, r#"PORT"}}}, groupSize: 4}"#)
        .replace("  rollout: {", &format!("{rewards}\n  rollout: {{"));
    assert_equal_losses(&jobs);
}

/// Runs the jobs, and compares the losses of those with both teachers.
fn assert_equal_losses(jobs: &str) {
    let port = ServedModel::free_port();
    let folder = folder_with(&jobs.replace("PORT", &port.to_string()));
    let local = LocalRun::start(folder.path(), "runs");
    let runs = folder.path().join("runs/default");
    // The engine waits for the export.
    let _teacher = ServedModel::start(port, &runs.join("teach").join(EXPORT_DIR), &[]);
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    let [held, served] = ["held", "served"].map(|job| {
        let lines = fs::read_to_string(runs.join(job).join(METRICS_FILE)).unwrap();
        let steps = lines.lines().map(|line| serde_json::from_str::<StepMetrics>(line).unwrap());
        steps.collect::<Vec<_>>()
    });
    assert_eq!((held.len(), served.len()), (8, 8));
    for (index, (held, served)) in held.iter().zip(&served).enumerate() {
        let rounding = ROUNDING[index.min(1)];
        for name in [LOSS, REFERENCE_KL] {
            let [held, served] = [held, served].map(|step| step.get(name).unwrap());
            let difference = (held - served).abs();
            assert!(difference < rounding * held.abs(), "{name}: {held} and {served}");
        }
    }
    let [first, last] = [&served[0], &served[7]].map(|step| step.get(REFERENCE_KL).unwrap());
    assert!(last < 0.8 * first, "the divergence from the teacher: {first}, then {last}");
}

#[test]
fn a_served_teacher_with_another_tokenizer_fails_the_run() {
    let port = ServedModel::free_port();
    let served = JOBS.rsplit("---\n").next().unwrap().replace("PORT", &port.to_string());
    let folder = folder_with(&served);
    let [model, teacher] = ["model", "teacher"].map(|name| folder.path().join(name));
    fs::create_dir(&teacher).unwrap();
    for entry in fs::read_dir(&model).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, teacher.join(path.file_name().unwrap())).unwrap();
    }
    let path = teacher.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let vocabulary = &mut tokenizer["model"]["vocab"];
    let [one, two] = [vocabulary["1"].clone(), vocabulary["2"].clone()];
    (vocabulary["1"], vocabulary["2"]) = (two, one);
    fs::write(&path, tokenizer.to_string()).unwrap();
    let _teacher = ServedModel::start(port, &teacher, &["--load-format", "dummy"]);
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    let start = format!(
        "the teacher {} has another tokenizer than the policy {}: the tokens of ",
        teacher.display(),
        model.display()
    );
    let end = "serve a teacher with the tokenizer of the policy";
    assert!(code == Some(1) && output.contains(&start) && output.contains(end), "{output}");
}
