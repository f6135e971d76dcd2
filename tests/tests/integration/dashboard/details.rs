//! Details of a run on the page: dataflow of a step, turns of a sample, memory plan, queue.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use rljob_tests::browser::Browser;
use rljob_tests::files::binary;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use super::{Dashboard, append, copy_of, lines, open, run_of};

/// The plan of learners on GPUs, as their coordinator reports it.
pub(super) fn plan() -> Value {
    json!({
        "parts": [
            {"name": "weights", "bytes": 9_u64 << 30},
            {"name": "optimizer states", "bytes": 12_u64 << 30},
            {"name": "activations", "bytes": 27_u64 << 30},
        ],
        "totalBytes": 48_u64 << 30, "usableBytes": 40_u64 << 30, "fits": false,
        "sharding": "Gradients", "recomputedLayers": 3, "selectiveLayers": 20, "layers": 28,
    })
}

/// Texts of the elements that match a selector.
fn texts(browser: &mut Browser, selector: &str) -> Value {
    let all = format!("[...document.querySelectorAll('{selector}')].map((it) => it.innerText)");
    browser.evaluate(&all).unwrap()
}

/// Texts of the cells of a table by row.
fn rows(browser: &mut Browser, table: &str) -> Value {
    let all = format!(
        "[...document.querySelectorAll('{table} tbody tr')]\
             .map((row) => [...row.children].map((it) => it.innerText))"
    );
    browser.evaluate(&all).unwrap()
}

#[test]
fn a_running_run_is_shown_with_its_memory_plan_and_its_queue() {
    let run = copy_of("practise");
    let file = |name: &str| run.path().join(name);
    fs::write(file("state.json"), "{\"epoch\":1,\"succeeded\":false}").unwrap();
    let last = json!({"step": 13, "attempt": 0, "peakMemoryBytes": 36_u64 << 30});
    append(&file("metrics.jsonl"), &format!("{last}\n"));
    // The coordinator of a run on CPUs reported everything except the plan.
    let report = fs::read_to_string(run_of("practise").join("status.json")).unwrap();
    let mut report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["requests"], json!({"running": 0, "queued": 0}), "of a finished run");
    assert_eq!(report["memory"], Value::Null);
    report["memory"] = plan();
    report["requests"] = json!({"running": 16, "queued": 48});
    fs::write(file("status.json"), report.to_string()).unwrap();
    let lock = File::create(file("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();

    let dashboard = Dashboard::start(&[run.path()]);
    let mut browser = open(&dashboard.url);
    browser.wait_for("!document.querySelector('#memory').hidden").unwrap();
    let expected =
        ["48.0 GiB", "40.0 GiB", "36.0 GiB", "may not fit", "Gradients", "3 of 28", "in 20 layers"];
    assert_eq!(texts(&mut browser, "#memory dd"), json!(expected));
    let expected = json!([
        ["weights", "9.0 GiB", "18.8 %"],
        ["optimizer states", "12.0 GiB", "25.0 %"],
        ["activations", "27.0 GiB", "56.3 %"],
    ]);
    assert_eq!(rows(&mut browser, "#memory"), expected);
    let facts = texts(&mut browser, "#now dl > div");
    let facts = facts.as_array().unwrap();
    for expected in ["Requests at engines\n16", "Requests in the queue\n48"] {
        assert!(facts.contains(&json!(expected)), "{facts:?}");
    }
    let engines = rows(&mut browser, "#now .scroll:first-of-type");
    let engine = |name: &str| json!([name, "Ready", "step-12.attempt-0", "responds", ""]);
    assert_eq!(engines, json!([engine("inference-0"), engine("inference-1")]));
    // After its end a run shows the plan, and no engines.
    drop(lock);
    browser.wait_for("document.querySelector('#now').hidden").unwrap();
    assert_eq!(rows(&mut browser, "#memory"), expected);
    assert_eq!(browser.problems(), Vec::<String>::new());
}

#[test]
fn a_sample_of_several_turns_is_shown_turn_by_turn() {
    let run = copy_of("practise");
    let segment = |sampled: bool, text: &str| json!({"sampled": sampled, "text": text});
    let sample = json!({
        "step": 1000, "prompt": "2 + 2?", "completion": "5 Try again. 4", "answer": "4",
        "reward": 0.9, "finishReason": "stop", "tokens": 2,
        "rewards": {"correct": 1.0, "brevity": 0.5},
        "turns": [
            {"reward": 0.0, "segments": [segment(false, "2 + 2?"), segment(true, "5")]},
            {"reward": 1.0, "segments": [segment(false, "Try again."), segment(true, "4")]},
        ],
    });
    append(&run.path().join("samples.jsonl"), &format!("{sample}\n"));
    let dashboard = Dashboard::start(&[run.path()]);
    let mut browser = open(&dashboard.url);
    browser.wait_for("document.querySelectorAll('#samples .turn').length === 2").unwrap();
    let headings = texts(&mut browser, "#samples .turn h3");
    assert_eq!(headings, json!(["Turn 1 reward 0", "Turn 2 reward 1"]));
    let segments = texts(&mut browser, "#samples .turn pre");
    assert_eq!(segments, json!(["2 + 2?", "5", "Try again.", "4"]));
    let prompts = texts(&mut browser, "#samples .turn pre.prompt");
    assert_eq!(prompts, json!(["2 + 2?", "Try again."]));
    let facts = texts(&mut browser, "#samples article .answer");
    assert_eq!(facts, json!(["answer 4 · 2 tokens · brevity 0.5000 · correct 1.0000"]));
    assert_eq!(browser.problems(), Vec::<String>::new());
}

/// Mean of a metric over the steps of a run.
fn mean(run: &Path, name: &str) -> f64 {
    let steps = lines(&run.join("metrics.jsonl"));
    let values: Vec<f64> = steps.iter().filter_map(|step| step[name].as_f64()).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn the_calls_of_a_step_are_drawn_with_their_mean_seconds() {
    let run = run_of("practise");
    let dashboard = Dashboard::start(&[&run]);
    let mut browser = open(&dashboard.url);
    browser.wait_for("document.querySelectorAll('#plan .call').length > 0").unwrap();
    let content = "[...document.querySelectorAll('#plan .call .name, #plan .phase text')]\
        .map((it) => it.textContent.replace(/ [0-9.]+ s$/, ' S'))";
    let calls = browser.evaluate(content).unwrap();
    let expected = [
        "sync",
        "generate",
        "reward correct",
        "assemble",
        "pack",
        "advantages",
        "train policy",
        "weight sync S",
        "rollouts S",
        "batch",
        "training S",
    ];
    assert_eq!(calls, json!(expected));
    // The text of a closed element is not rendered.
    browser.evaluate("document.querySelector('#plan details').open = true").unwrap();
    let table = rows(&mut browser, "#plan");
    let table = table.as_array().unwrap();
    let shown = |call: usize| table[call][6].as_str().unwrap().to_owned();
    for (call, name) in [(0, "syncSeconds"), (5, "advantageSeconds"), (6, "policySeconds")] {
        let seconds: f64 = shown(call).trim_end_matches(" s").parse().unwrap();
        let expected = mean(&run, name);
        assert!(seconds > 0.0 && (seconds - expected).abs() < 1e-3, "{name}: {seconds}");
    }
    assert_eq!(shown(1), "–", "only the seconds of all rollouts are recorded");
    let train = ["7", "train policy", "policy", "learners"].map(|cell| json!(cell));
    assert_eq!(table[6].as_array().unwrap()[..4], train);
    assert_eq!(browser.problems(), Vec::<String>::new());
}

/// The operator sends the incidents of a job's pods to its coordinator, whose report has them.
#[test]
fn incidents_of_pods_are_shown_with_their_time() {
    let run = copy_of("practise");
    let mut report = Command::new(binary("rljob").unwrap());
    assert!(report.arg("report").arg(run.path()).status().unwrap().success());
    let path = run.path().join("report.html");
    let incident = json!({
        "reason": "Evicted", "pod": "practise-trainer-0", "uid": "1", "node": "node-1",
        "message": "pod practise-trainer-0 on node-1 was evicted",
        "time": "2026-01-01T12:30:05Z",
    });
    let text = fs::read_to_string(&path).unwrap();
    let with_incident = format!("\"incidents\":[{incident}],\"isRunning\":");
    assert!(text.contains("\"isRunning\":"));
    fs::write(&path, text.replace("\"isRunning\":", &with_incident)).unwrap();
    let mut browser = open(&format!("file://{}", path.display()));
    browser.wait_for("!document.querySelector('#incidents').hidden").unwrap();
    let items = texts(&mut browser, "#incidents li");
    let expected = "2026-01-01 12:30:05 UTC Evicted: pod practise-trainer-0 on node-1 was evicted";
    assert!(items.as_array().unwrap().contains(&json!(expected)), "{items}");
    assert_eq!(browser.problems(), Vec::<String>::new());
}

/// Selects an option of a list of the answers.
fn select(browser: &mut Browser, list: &str, option: &str) {
    let select = format!("document.querySelector(\"#answers select[data-key='{list}']\")");
    browser.evaluate(&format!("{select}.value = '{option}'")).unwrap();
    browser.evaluate(&format!("{select}.dispatchEvent(new Event('change'))")).unwrap();
}

#[test]
fn answers_of_two_evaluations_are_compared_word_by_word_and_filtered() {
    let run = copy_of("practise");
    let mut text = String::new();
    for (step, row, completion, reward) in [
        (1000, 0, "the sum is 4", 0.0),
        (1000, 1, "it is 7", 1.0),
        (1000, 2, "always 9", 1.0),
        (1001, 0, "the right sum is 5", 1.0),
        (1001, 1, "it is 8", 0.0),
        (1001, 2, "always 9", 1.0),
    ] {
        let answer = json!({"step": step, "row": row, "index": 1, "greedy": true, "prompt": "?",
            "completion": completion, "answer": "5", "reward": reward});
        writeln!(text, "{answer}").unwrap();
    }
    append(&run.path().join("evaluation-samples.jsonl"), &text);
    let dashboard = Dashboard::start(&[run.path()]);
    let mut browser = open(&dashboard.url);
    browser.wait_for("document.querySelectorAll('#answers article').length === 3").unwrap();
    select(&mut browser, "From step", "1000");
    let summary = "3 prompts: 2 answers changed, 1 better, 1 worse.";
    let shows = format!("document.querySelector('#answers-content p').textContent === '{summary}'");
    browser.wait_for(&shows).unwrap();
    let added = texts(&mut browser, "#answers ins");
    let removed = texts(&mut browser, "#answers del");
    assert_eq!((added, removed), (json!(["right ", "5", "8"]), json!(["4", "7"])));
    for (filter, expected) in [
        ("changed", ["?the right sum is 45", "?it is 78"].as_slice()),
        ("better", &["?the right sum is 45"]),
        ("worse", &["?it is 78"]),
    ] {
        select(&mut browser, "Show", filter);
        let shown = "[...document.querySelectorAll('#answers pre')].map((it) => it.innerText)";
        let expected = json!(expected).to_string();
        browser.wait_for(&format!("JSON.stringify({shown}) === {}", json!(expected))).unwrap();
    }
    assert_eq!(browser.problems(), Vec::<String>::new());
}
