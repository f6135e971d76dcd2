//! A run of 100,000 steps on the page. Prints the time until its first paint and its curves, and
//! the memory of its texts, elements and data.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Instant;

use rljob_tests::browser::Browser;
use serde_json::json;

use super::{Dashboard, copy_of, lines, points};

const STEPS: usize = 100_000;
/// Most memory of the page, in bytes.
const MEMORY: u64 = 200 << 20;
/// Most points of a curve.
const POINTS: u64 = 600;

/// Repeats the steps of a run.
fn lengthen(metrics: &Path) {
    let steps = lines(metrics);
    let mut text = String::new();
    for (step, metrics) in (1..=STEPS).zip(steps.iter().cycle()) {
        let mut metrics = metrics.clone();
        metrics["step"] = json!(step);
        writeln!(text, "{metrics}").unwrap();
    }
    fs::write(metrics, text).unwrap();
}

#[test]
fn a_run_of_100_000_steps_is_shown_from_its_first_to_its_last_step_in_little_memory() {
    let run = copy_of("practise");
    lengthen(&run.path().join("metrics.jsonl"));
    let dashboard = Dashboard::start(&[run.path()]);
    let mut browser = Browser::start(1280, 900).unwrap();
    let start = Instant::now();
    browser.open(&dashboard.url).unwrap();
    browser.wait_for("document.querySelectorAll('figure polyline').length > 0").unwrap();
    let curves = start.elapsed().as_secs_f64();
    let paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000";
    let paint = browser.evaluate(paint).unwrap().as_f64().unwrap();
    let memory = browser.memory().unwrap();
    let mib = memory >> 20;
    println!("dashboard, {STEPS} steps: first paint {paint:.2} s, curves {curves:.2} s, {mib} MiB");

    let shown = points(&mut browser, "Reward");
    let number = shown[0].as_u64().unwrap();
    assert!((POINTS / 2..=POINTS).contains(&number), "{shown}");
    let state = browser.evaluate("document.querySelector('#state').innerText").unwrap();
    assert!(state.as_str().unwrap().contains(&STEPS.to_string()), "{state}");
    assert!(memory <= MEMORY, "{mib} MiB");
    assert_eq!(browser.problems(), Vec::<String>::new());
}
