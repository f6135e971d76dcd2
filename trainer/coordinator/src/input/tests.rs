//! Rejected input and its error messages.

use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::RunConfig;
use serde_json::{Value, json};

use crate::engines::FixedFleets;
use crate::reward::Runner;

use super::Input;

/// Ids of the fixture's tokenizer are 0 to 1023.
const VOCABULARY: i64 = 1024;

struct Run {
    folder: tempfile::TempDir,
}

impl Run {
    /// A model folder with the fixture's tokenizer and this vocabulary and context, and data of one
    /// row.
    fn new(vocabulary: i64, context: u32) -> Self {
        let run = Self { folder: tempfile::tempdir().unwrap() };
        let fixture =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat");
        for entry in fs::read_dir(fixture).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), run.folder.path().join(entry.file_name())).unwrap();
        }
        run.write(
            "config.json",
            &json!({"vocab_size": vocabulary, "max_position_embeddings": context}).to_string(),
        );
        run.write("data.jsonl", "{\"question\": \"What is 1 + 1?\", \"answer\": \"2\"}\n");
        run
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.folder.path().join(name), content).unwrap();
    }

    /// Error of opening the input as one line, with FOLDER for the folder.
    fn error(&self) -> String {
        self.error_with(&json!({}), &json!({}))
    }

    /// The error with these fields of the training data and `rollout`.
    fn error_with(&self, dataset: &Value, rollout: &Value) -> String {
        let folder = self.folder.path();
        let path = folder.join("data.jsonl");
        let mut data = json!({"path": path, "prompt": "{{question}}", "answer": "answer"});
        for (field, value) in dataset.as_object().unwrap() {
            data[field] = value.clone();
        }
        let config: RunConfig = serde_json::from_value(json!({
            "namespace": "lab",
            "name": "sums",
            "uid": "u",
            "runDirectory": folder.join("run"),
            "modelDirectory": folder,
            "spec": {
                "model": {"path": folder},
                "storage": {"hostPath": {"path": "/runs"}},
                "dataset": {"train": data},
                "rewards": [{"name": "correct", "math": {}}],
                "algorithm": {"grpo": {}},
                "rollout": rollout,
                "training": {"steps": 1},
            },
        }))
        .unwrap();
        match Input::open(&config, &Runner::Program(PathBuf::new()), &FixedFleets::default()) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => {
                crate::error_line(&error).replace(&folder.display().to_string(), "FOLDER")
            }
        }
    }
}

#[test]
fn a_model_may_have_more_tokens_than_its_tokenizer_but_not_fewer() {
    assert_eq!(Run::new(VOCABULARY, 100).error(), "accepted");
    assert_eq!(Run::new(VOCABULARY + 100, 100).error(), "accepted");
    let expected = "the tokenizer in FOLDER has token ids up to 1023, and config.json there \
        gives the model a vocab_size of 1023: one of the two is another model's";
    assert_eq!(Run::new(VOCABULARY - 1, 100).error(), expected);
}

#[test]
fn a_prompt_longer_than_the_context_is_named_with_its_line() {
    let error = Run::new(VOCABULARY, 4).error();
    assert!(error.starts_with("FOLDER/data.jsonl line 1 has "), "{error}");
    let end = "the model's context (max_position_embeddings) is 4: \
        set maxPromptTokens of the dataset or shorten the row";
    assert!(error.ends_with(end), "{error}");
}

#[test]
fn a_template_of_another_model_is_rejected() {
    let run = Run::new(VOCABULARY, 100);
    run.write("chat_template.jinja", "<|start_header_id|>user{{ messages[0].content }}");
    let expected = "the chat template of FOLDER prints <|start_header_id|>, which its \
        tokenizer.json does not contain: is the template from another model?";
    assert_eq!(run.error(), expected);
}

#[test]
fn an_answer_that_no_completion_could_equal_is_named_with_its_line() {
    let run = Run::new(VOCABULARY, 100);
    run.write("data.jsonl", "{\"question\": \"Which?\", \"answer\": \"1/2x\"}\n");
    let expected = "1 of 1 rows of the data at FOLDER/data.jsonl have unusable reference answers, \
        more than dataset.maxUnusableShare = 0.05; the first is in FOLDER/data.jsonl line 1: \
        reward correct does not \
        support the answer `1/2x`: the divisor of a product is ambiguous";
    assert_eq!(run.error(), expected);
}

#[test]
fn a_model_folder_without_its_files_is_named() {
    let run = Run::new(VOCABULARY, 100);
    fs::remove_file(run.folder.path().join("config.json")).unwrap();
    let expected = "failed to read `max_position_embeddings` and `vocab_size` from \
        FOLDER/config.json: No such file or directory (os error 2)";
    assert_eq!(run.error(), expected);
    fs::remove_file(run.folder.path().join("tokenizer.json")).unwrap();
    assert_eq!(
        run.error(),
        "failed to read FOLDER/tokenizer.json: No such file or directory (os error 2)"
    );
}

#[test]
fn a_model_whose_cost_is_unknown_is_named() {
    let run = Run::new(VOCABULARY, 100);
    let error = super::cost_model(run.folder.path()).unwrap_err();
    let expected = format!(
        "failed to read the sizes of the model from {}: missing field `hidden_size` at line 1 \
         column 49",
        run.folder.path().join("config.json").display()
    );
    assert_eq!(crate::error_line(&error), expected);
}

#[test]
fn arguments_that_the_chat_template_does_not_use_and_unknown_stop_tokens_are_rejected() {
    let run = Run::new(VOCABULARY, 100);
    let misspelt = json!({"chatTemplateArguments": {"enable_thinkin": false}});
    let expected = "the chat template of FOLDER does not use the argument `enable_thinkin`: \
        remove it from chatTemplateArguments";
    assert_eq!(run.error_with(&misspelt, &json!({})), expected);
    let rollout = json!({"stopTokenIds": [5, 1024]});
    let expected = "rollout.stopTokenIds contains 1024; the model has a vocab_size of 1024";
    assert_eq!(run.error_with(&json!({}), &rollout), expected);
}
