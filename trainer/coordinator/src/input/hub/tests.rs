//! Tests of hub downloads with a local server.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rljob_crds::RunConfig;
use rljob_hub::{Settings, TokenSource};
use rljob_storage::RunStore;
use rljob_tests::Hub;
use serde_json::{Value, json};

use super::{Downloads, download_with};

const CARD: &str = "---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: socratic
  data_files:
  - {split: train, path: socratic/train-*}
---
";

fn hub() -> Hub {
    let hub = Hub::start().unwrap();
    let files: [(&str, &[u8]); 6] = [
        ("README.md", CARD.as_bytes()),
        ("main/train-0.jsonl", b"{\"q\": 1}\n"),
        ("main/train-1.jsonl", b"{\"q\": 2}\n"),
        ("main/test-0.jsonl", b"{\"q\": 3}\n"),
        ("socratic/train-0.jsonl", b"{\"q\": 4}\n"),
        ("picture.png", b"x"),
    ];
    hub.commit("datasets/lab/sums", "main", &files);
    let model: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("tokenizer.json", b"{}")];
    hub.commit("models/lab/tiny", "main", &model);
    hub
}

fn config(run_directory: &Path, train: &Value, evaluation: &Value) -> RunConfig {
    let spec = json!({
        "model": {"huggingFace": {"repo": "lab/tiny"}, "weights": "Random"},
        "storage": {"hostPath": {"path": "/unused"}},
        "dataset": {
            "train": {"huggingFace": train, "prompt": "{{q}}", "completion": "{{q}}"},
            "evaluation": {"huggingFace": evaluation, "prompt": "{{q}}", "completion": "{{q}}"},
        },
        "algorithm": {"sft": {}},
        "training": {"steps": 1},
    });
    let spec = serde_json::from_value(spec).unwrap();
    let model_directory = RunConfig::hub_model(run_directory, &spec).unwrap();
    RunConfig {
        protocol: rljob_crds::run_config::PROTOCOL,
        namespace: "default".to_owned(),
        name: "sums".to_owned(),
        uid: "u1".to_owned(),
        run_directory: run_directory.to_owned(),
        bucket: None,
        model_directory,
        model_identity: None,
        spec,
    }
}

async fn download(hub: &Hub, config: &RunConfig) -> Result<(), String> {
    let run_store = RunStore::Folder(config.run_directory.clone());
    let settings = |_: &super::Source| Settings {
        endpoint: hub.endpoint(),
        token: TokenSource::Anonymous,
        patience: Duration::from_secs(1),
        backoff: (Duration::from_millis(5), Duration::from_millis(5)),
        max_bytes: 1 << 30,
    };
    let downloads = Downloads::default();
    let result = download_with(config, &run_store, &downloads, settings).await;
    if result.is_ok() {
        assert_eq!(downloads.progress(), None);
    }
    result.map_err(|error| crate::error_line(&error))
}

/// Relative paths of all files below a folder.
fn files(folder: &Path) -> Vec<String> {
    fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else {
                found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    walk(folder, folder, &mut found);
    found.sort();
    found
}

#[tokio::test]
async fn model_and_splits_are_downloaded_once_and_the_commit_is_kept() {
    let (hub, runs) = (hub(), tempfile::tempdir().unwrap());
    let source = json!({"repo": "lab/sums", "config": "main"});
    let config = config(runs.path(), &source, &source);
    download(&hub, &config).await.unwrap();
    assert_eq!(files(&config.model_directory), ["complete.json", "config.json", "tokenizer.json"]);
    let train = config.train_dataset().path.unwrap();
    assert_eq!(Some(&train), config.suites()[0].data.path.as_ref());
    let expected = [
        "README.md",
        "complete.json",
        "main/test-0.jsonl",
        "main/train-0.jsonl",
        "main/train-1.jsonl",
    ];
    assert_eq!(files(Path::new(&train)), expected);

    let requests = hub.requests().len();
    download(&hub, &config).await.unwrap();
    assert_eq!(hub.requests().len(), requests, "a complete folder needs no request");

    hub.commit("datasets/lab/sums", "main", &[("train.jsonl", b"{}")]);
    fs::remove_dir_all(&train).unwrap();
    download(&hub, &config).await.unwrap();
    assert_eq!(files(Path::new(&train)), expected, "the recorded commit is used");
}

#[tokio::test]
async fn other_splits_of_the_same_repository_replace_the_folder() {
    let (hub, runs) = (hub(), tempfile::tempdir().unwrap());
    let main = json!({"repo": "lab/sums", "config": "main"});
    download(&hub, &config(runs.path(), &main, &main)).await.unwrap();
    let socratic = json!({"repo": "lab/sums", "config": "socratic", "split": "train"});
    let changed = config(runs.path(), &socratic, &socratic);
    download(&hub, &changed).await.unwrap();
    assert_eq!(
        files(Path::new(&changed.train_dataset().path.unwrap())),
        ["README.md", "complete.json", "socratic/train-0.jsonl"]
    );
}

#[tokio::test]
async fn errors_name_the_field_and_the_repository() {
    let (hub, runs) = (hub(), tempfile::tempdir().unwrap());
    let missing = json!({"repo": "lab/none"});
    let error = download(&hub, &config(runs.path(), &missing, &missing)).await.unwrap_err();
    let expected = format!(
        "failed to download spec.dataset.train.huggingFace: {} has no dataset repository lab/none",
        hub.endpoint()
    );
    assert!(error.starts_with(&expected), "{error}");
    let no_split = json!({"repo": "lab/sums", "config": "socratic", "split": "test"});
    let error = download(&hub, &config(runs.path(), &no_split, &no_split)).await.unwrap_err();
    assert!(error.contains("test") && error.contains("train"), "{error}");
}
