//! Error messages for invalid input. This module: input rejected before any process starts, without
//! changes on disk. [`run`]: input rejected when it is read. [`engines`]: engines that send invalid
//! responses.
//!
//! | Input | Tests |
//! |---|---|
//! | invalid YAML, unknown field, wrong type, two algorithms | this module; operator/src/validate |
//! | missing model, dataset or GPUs; port in use; run directory in use | this module |
//! | missing tensor, wrong shape, checkpoint of another model | [`run`]; learner, module model |
//! | tokenizer of another model | [`run`]; coordinator, module input |
//! | invalid or empty dataset, prompt longer than the context | [`run`]; coordinator, module data |
//! | unavailable or invalid reward server | coordinator, module reward |
//! | corrupted checkpoint, full disk | `local_run`; coordinator and learner, checkpoints |
//! | invalid engine responses, hung engine | [`engines`]; coordinator, module engines |
//! | SIGTERM and SIGKILL of any process | `exact_recovery`, `local_run` |

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use rljob_tests::files::binary;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use tempfile::TempDir;

mod engines;
mod run;
mod tools;

const JOB: &str = include_str!("bad_input/job.yaml");

/// Creates a folder with a model folder, data and a modified `job.yaml`.
fn folder_with(change: impl Fn(String) -> String) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("model")).unwrap();
    let config = "{\"max_position_embeddings\": 64, \"vocab_size\": 16}";
    fs::write(folder.path().join("model/config.json"), config).unwrap();
    fs::write(folder.path().join("model/tokenizer.json"), "{}").unwrap();
    fs::write(folder.path().join("train.jsonl"), "{\"question\": \"1+1=\", \"answer\": \"2\"}\n")
        .unwrap();
    fs::write(folder.path().join("job.yaml"), change(JOB.to_owned())).unwrap();
    folder
}

fn output(folder: &Path, program: &str, arguments: &[&str]) -> Output {
    Command::new(binary(program).unwrap())
        .args(arguments)
        .current_dir(folder)
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap()
}

/// Standard error of a rejected `rljob run`, with the folder's name replaced by `DIR`.
fn rejection(folder: &TempDir, more: &[&str]) -> String {
    let arguments = [&["run", "--file", "job.yaml"], more].concat();
    let output = output(folder.path(), "rljob", &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "a process was started");
    String::from_utf8(output.stderr).unwrap().replace(&folder.path().display().to_string(), "DIR")
}

#[test]
fn invalid_job_files_are_rejected_with_line_and_field() {
    assert_rejected(&[
        (
            "steps: 3, ",
            "steps: [3, ",
            "line 13: did not find expected ',' or ']' at line 13 column ",
        ),
        ("steps: 3", "stepz: 3", "line 13: spec.training.stepz: unknown field; write `steps`"),
        (
            "steps: 3",
            "steps: three",
            "line 13: spec.training.steps: expected integer, found \"three\"",
        ),
        ("format", "rewards: [x], format", "line 8: spec.dataset.train.rewards[0]: `x` is not the"),
        (
            "grpo: {}",
            "grpo: {}, sft: {}",
            "line 10: spec.algorithm: set exactly one of grpo, ppo, sft, dpo, orpo, \
                rewardModel, distillation and evaluation, found grpo and sft",
        ),
        (
            "format",
            "curriculum: {groups: 2}, format",
            "line 8: spec.dataset.train.curriculum: skips nothing: set min above 0 or max below 1",
        ),
        (
            "grpo: {}",
            "distillation: {teacher: {}}",
            "line 10: spec.algorithm.distillation.teacher: set exactly one of path and server, \
                found none",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {multiTurn: {feedback: '{{'}}",
            "line 11: spec.rollout.workflow.multiTurn.feedback: is not a valid template: ",
        ),
        (
            "minibatches: 2",
            "minibatches: 3",
            "line 11: spec.rollout.batchSize: 4 groups cannot be split into training.minibatches \
                = 3 equal parts",
        ),
        (
            "replicas: 1}",
            "replicas: 1, embedded: {}, resources: {limits: {nvidia.com/gpu: 1}}}",
            "line 14: spec.inference.resources.limits: the embedded engine runs on CPUs: remove \
                the GPUs or use sglang",
        ),
        (
            "replicas: 1}",
            "replicas: 1, sglang: {extraArgs: [--port=1]}}",
            "line 14: spec.inference.sglang.extraArgs[0]: the run sets --port; remove it",
        ),
    ]);
}

/// Asserts that the job with a replaced part is rejected with a message.
fn assert_rejected(cases: &[(&str, &str, &str)]) {
    for (from, to, message) in cases {
        let folder = folder_with(|text: String| text.replace(from, to));
        for command in [&["run", "--file", "job.yaml"], &["validate", "--file", "job.yaml"]] {
            let output = output(folder.path(), "rljob", command);
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                stderr.lines().any(|line| line.starts_with(&format!("error: job.yaml: {message}"))),
                "{to}: {stderr}"
            );
            assert_eq!(output.status.code(), Some(1));
        }
        assert!(!folder.path().join("runs").exists());
    }
}

#[test]
fn an_engine_that_spans_pods_is_rejected_on_one_machine() {
    let folder = folder_with(std::convert::identity);
    let spanning =
        ["--set", "spec.inference.sglang={}", "--set", "spec.inference.podsPerReplica=2"];
    let message = "error: sums: spec.inference.podsPerReplica: on one machine an engine is one \
        process: set it to 1, and resources.limits to all GPUs of an engine\n\
        error: sums: spec.inference.sglang: the job runs SGLang, which must be installed on this \
        machine: pass --engine-command 'python3 -m sglang.launch_server'\n";
    assert_eq!(rejection(&folder, &spanning), message);
}

#[test]
fn missing_inputs_are_reported_before_any_process_starts() {
    let unchanged = |text: String| text;
    let folder = folder_with(unchanged);
    fs::remove_file(folder.path().join("train.jsonl")).unwrap();
    fs::remove_dir_all(folder.path().join("model")).unwrap();
    fs::create_dir(folder.path().join("model")).unwrap();
    let missing = |what: &str| {
        format!(
            "error: sums: spec.model.path: DIR/model {what}\nerror: sums: \
                spec.dataset.train.path: DIR/train.jsonl does not exist\n"
        )
    };
    assert_eq!(rejection(&folder, &[]), missing("has no config.json"));
    fs::remove_dir(folder.path().join("model")).unwrap();
    assert_eq!(rejection(&folder, &[]), missing("is not a folder"));

    let folder = folder_with(unchanged);
    let restore = ["--set", "spec.restoreFrom.path=old/checkpoints/step-2.attempt-0"];
    let message = "error: sums: spec.restoreFrom.path: DIR/old/checkpoints/step-2.attempt-0 \
        is not a complete checkpoint: manifest.json is missing\n";
    assert_eq!(rejection(&folder, &restore), message);
    let restore = ["--set", "spec.restoreFrom.rljob.name=unknown"];
    let message = "error: sums: spec.restoreFrom.rljob: `unknown` has no complete checkpoint \
        in DIR/runs/default/unknown/checkpoints; run that job first\n";
    assert_eq!(rejection(&folder, &restore), message);
    let restore = ["--set", "spec.restoreFrom.rljob.name=sums"];
    assert!(
        rejection(&folder, &restore)
            .contains("spec.restoreFrom.rljob.name: is the name of this job")
    );
    let sglang = ["--set", "spec.inference.sglang={}"];
    let message = "error: sums: spec.inference.sglang: the job runs SGLang, which must be \
        installed on this machine: pass --engine-command 'python3 -m sglang.launch_server'\n";
    assert_eq!(rejection(&folder, &sglang), message);
    assert_eq!(
        rejection(&folder, &["--engine-command", "python3"]),
        "error: --engine-command: no job of job.yaml has spec.inference.sglang\n"
    );
    let gpus = [
        &sglang[..],
        &[
            "--set",
            "spec.inference.resources={limits: {nvidia.com/gpu: 2}}",
            "--engine-command",
            "python3",
        ],
    ]
    .concat();
    let rest = "and this machine has 0; reduce replicas or GPUs, or remove the GPUs from the \
        limits to run on CPUs\n";
    let message = format!(
        "error: sums: spec.inference.resources.limits: the job needs 2 GPUs (1 engine with 2 \
            GPUs), {rest}"
    );
    assert_eq!(rejection(&folder, &gpus), message);
    let trainer = ["--set", "spec.trainer.resources={limits: {nvidia.com/gpu: 1}}"];
    let message = format!(
        "error: sums: spec.trainer.resources.limits: the job needs 1 GPU (1 trainer with 1 GPU), \
            {rest}"
    );
    assert_eq!(rejection(&folder, &trainer), message);
    assert!(!folder.path().join("runs").exists());
}

#[test]
fn a_locked_run_directory_is_rejected() {
    let folder = folder_with(|text| text);
    let directory = folder.path().join("runs/default/sums");
    fs::create_dir_all(&directory).unwrap();
    let lock = fs::File::create(directory.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let message = "error: failed to run sums: another `rljob run` is using DIR/runs/default/sums; \
        wait for it, stop it, or choose another --dir\n";
    assert_eq!(rejection(&folder, &[]), message);
    assert!(!directory.join("run.json").exists());
}

/// The job's run configuration for a run directory.
fn run_config(folder: &TempDir, directory: &Path) -> Value {
    let job = fs::read_to_string(folder.path().join("job.yaml")).unwrap();
    let absolute = format!("path: {}/", folder.path().display());
    let job = job.replace("path: model", &format!("{absolute}model"));
    let job = job.replace("path: train", &format!("{absolute}train"));
    fs::write(folder.path().join("absolute.yaml"), job).unwrap();
    let rendered = output(folder.path(), "rljob", &["render", "--file", "absolute.yaml"]);
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    let objects =
        rendered.split("---\n").skip(1).map(|text| serde_yaml::from_str::<Value>(text).unwrap());
    let config_map = objects.into_iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    let mut config: Value =
        serde_json::from_str(config_map["data"]["run.json"].as_str().unwrap()).unwrap();
    config["runDirectory"] = directory.display().to_string().into();
    config["modelDirectory"] = folder.path().join("model").display().to_string().into();
    config
}

/// Exit code and last line of a coordinator started in `directory` on `port`.
fn coordinator(folder: &TempDir, directory: &Path, port: u16) -> (Option<i32>, String) {
    let tokens = folder.path().join("tokens");
    fs::create_dir_all(&tokens).unwrap();
    for token in ["operator", "learner", "engine-api", "engine-admin"] {
        fs::write(tokens.join(token), token).unwrap();
    }
    fs::write(folder.path().join("run.json"), run_config(folder, directory).to_string()).unwrap();
    let listen = format!("127.0.0.1:{port}");
    let output = output(
        folder.path(),
        "rljob-coordinator",
        &["--config", "run.json", "--tokens", "tokens", "--listen", &listen],
    );
    let stderr = String::from_utf8_lossy(&output.stderr)
        .lines()
        .last()
        .unwrap_or_default()
        .replace(&folder.path().display().to_string(), "DIR");
    (output.status.code(), stderr)
}

#[test]
fn a_port_in_use_is_reported() {
    let folder = folder_with(|text| text);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (code, stderr) = coordinator(&folder, &folder.path().join("run"), port);
    assert_eq!(
        (code, stderr),
        (
            Some(1),
            format!(
                "error: failed to listen on 127.0.0.1:{port}: Address already in use (os error 98)"
            )
        )
    );
}

#[test]
fn the_coordinator_exits_with_78_for_the_run_directory_of_another_job() {
    let folder = folder_with(|text| text);
    let directory = folder.path().join("run");
    fs::create_dir(&directory).unwrap();
    let identity = r#"{"namespace": "lab", "name": "other", "uid": "u1", "specHash": "00"}"#;
    fs::write(directory.join("identity.json"), identity).unwrap();
    let message = "error: the run directory DIR/run belongs to lab/other (uid u1) with its own \
        run: use another directory, or remove this one to start over";
    assert_eq!(coordinator(&folder, &directory, 0), (Some(78), message.to_owned()));
    let left: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["identity.json"]);
    assert_eq!(fs::read_to_string(directory.join("identity.json")).unwrap(), identity);
}
