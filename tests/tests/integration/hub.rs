//! Runs whose model and data are Hugging Face repositories: one verified download per run, at a
//! recorded commit.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_crds::names::EXPORT_DIR;
use rljob_tests::Hub;
use rljob_tests::hub::{Fault, HubRequest};
use rljob_tests::process::{run, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use crate::local_run::{LIMIT, LocalRun, folder_with, weights};

/// One SFT step whose export is the model repository.
const FIRST: &str = include_str!("hub/first.yaml");
const SUMS: &str = include_str!("hub/sums.yaml");
const CARD: &str = "---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train.jsonl}
  - {split: test, path: main/test.jsonl}
---
";
const MODEL: &str = "models/lab/tiny";
const DATA: &str = "datasets/lab/sums";
const TOKEN: &str = "hf_right";
const MODEL_FILES: [&str; 4] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];

/// A hub with a private model and a public dataset, and a job that uses them.
struct Fixture {
    hub: Hub,
    model_commit: String,
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = folder_with(FIRST);
        let (code, output) = LocalRun::start(folder.path(), "first").end();
        assert_eq!(code, Some(0), "{output}");
        fs::write(folder.path().join("jobs.yaml"), SUMS).unwrap();
        let hub = Hub::start().unwrap();
        let export = folder.path().join("first/default/first").join(EXPORT_DIR);
        let read = |file: &&'static str| (*file, fs::read(export.join(file)).unwrap());
        let model: Vec<_> = MODEL_FILES.iter().map(read).collect();
        let model: Vec<(&str, &[u8])> =
            model.iter().map(|(file, bytes)| (*file, bytes.as_slice())).collect();
        let model_commit = hub.commit(MODEL, "main", &model);
        hub.require_token(MODEL, TOKEN);
        let [train, test] =
            ["train.jsonl", "test.jsonl"].map(|file| fs::read(folder.path().join(file)).unwrap());
        let files: [(&str, &[u8]); 4] = [
            ("README.md", CARD.as_bytes()),
            ("main/train.jsonl", &train),
            ("main/test.jsonl", &test),
            ("other/train.jsonl", b"{}"),
        ];
        hub.commit(DATA, "main", &files);
        Self { hub, model_commit, folder }
    }

    fn start(&self, runs: &str, token: &str, more: &[&str]) -> LocalRun {
        let environment = [("HF_ENDPOINT", self.hub.endpoint()), ("HF_TOKEN", token.to_owned())];
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        LocalRun::start_in(self.folder.path(), runs, more, &environment)
    }

    fn run_directory(&self, runs: &str) -> PathBuf {
        self.folder.path().join(runs).join("default/sums")
    }

    /// Weights of a run from local copies of the repositories.
    fn local_weights(&self) -> Vec<u8> {
        let model = "{path: first/default/first/export}";
        let jobs = with_local_data().replace("{huggingFace: {repo: lab/tiny}}", model);
        assert!(!jobs.contains("huggingFace"), "{jobs}");
        fs::write(self.folder.path().join("jobs.yaml"), jobs).unwrap();
        let (code, output) = LocalRun::start(self.folder.path(), "local").end();
        assert_eq!(code, Some(0), "{output}");
        fs::write(self.folder.path().join("jobs.yaml"), SUMS).unwrap();
        weights(&self.run_directory("local").join(EXPORT_DIR))
    }

    /// Paths of the hub's requests that contain `part`, sorted.
    fn paths(&self, part: &str) -> Vec<String> {
        let is_match =
            |request: &HubRequest| !request.content_server && request.path.contains(part);
        let requests = self.hub.requests().into_iter().filter(is_match);
        let mut paths: Vec<String> = requests.map(|request| request.path).collect();
        paths.sort();
        paths
    }
}

/// The job with local copies of its data.
fn with_local_data() -> String {
    let hub = "{huggingFace: {repo: lab/sums, config: main}";
    let data = [("train", "train.jsonl"), ("evaluation", "test.jsonl")];
    data.iter().fold(SUMS.to_owned(), |jobs, (field, file)| {
        jobs.replace(&format!("{field}: {hub}"), &format!("{field}: {{path: {file}"))
    })
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_run_from_repositories_downloads_each_file_once_and_resumes_at_the_recorded_commits() {
    let fixture = Fixture::new();
    let expected = fixture.local_weights();
    let local = fixture.start("runs", TOKEN, &[]);
    local.wait_for_steps("sums", 3);
    local.kill_all();

    let files = fixture.paths("/resolve/");
    assert_eq!(files.len(), MODEL_FILES.len() + 3, "{files:?}");
    assert_eq!(files.iter().collect::<BTreeSet<_>>().len(), files.len(), "{files:?}");
    let hub = fixture.run_directory("runs").join("hub");
    let record = json(&hub.join("models/lab--tiny@main.json"));
    assert_eq!(record["commit"], fixture.model_commit);
    assert_eq!(json(&hub.join("models/lab--tiny@main/complete.json"))["commit"], record["commit"]);

    // The branches advance. The model is complete; the data is downloaded again.
    fixture.hub.commit(MODEL, "main", &[("config.json", b"{}")]);
    fixture.hub.commit(DATA, "main", &[("train.jsonl", b"{}"), ("test.jsonl", b"{}")]);
    fs::remove_dir_all(hub.join("datasets/lab--sums@main")).unwrap();
    let (code, output) = fixture.start("runs", TOKEN, &[]).end();
    assert_eq!(code, Some(0), "{output}");
    let again = fixture.paths("/resolve/");
    assert_eq!(again.len(), files.len() + 3, "{again:?}");
    assert_eq!(again.iter().collect::<BTreeSet<_>>(), files.iter().collect(), "same commits");
    assert_eq!(
        fixture.paths("/revision/"),
        ["/api/datasets/lab/sums/revision/main", "/api/models/lab/tiny/revision/main"]
    );
    let run_directory = fixture.run_directory("runs");
    assert!(weights(&run_directory.join(EXPORT_DIR)) == expected, "the weights differ\n{output}");

    assert!(!output.contains(TOKEN), "{output}");
    let found = Command::new("grep").args(["-rlF", TOKEN]).arg(&run_directory).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the token is in a file");
}

#[test]
fn a_coordinator_killed_during_the_download_continues_at_the_last_byte() {
    let fixture = Fixture::new();
    fs::write(fixture.folder.path().join("jobs.yaml"), with_local_data()).unwrap();
    fixture.hub.inject([Fault::Stall(100_000)]);
    let local = fixture.start("runs", TOKEN, &["--set", "spec.training.steps=1"]);
    let hub = fixture.run_directory("runs").join("hub/models");
    let partial = hub.join(format!("lab--tiny@main.{}.partial", fixture.model_commit));
    let part = partial.join("model.safetensors.part");
    let length = || fs::metadata(&part).map_or(0, |found| found.len());
    wait_until("a part of the model", LIMIT, || Ok(length() == 100_000))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", local.output()));
    local.kill("rljob-coordinator");
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    let requests = fixture.hub.requests().into_iter().filter(|request| request.content_server);
    let ranges: Vec<_> = requests
        .filter(|request| request.path.ends_with("model.safetensors"))
        .map(|request| request.range)
        .collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".to_owned())]);
    run(Command::new("cmp")
        .arg(hub.join("lab--tiny@main/model.safetensors"))
        .arg(fixture.folder.path().join("first/default/first/export/model.safetensors")))
    .unwrap();
}

#[test]
fn a_rejected_token_fails_the_run_with_the_repository_and_the_source_of_the_token() {
    let fixture = Fixture::new();
    let (code, output) = fixture.start("runs", "hf_wrong", &[]).end();
    assert_eq!(code, Some(1), "{output}");
    let expected = format!(
        "error: sums failed: CoordinatorInput after 0 restarts: failed to download \
            spec.model.huggingFace: {} denied access to model repository lab/tiny (401): the token \
            in HF_TOKEN is invalid or lacks read permission",
        fixture.hub.endpoint()
    );
    let last = output.lines().last().unwrap();
    assert_eq!(last.split(" (log: ").next(), Some(expected.as_str()), "{output}");
    assert!(!output.contains("hf_wrong"), "{output}");

    let (code, output) = fixture.start("runs", TOKEN, &["--set", "spec.training.steps=1"]).end();
    assert_eq!(code, Some(0), "a run with a valid token continues\n{output}");
}
