//! Invalid input detected when the run reads it. The last line of `rljob run` names file, line and
//! field; no restart is counted, and the run continues in the same directory once the input is
//! fixed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_tests::process::run;
use rljob_tests::quickstart;
use serde_json::{Value, json};

use super::output;
use crate::local_run::baseline;

/// The quick start's folder with a job of one step.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        quickstart::generate(folder.path(), 4_000).unwrap();
        fs::write(folder.path().join("job.yaml"), include_str!("run.yaml")).unwrap();
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Modifies a JSON file.
    fn edit(&self, file: &str, change: impl Fn(&mut Value)) {
        let path = self.path().join(file);
        let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    fn run(&self, more: &[&str]) -> (Option<i32>, String) {
        let output = output(self.path(), "rljob", &[&["run", "--file", "job.yaml"], more].concat());
        let stderr = String::from_utf8(output.stderr)
            .unwrap()
            .replace(&self.path().display().to_string(), "DIR");
        (output.status.code(), stderr)
    }

    fn log(&self, process: &str) -> PathBuf {
        self.path().join(format!("runs/default/sums/logs/{process}.log"))
    }
}

/// A row of training data.
fn row(question: &str, answer: &str) -> String {
    format!("{}\n", json!({"question": question, "answer": answer}))
}

#[test]
fn invalid_data_fails_the_run_with_its_line_until_it_is_fixed() {
    let folder = Folder::new();
    let good = fs::read_to_string(folder.path().join("train.jsonl")).unwrap();
    let cases = [
        (String::new(), "the data at DIR/train.jsonl has no rows"),
        (row("1+1=", "2") + "{\"question\": ", "DIR/train.jsonl line 2 is not a JSON object"),
        (row("1+1=", "2") + "{\"question\": \"1+1=\"}\n", "DIR/train.jsonl line 2"),
        (row("1+1=", "2") + &row(&"1+".repeat(40), "2"), "DIR/train.jsonl line 2"),
    ];
    for (data, message) in cases {
        fs::write(folder.path().join("train.jsonl"), &data).unwrap();
        let (code, stderr) = folder.run(&[]);
        let start = format!("error: sums failed: CoordinatorInput after 0 restarts: {message}");
        assert!(
            stderr.lines().last().is_some_and(|line| line.starts_with(&start)),
            "{start}\n{stderr}"
        );
        assert_eq!(code, Some(1));
    }
    fs::write(folder.path().join("train.jsonl"), good).unwrap();
    assert_eq!(folder.run(&[]), (Some(0), String::new()));
}

#[test]
fn a_tokenizer_of_another_model_fails_the_run() {
    let folder = Folder::new();
    folder.edit("model/config.json", |config| config["vocab_size"] = json!(8));
    let (code, stderr) = folder.run(&[]);
    let message = "error: sums failed: CoordinatorInput after 0 restarts: the tokenizer in \
        DIR/model has token ids up to 14, and config.json there gives the model a vocab_size of 8: \
        one of the two is another model's";
    assert!(stderr.lines().last().is_some_and(|line| line.starts_with(message)), "{stderr}");
    assert_eq!(code, Some(1));
}

#[test]
fn an_incompatible_model_or_checkpoint_fails_the_run_without_a_restart() {
    let folder = Folder::new();
    let ends_with = |more: &[&str], message: &str| {
        let (code, stderr) = folder.run(more);
        let start = "error: sums failed: LearnerInput in trainer-0 with exit code 65 after 0 \
            restarts: a learner of trainer-0 exited with code 65: ";
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with(start) && last.contains(message), "{message}\n{stderr}");
        assert_eq!(code, Some(1));
        let log = fs::read_to_string(folder.log("trainer-0")).unwrap();
        assert_eq!(log.matches("starting learners").count(), 1, "{log}");
        fs::remove_dir_all(folder.path().join("runs")).unwrap();
    };
    let runs = baseline().folder.join("baseline/default");
    let checkpoint = runs.join("practise/checkpoints/step-10.attempt-0");
    folder.edit("model/config.json", |config| config["hidden_size"] = json!(64));
    let restore = format!("spec.restoreFrom.path={}", checkpoint.display());
    ends_with(
        &["--set", &restore, "--set", "spec.training.steps=12"],
        &format!(
            "rejected the checkpoint `{}`: it is a policy model of 430720 parameters with layout ",
            checkpoint.display()
        ),
    );

    fs::remove_dir_all(folder.path().join("model")).unwrap();
    run(Command::new("cp")
        .arg("-a")
        .arg(runs.join("imitate/export"))
        .arg(folder.path().join("model")))
    .unwrap();
    let pretrained = ["--set", "spec.model.weights=Pretrained"];
    folder.edit("model/config.json", |config| config["num_hidden_layers"] = json!(3));
    ends_with(&pretrained, "the weights in DIR/model do not fit its config.json: ");
    folder.edit("model/config.json", |config| {
        (config["num_hidden_layers"], config["intermediate_size"]) = (json!(2), json!(256));
    });
    ends_with(&pretrained, "the weights in DIR/model do not fit its config.json: ");
}
