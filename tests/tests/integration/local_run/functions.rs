//! Reward functions: `rljob validate --local` and the run name one that returns no number, scores
//! of reference answers are shown, and a run does not resume with an edited function.

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
    let lines = ["train", "test"].map(|name| {
        format!(
            "{at}: rewards[0] (python): the reference answer of FOLDER/{name}.jsonl line 1 scores \
             -3.0; if no completion should score higher, check the function and \
             spec.dataset.{}.answer\n",
            if name == "train" { name } else { "evaluation" }
        )
    });
    let expected = format!("{at} is valid\n{}{}", lines[0], lines[1]);
    assert_eq!(validate(folder.path(), "--local"), (Some(0), expected));
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");

    fs::write(&own, function("return len(completion)")).unwrap();
    fs::write(folder.path().join("jobs.yaml"), text(&folder).replace("steps: 1", "steps: 2"))
        .unwrap();
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    let expected = format!(
        "error: failed to run ahead: the contents of spec.rewards[0].python.path have changed \
         since the last start of the run in {}: restore them, pass --accept-changes to continue \
         with the new ones, or choose another --dir",
        folder.path().join("runs/default/ahead").display()
    );
    assert_eq!((code, output.lines().last()), (Some(1), Some(expected.as_str())), "{output}");
    let problem = validate(folder.path(), "--local").1;
    assert!(problem.contains("ahead: cannot resume: the contents of spec.rewards[0]"), "{problem}");

    let accepted = LocalRun::start_with(folder.path(), "runs", &["--accept-changes"]);
    let (code, output) = accepted.end();
    let expected = "ahead: since step 1 with accepted changes of spec.rewards[0].python.path";
    assert_eq!((code, output.lines().rev().nth(1)), (Some(0), Some(expected)), "{output}");
    let report = fs::read_to_string(folder.path().join("runs/default/ahead/report.html")).unwrap();
    let changes = r#""changes":[{"fields":["spec.rewards[0].python.path"],"step":1}]"#;
    assert!(report.contains(changes), "the report has no {changes}");
}

/// The job file.
fn text(folder: &tempfile::TempDir) -> String {
    fs::read_to_string(folder.path().join("jobs.yaml")).unwrap()
}

#[test]
fn validate_shows_what_reference_answers_score_and_warns_of_those_that_no_completion_matches() {
    let rewards = "{name: correct, math: {extract: [Boxed]}}\n    \
                   - {name: boxed, regex: {pattern: boxed}}";
    let jobs = include_str!("../async_rollouts/ahead.yaml");
    let jobs = jobs.replace("{name: correct, exactMatch: {}}", rewards);
    let folder = folder_with(&jobs.replace("everySteps: 5", "rewards: [correct]"));
    let row = "{\"question\": \"1+1=\", \"answer\": \"1/2x\"}\n";
    fs::write(folder.path().join("test.jsonl"), row).unwrap();
    let row = "{\"question\": \"1+1=\", \"answer\": \"2\"}\n";
    fs::write(folder.path().join("train.jsonl"), row).unwrap();
    let at = "jobs.yaml: rljob ahead";
    let answer = |name: &str| format!("the reference answer of FOLDER/{name}.jsonl line 1 scores");
    let expected = [
        format!("{at} is valid"),
        format!("{at}: rewards[0] (math): {} 1.0 as `\\boxed{{2}}`", answer("train")),
        format!(
            "jobs.yaml: warning: rljob ahead: rewards[0] (math): {} 0.0: reward correct does not \
             support the answer `1/2x`: the divisor of a product is ambiguous; check \
             spec.dataset.evaluation.answer",
            answer("test")
        ),
        format!("{at}: rewards[1] (regex): {} 0.0\n", answer("train")),
    ];
    assert_eq!(validate(folder.path(), "--local"), (Some(0), expected.join("\n")));

    let jobs = text(&folder).replace("answer: answer", "answer: extra.answer");
    fs::write(folder.path().join("jobs.yaml"), jobs).unwrap();
    let expected =
        format!("error: {at}: FOLDER/train.jsonl line 1 has no field `extra.answer`: it has ");
    let (code, text) = validate(folder.path(), "--local");
    assert!(code == Some(1) && text.starts_with(&expected), "{text}");
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
    let (code, text) = validate(folder.path(), "--local");
    assert!(code == Some(0) && text.starts_with(&format!("{at} is valid\n")), "{text}");
    let scored: Vec<&str> = text.lines().filter(|line| line.contains("(python)")).collect();
    assert!(scored.len() == 1 && scored[0].contains("FOLDER/test.jsonl line 1"), "{text}");

    let row = "{\"question\": \"1+1=\", \"answer\": \"two\"}\n";
    fs::write(folder.path().join("test.jsonl"), row).unwrap();
    let expected = format!(
        "error: {at}: reward short (python short of FOLDER/short.py) does not score \
         FOLDER/test.jsonl line 1 with its answer as completion: the function raised ValueError: \
         invalid literal for int() with base 10: 'twotwo' (line 2 of short.py)\n"
    );
    assert_eq!(validate(folder.path(), "--local"), (Some(1), expected));
}
