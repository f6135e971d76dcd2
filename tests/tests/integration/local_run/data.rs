//! `rljob validate --data`: counts of rows, and rows whose reference answers no reward can compare.

use std::fs;
use std::path::Path;
use std::process::Command;

use rljob_tests::files::binary;

use crate::local_run::folder_with;

/// Exit code and output of `rljob validate --data`.
fn validate(folder: &Path) -> (Option<i32>, String) {
    let output = Command::new(binary("rljob").unwrap())
        .args(["validate", "--data", "--file", "jobs.yaml"])
        .current_dir(folder)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    (output.status.code(), text.replace(folder.to_str().unwrap(), "FOLDER"))
}

#[test]
fn validate_reads_the_data_and_names_unusable_rows() {
    let jobs = include_str!("../async_rollouts/ahead.yaml").replace("exactMatch", "math");
    let folder = folder_with(&jobs);
    let rows = "{\"question\": \"1+1=\", \"answer\": \"2\"}\n".repeat(30);
    let unusable = "{\"question\": \"x?\", \"answer\": \"x \\\\to 5\"}\n";
    fs::write(folder.path().join("train.jsonl"), format!("{rows}{unusable}")).unwrap();
    let reason = "line 31: reward correct does not support the answer `x \\to 5`: a LaTeX command \
                  is not supported\n";
    let at = "jobs.yaml: rljob ahead";
    let expected = format!(
        "{at} is valid\n{at}: training data: 30 rows are used; 1 dropped: unusable reference \
         answers\n{at}:   FOLDER/train.jsonl {reason}{at}: evaluation data: 16 rows are used\n"
    );
    assert_eq!(validate(folder.path()), (Some(0), expected));
    let strict = jobs.replace("  rewards:", "    maxUnusableShare: 0.03\n  rewards:");
    fs::write(folder.path().join("jobs.yaml"), strict).unwrap();
    let expected = format!(
        "error: {at}: 1 of 31 rows of the data at FOLDER/train.jsonl have unusable reference \
         answers, more than dataset.maxUnusableShare = 0.03; the first is in FOLDER/train.jsonl \
         {reason}"
    );
    assert_eq!(validate(folder.path()), (Some(1), expected));
}
