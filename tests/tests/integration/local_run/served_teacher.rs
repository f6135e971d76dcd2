//! Distillation from a served teacher: an engine of the job or a server, both `rljob-engine`,
//! serves the export of an earlier job. The losses are those of a run whose learners hold the same
//! teacher.

use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::names::{EXPORT_DIR, METRICS_FILE};
use rljob_protocol::metrics::{LOSS, REFERENCE_KL, StepMetrics};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::Value;
use tempfile::TempDir;

use super::data::validate;
use super::served_model::ServedModel;
use super::{LocalRun, folder_with};
use crate::exact_recovery::{assert_same_result, untimed_lines};

const JOBS: &str = include_str!("served_teacher.yaml");
/// Largest relative difference of fp32 passes of engine and learner: with equal weights of the
/// policy, in the first step (1e-8 was measured), and after updates, which amplify it (7e-5).
const ROUNDING: [f64; 2] = [1e-6, 1e-3];
/// What a run gives to its engines.
const AS_OF_A_RUN: [&str; 3] = ["--deterministic", "--dtype", "float32"];

#[test]
fn a_served_teacher_gives_the_losses_of_one_that_the_learners_hold() {
    let folder = finished(JOBS);
    let [engines, served] = ["engines", "served"].map(|job| run_of(&folder, job));
    let [by_engines, by_server] =
        [&engines, &served].map(|run| untimed_lines(&run.join(METRICS_FILE)));
    assert_eq!(by_engines, by_server);
    assert_same_result(&engines, &served);
    assert_equal_losses(&folder);
}

#[test]
fn a_served_teacher_beside_rewards_gives_the_losses_of_one_that_the_learners_hold() {
    let rewards = r#"  rewards: [{name: digits, regex: {pattern: "^[0-9]{3}"}}]"#;
    let jobs = JOBS.split("---\n").filter(|job| !job.contains("name: engines"));
    let jobs = jobs.collect::<Vec<_>>().join("---\n");
    let jobs = jobs
        .replace("distillation: {groupSize: 4, ", "grpo: {distillation: {coefficient: 10, ")
        .replace("export}}", "export}}, groupSize: 4}")
        .replace(r#"PORT"}}}"#, r#"PORT"}}}, groupSize: 4}"#)
        .replace("  rollout: {", &format!("{rewards}\n  rollout: {{"));
    assert_equal_losses(&finished(&jobs));
}

fn run_of(folder: &TempDir, job: &str) -> PathBuf {
    folder.path().join("runs/default").join(job)
}

/// Runs the jobs to their end, beside a server with the teacher.
fn finished(jobs: &str) -> TempDir {
    let port = ServedModel::free_port();
    let folder = folder_with(&jobs.replace("PORT", &port.to_string()));
    let local = LocalRun::start(folder.path(), "runs");
    // The engine waits for the export.
    let export = run_of(&folder, "teach").join(EXPORT_DIR);
    let _teacher = ServedModel::start(port, &export, &AS_OF_A_RUN);
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    folder
}

/// Compares the losses of the jobs with a teacher in the learners and behind a server.
fn assert_equal_losses(folder: &TempDir) {
    let [held, served] = ["held", "served"].map(|job| run_of(folder, job));
    let steps = |run: &Path| {
        let lines = fs::read_to_string(run.join(METRICS_FILE)).unwrap();
        let steps = lines.lines().map(|line| serde_json::from_str::<StepMetrics>(line).unwrap());
        steps.collect::<Vec<_>>()
    };
    let (held, served) = (steps(&held), steps(&served));
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

/// A copy of the model beside it whose tokenizer has other ids of two digits.
fn with_other_tokenizer(folder: &Path) -> PathBuf {
    let [model, teacher] = ["model", "teacher"].map(|name| folder.join(name));
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
    teacher
}

/// Checks that a message says that the tokenizers differ.
fn assert_other_tokenizer(output: &str, folder: &Path) {
    let [model, teacher] = ["model", "teacher"].map(|name| folder.join(name));
    let start = format!(
        "the teacher {} has another tokenizer than the policy {}: the tokens of ",
        teacher.display(),
        model.display()
    );
    let end = "serve a teacher with the tokenizer of the policy";
    assert!(output.contains(&start) && output.contains(end), "{output}");
}

#[test]
fn a_served_teacher_with_another_tokenizer_fails_the_run() {
    let port = ServedModel::free_port();
    let served = JOBS.rsplit("---\n").next().unwrap().replace("PORT", &port.to_string());
    let folder = folder_with(&served);
    let teacher = with_other_tokenizer(folder.path());
    let _teacher = ServedModel::start(port, &teacher, &["--load-format", "dummy"]);
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(1), "{output}");
    assert_other_tokenizer(&output, folder.path());
}

#[test]
fn validate_compares_the_tokenizer_and_the_weights_of_a_teacher_on_engines() {
    let job = JOBS.split("---\n").nth(2).unwrap().replace("runs/default/teach/export", "teacher");
    let folder = folder_with(&job);
    let teacher = with_other_tokenizer(folder.path());
    let tensor = TensorView::new(Dtype::F32, vec![2, 2], &[0; 16]).unwrap();
    let weights = [("model.embed_tokens.weight", tensor)];
    serialize_to_file(weights, None, &teacher.join("model.safetensors")).unwrap();
    let (code, output) = validate(folder.path(), "--local");
    assert_eq!(code, Some(1), "{output}");
    assert_other_tokenizer(&output, Path::new("FOLDER"));
    fs::copy(folder.path().join("model/tokenizer.json"), teacher.join("tokenizer.json")).unwrap();
    let (code, output) = validate(folder.path(), "--local");
    let expected = "the weights in FOLDER/teacher do not fit its config.json: \
        `model.embed_tokens.weight` in model.safetensors is [2, 2], expected [";
    assert!(code == Some(1) && output.contains(expected), "{output}");
}
