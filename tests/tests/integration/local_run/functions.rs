//! Reward functions that return no number: `rljob validate --local` and the run say so.

use std::fs;

use super::data::validate;
use super::{LocalRun, folder_with};

const EXPECTED: &str = "return a number, or {\"reward\": number, \"components\": {name: number}, \
                        \"answer\": text}, for each completion";

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
    let output = output.replace(&folder.path().display().to_string(), "FOLDER");
    let expected = format!(
        "error: ahead failed: CoordinatorInput after 0 restarts: {named} failed for 16 completions \
         in a row: fix the function and run the job again; last error: the function returned None; \
         {EXPECTED} (log: FOLDER/runs/default/ahead/logs/coordinator.log)"
    );
    assert_eq!(output.lines().last(), Some(expected.as_str()), "{output}");

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
