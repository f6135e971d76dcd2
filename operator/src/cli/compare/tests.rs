//! Tests of `rljob compare`.

use std::fs;
use std::path::Path;

use rljob_crds::names::{EVALUATION_PROMPTS_FILE, EVALUATIONS_FILE, METRICS_FILE, RUN_CONFIG_FILE};
use rljob_dashboard::AcceptedChanges;
use serde_json::{Value, json};

use super::*;
use crate::local::directory::{RunDirectory, State};
use crate::local::inspect::test_support::run_directory;

/// A run of 4 prompts with one evaluation, in which the greedy completions of `correct` prompts
/// are correct.
fn run(runs: &Path, correct: u64) {
    let directory = run_directory(runs);
    let greedy = |row: u64| f64::from(u8::from(row < correct));
    let line = |row: u64| {
        let category = if row < 2 { "algebra" } else { "sets" };
        json!({
            "step": 3, "row": row, "prompt": format!("prompt {row}"), "category": category,
            "greedy": greedy(row), "sampled": 0.5, "samples": 2, "correct": 1,
        })
    };
    let lines: Vec<String> = (0..4).map(|row| line(row).to_string()).collect();
    let file = |name: &str| directory.path().join(name);
    fs::write(file(EVALUATION_PROMPTS_FILE), lines.join("\n") + "\n").unwrap();
    let evaluation = |step: u32, greedy: f64| {
        let sets = json!({"prompts": 2, "sampled": 0.5, "greedy": greedy});
        json!({
            "step": step, "prompts": 4, "samples": 2, "sampled": 0.5, "greedy": greedy,
            "greedyStandardError": 0.25, "passAt": {"1": 0.5, "2": 1.0}, "seconds": 1.0,
            "categories": {"sets": sets},
        })
    };
    let evaluations = [evaluation(0, 0.0), evaluation(3, correct as f64 / 4.0)];
    let evaluations = evaluations.map(|evaluation| evaluation.to_string() + "\n").concat();
    fs::write(file(EVALUATIONS_FILE), evaluations).unwrap();
    let step = |tokens: f64, speed: f64| {
        json!({"step": 1, "attempt": 0, "tokens": tokens, "tokensPerSecond": speed}).to_string()
    };
    fs::write(file(METRICS_FILE), step(100.0, 100.0) + "\n" + &step(300.0, 100.0) + "\n").unwrap();
}

fn arguments(runs: Vec<PathBuf>, output: Output) -> CompareArgs {
    CompareArgs { runs, output, seed: 0, report: None }
}

#[test]
fn runs_have_rows_and_pairs_have_differences_with_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    run(&a, 1);
    run(&b, 4);
    let of = |output| compare(&arguments(vec![a.clone(), b.clone()], output)).unwrap();
    let (a, b) = (a.join("lab/sums"), b.join("lab/sums"));
    let text = of(Output::Text);
    let expected = "\
RUN  STATUS   STEP  PROMPTS  SAMPLED  GREEDY         PASS@1  K  PASS@K  TOKENS/S
A    Stopped  0     4        0.500    0.000 ± 0.250  0.500   2  1.000   100
A    Stopped  3     4        0.500    0.250 ± 0.250  0.500   2  1.000   100
B    Stopped  0     4        0.500    0.000 ± 0.250  0.500   2  1.000   100
B    Stopped  3     4        0.500    1.000 ± 0.250  0.500   2  1.000   100

CATEGORY  RUN  PROMPTS  SAMPLED  GREEDY
sets      A    2        0.500    0.250
sets      B    2        0.500    1.000

DIFFERENCE  METRIC   PROMPTS  MEAN    95% INTERVAL
B - A       sampled  4        +0.000  +0.000 to +0.000
B - A       greedy   4        +0.750  +0.250 to +1.000
B - A       pass@1   4        +0.000  +0.000 to +0.000
B - A       pass@2   4        +0.000  +0.000 to +0.000";
    let names = |text: &str| {
        let text = text.replace(&a.display().to_string(), "A");
        let words = text.replace(&b.display().to_string(), "B");
        let lines = words.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(names(&text), names(expected));
    let value: Value = serde_json::from_str(&of(Output::Json)).unwrap();
    assert_eq!(value["runs"][1]["last"]["greedy"], json!(1.0));
    assert_eq!(value["runs"][1]["tokensPerSecond"], json!(100.0));
    let greedy = &value["differences"][0]["metrics"][1];
    let expected = json!({
        "metric": "greedy", "mean": 0.75, "low": 0.25, "high": 1.0, "prompts": 4,
        "resamples": 10_000,
    });
    assert_eq!(greedy, &expected);
}

#[test]
fn changes_that_a_start_accepted_have_a_line() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), 1);
    let fields = vec!["spec.rewards[0].python.path".to_owned()];
    let state = State { changes: vec![AcceptedChanges { step: 2, fields }], ..State::default() };
    RunDirectory::open(&folder.path().join("lab/sums")).unwrap().record(&state).unwrap();
    let of = |output| compare(&arguments(vec![folder.path().join("lab/sums")], output)).unwrap();
    let line = "lab/sums: since step 2 with accepted changes of spec.rewards[0].python.path";
    let text = of(Output::Text);
    assert!(text.lines().any(|own| own == line), "{text}");
    let value: Value = serde_json::from_str(&of(Output::Json)).unwrap();
    let expected = json!([{"step": 2, "fields": ["spec.rewards[0].python.path"]}]);
    assert_eq!(value["runs"][0]["changes"], expected);
}

/// Sets rewards and the evaluation in the run configuration of a run.
fn configure(runs: &Path, rewards: &Value, evaluation: &Value) {
    let path = runs.join("lab/sums").join(RUN_CONFIG_FILE);
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut data = json!({"path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "a"});
    data.as_object_mut().unwrap().extend(evaluation.as_object().unwrap().clone());
    config["spec"]["rewards"] = rewards.clone();
    config["spec"]["dataset"]["evaluation"] = data;
    fs::write(path, config.to_string()).unwrap();
}

#[test]
fn runs_whose_evaluations_have_different_rewards_get_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    run(&a, 1);
    run(&b, 4);
    let correct = json!({"name": "correct", "math": {}});
    let brief = json!({"name": "brief", "weight": 0.1, "regex": {"pattern": "a"}});
    configure(&a, &json!([correct]), &json!({}));
    let warnings = |evaluation: Value| {
        configure(&b, &json!([correct, brief]), &evaluation);
        let of = |output| compare(&arguments(vec![a.clone(), b.clone()], output)).unwrap();
        let value: Value = serde_json::from_str(&of(Output::Json)).unwrap();
        let text = of(Output::Text);
        let line = text.lines().find_map(|line| Some(line.strip_prefix("warning: ")?.to_owned()));
        (line, value["differences"][0]["warning"].clone())
    };
    let [a, b] = [&a, &b].map(|run| run.join("lab/sums").display().to_string());
    let expected = (Some(format!("{b} - {a}: {OTHER_REWARDS}")), json!(OTHER_REWARDS));
    assert_eq!(warnings(json!({})), expected);
    let correct_reward = json!({"rewards": ["correct"], "correctReward": 0.5});
    assert_eq!(warnings(correct_reward), expected);
    assert_eq!(warnings(json!({"rewards": ["correct"]})), (None, Value::Null));
}

#[test]
fn the_page_of_a_comparison_has_all_runs_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    run(&a, 1);
    run(&b, 4);
    let page = folder.path().join("comparison.html");
    let text = compare_all(vec![a.clone(), b.clone()], page.clone()).unwrap();
    assert!(text.ends_with(&format!("\n\nreport: {}", page.display())), "{text}");
    let page = fs::read_to_string(page).unwrap();
    for (number, run) in [a, b].iter().enumerate() {
        // Both have the name lab/sums.
        let name = format!("\"name\":\"{}\"", run.join("lab/sums").display());
        assert!(page.contains(&name) && page.contains(&format!("\"v1/runs/{number}\"")), "{page}");
    }
}

#[test]
fn functions_at_one_path_with_other_contents_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    for (run_folder, digest) in [(&a, "1f".repeat(32)), (&b, "2e".repeat(32))] {
        run(run_folder, 1);
        let function = json!({"path": "/rewards/mine.py", "function": "mine"});
        let mine = json!({"name": "mine", "python": function});
        configure(run_folder, &json!([mine]), &json!({}));
        let input = json!({"path": "/rewards/mine.py", "sha256": digest});
        let inputs = json!({"contents": {"spec.rewards[0].python.path": input}});
        fs::write(run_folder.join("lab/sums/inputs.json"), inputs.to_string()).unwrap();
    }
    let text = compare(&arguments(vec![a, b], Output::Text)).unwrap();
    let row = |digits: &str| format!(" {digits}");
    assert!(text.contains("contents of spec.rewards[0].python.path"), "{text}");
    assert!(text.contains(&row("1f1f1f1f1f1f")) && text.contains(&row("2e2e2e2e2e2e")), "{text}");
    assert!(text.contains(OTHER_REWARDS), "{text}");
}

#[test]
fn a_run_without_common_prompts_is_shown_without_differences() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    run(&a, 1);
    drop(run_directory(&b));
    let text = compare(&arguments(vec![a.clone(), b, a], Output::Text)).unwrap();
    assert!(
        text.ends_with(
            "no differences: no two runs have sampled or greedy results of two or more common \
             prompts"
        ),
        "{text}"
    );
    assert_eq!(text.lines().filter(|line| line.contains("Stopped")).count(), 3, "{text}");
}

#[test]
fn more_runs_than_the_limit_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..=MAX_RUNS {
        drop(run_directory(&folder.path().join(number.to_string())));
    }
    let runs = (0..=MAX_RUNS).map(|number| folder.path().join(number.to_string())).collect();
    let error = compare(&arguments(runs, Output::Text)).unwrap_err();
    let expected = format!(
        "found 17 runs; at most 16 are compared: pass the directories of those to compare, for \
         example {}",
        folder.path().join("0/lab/sums").display()
    );
    assert_eq!(error.to_string(), expected);
}
