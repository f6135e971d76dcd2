//! Reward functions that return no number: `rljob validate --local` and the run say so.

use std::fs;
use std::path::Path;

use super::data::validate;
use super::{LocalRun, folder_with};

const EXPECTED: &str = "return a number, or {\"reward\": number, \"components\": {name: number}, \
                        \"answer\": text}, for each completion";

/// After 16 samples without a reward.
pub(super) const FAULTY: &str = "failed for 16 completions in a row, the last one of row N: fix it \
    and run the job again; last error";

/// Why the job `ahead` failed, by the last line of the output.
pub(super) fn cause(output: &str, folder: &Path) -> String {
    let output = output.replace(&folder.display().to_string(), "FOLDER");
    let start = "error: ahead failed: CoordinatorInput after 0 restarts: ";
    let end = " (log: FOLDER/runs/default/ahead/logs/coordinator.log)";
    let last = output.lines().last().and_then(|line| line.strip_prefix(start));
    last.and_then(|line| line.strip_suffix(end)).expect(&output).to_owned()
}

/// The cause without the number of the row.
pub(super) fn cause_of_any_row(output: &str, folder: &Path) -> String {
    let cause = cause(output, folder);
    let (before, after) = cause.split_once(" of row ").expect(&cause);
    format!("{before} of row N{}", after.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

/// A function with this body.
fn function(body: &str) -> String {
    format!("def short(prompt, completion, answer):\n    {body}\n")
}

#[test]
fn a_function_that_returns_no_number_fails_the_run_soon_until_it_is_fixed() {
    let jobs = include_str!("../async_rollouts/ahead.yaml").replace("steps: 10", "steps: 1");
    let reward = "{name: short, python: {path: short.py, function: short}}";
    let folder = folder_with(&jobs.replace("{name: correct, exactMatch: {}}", reward));
    let own = folder.path().join("short.py");
    let (at, named) = ("jobs.yaml: rljob ahead", "reward short (python short of FOLDER/short.py)");

    fs::write(&own, function("-len(completion)")).unwrap();
    let row = format!("{named} does not score FOLDER/train.jsonl line 1 with its answer as");
    let expected =
        format!("error: {at}: {row} completion: the function returned None; {EXPECTED}\n");
    assert_eq!(validate(folder.path(), "--local"), (Some(1), expected));

    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(1), "{output}");
    let expected = format!("{named} {FAULTY}: the function returned None; {EXPECTED}");
    assert_eq!(cause_of_any_row(&output, folder.path()), expected);

    fs::write(&own, function("return -len(completion)")).unwrap();
    assert_eq!(validate(folder.path(), "--local"), (Some(0), format!("{at} is valid\n")));
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn validate_calls_functions_of_the_rows_that_name_them() {
    let jobs = include_str!("../async_rollouts/ahead.yaml");
    let rewards = "{name: correct, exactMatch: {}}\n    \
                   - {name: short, python: {path: short.py, function: short}}";
    let jobs = jobs.replace("{name: correct, exactMatch: {}}", rewards);
    let jobs = jobs.replace("answer: answer, format", "answer: answer, rewards: [correct], format");
    let jobs = jobs.replace("everySteps: 5", "correctReward: 2");
    let folder = folder_with(&jobs);
    fs::write(folder.path().join("short.py"), function("return int(answer + completion)")).unwrap();
    let at = "jobs.yaml: rljob ahead";
    assert_eq!(validate(folder.path(), "--local"), (Some(0), format!("{at} is valid\n")));

    let row = "{\"question\": \"1+1=\", \"answer\": \"two\"}\n";
    fs::write(folder.path().join("test.jsonl"), row).unwrap();
    let expected = format!(
        "error: {at}: reward short (python short of FOLDER/short.py) does not score \
         FOLDER/test.jsonl line 1 with its answer as completion: the function raised ValueError: \
         invalid literal for int() with base 10: 'twotwo' (line 2 of short.py)\n"
    );
    assert_eq!(validate(folder.path(), "--local"), (Some(1), expected));
}
