//! `rljob dashboard` and `report.html` in a real browser, with the files of a real run.

mod accessibility;
mod details;
mod long_run;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rljob_tests::browser::Browser;
use rljob_tests::files::{binary, workspace};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::local_run::baseline;

/// Files of a run that the dashboard reads.
const FILES: [&str; 6] = [
    "run.json",
    "state.json",
    "metrics.jsonl",
    "evaluations.jsonl",
    "samples.jsonl",
    "evaluation-samples.jsonl",
];

/// Roles of elements that need a name in the tree that screen readers get.
const CONTROLS: [&str; 8] =
    ["button", "checkbox", "combobox", "figure", "link", "slider", "table", "DisclosureTriangle"];

/// Folder of the pictures of the page, for people to look at.
fn pictures() -> PathBuf {
    let folder = workspace().join("target/pictures");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A running `rljob dashboard`.
pub(crate) struct Dashboard {
    child: Child,
    pub(crate) url: String,
}

impl Dashboard {
    fn start(folders: &[&Path]) -> Self {
        let folders = folders.iter().map(|folder| folder.display().to_string());
        Self::of(&std::iter::once("dashboard".to_owned()).chain(folders).collect::<Vec<_>>())
    }

    /// Starts `rljob` with these arguments and waits for its address.
    pub(crate) fn of(arguments: &[String]) -> Self {
        let mut child = Command::new(binary("rljob").unwrap())
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("dashboard: ").and_then(|rest| rest.split(' ').next());
        Self { child, url: address.expect("no address").to_owned() }
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Run directory of a job of the baseline.
fn run_of(job: &str) -> PathBuf {
    baseline().folder.join("baseline/default").join(job)
}

/// A copy of the records of a run, which a test may change.
fn copy_of(job: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in FILES {
        fs::copy(run_of(job).join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn append(path: &Path, text: &str) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// An expression for the figure with this title.
fn figure(title: &str) -> String {
    format!(
        "[...document.querySelectorAll('figure')]\
             .find((it) => it.querySelector('h3').textContent === '{title}')"
    )
}

/// Number of points of each line of a figure.
pub(crate) fn points(browser: &mut Browser, title: &str) -> Value {
    let figure = figure(title);
    let expression = format!(
        "[...{figure}.querySelectorAll('.plot polyline')].map((it) => it.points.numberOfItems)"
    );
    browser.evaluate(&expression).unwrap()
}

/// Opens a page and waits for its curves.
pub(crate) fn open(page: &str) -> Browser {
    let mut browser = Browser::start(1280, 900).unwrap();
    browser.open(page).unwrap();
    browser.wait_for("document.querySelectorAll('figure polyline').length > 0").unwrap();
    browser
}

#[test]
fn a_run_is_shown_with_its_curves_samples_and_answers() {
    let run = run_of("practise");
    let dashboard = Dashboard::start(&[&run]);
    let mut browser = open(&dashboard.url);
    let steps = lines(&run.join("metrics.jsonl"));
    let evaluations = lines(&run.join("evaluations.jsonl"));
    assert_eq!(points(&mut browser, "Reward"), json!([steps.len()]));
    assert_eq!(points(&mut browser, "Loss"), json!([steps.len()]));
    let both = json!([evaluations.len(), evaluations.len()]);
    assert_eq!(points(&mut browser, "Evaluation accuracy"), both);
    assert_eq!(points(&mut browser, "Time by phase").as_array().unwrap().len(), 3);

    let last = steps.last().unwrap()["reward"].as_f64().unwrap();
    let output = format!("{}.querySelector('output').textContent", figure("Reward"));
    let shown: f64 = browser.evaluate(&output).unwrap().as_str().unwrap().parse().unwrap();
    assert!((shown - last).abs() < 1e-4, "{shown} instead of {last}");

    browser.wait_for("document.querySelectorAll('#samples article').length > 0").unwrap();
    let samples = lines(&run.join("samples.jsonl"));
    let newest = samples.iter().filter(|sample| sample["step"] == samples.last().unwrap()["step"]);
    let newest: Vec<String> = newest
        .map(|it| {
            format!("{}{}", it["prompt"].as_str().unwrap(), it["completion"].as_str().unwrap())
        })
        .collect();
    let texts = "[...document.querySelectorAll('#samples pre')].map((it) => it.textContent)";
    assert_eq!(browser.evaluate(texts).unwrap(), json!(newest));

    browser.wait_for("document.querySelectorAll('#answers article').length > 0").unwrap();
    let answers = lines(&run.join("evaluation-samples.jsonl"));
    let greedy = |step: &Value| {
        answers.iter().filter(|it| it["greedy"] == true && it["step"] == *step).count()
    };
    let count = browser.evaluate("document.querySelectorAll('#answers article').length").unwrap();
    assert_eq!(count, json!(greedy(&answers.last().unwrap()["step"])));
    assert_eq!(browser.problems(), Vec::<String>::new());
}

#[test]
fn texts_of_a_run_are_never_html() {
    let run = copy_of("practise");
    let hostile =
        "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>\u{202e}";
    let sample = json!({"step": 1000, "prompt": hostile, "completion": hostile, "answer": hostile,
        "reward": 1.0, "finishReason": hostile, "tokens": 1});
    append(&run.path().join("samples.jsonl"), &format!("{sample}\n"));
    let answer = json!({"step": 1000, "row": 0, "index": 1, "greedy": true, "prompt": hostile,
        "completion": hostile, "answer": hostile, "reward": 1.0});
    append(&run.path().join("evaluation-samples.jsonl"), &format!("{answer}\n"));
    let state = json!({"epoch": 1, "succeeded": false, "failure": hostile});
    fs::write(run.path().join("state.json"), state.to_string()).unwrap();
    let text = hostile.replace('\u{202e}', "\u{fffd}");
    let is_text = |selector: &str| {
        format!(
            "document.querySelector('{selector}')?.textContent.includes({}) === true",
            json!(text)
        )
    };
    let dashboard = Dashboard::start(&[run.path()]);
    let report = Command::new(binary("rljob").unwrap()).arg("report").arg(run.path()).status();
    assert!(report.unwrap().success());
    let file = format!("file://{}", run.path().join("report.html").display());
    for page in [&dashboard.url, &file] {
        let mut browser = open(page);
        for place in ["#samples pre", "#samples article p", "#answers pre", "#cause"] {
            browser.wait_for(&is_text(place)).unwrap();
        }
        assert_eq!(browser.evaluate("document.images.length").unwrap(), json!(0), "{page}");
        assert_eq!(browser.evaluate("typeof window.attacked").unwrap(), "undefined", "{page}");
        assert_eq!(browser.problems(), Vec::<String>::new(), "{page}");
    }
}

#[test]
fn several_runs_are_compared_in_a_table_and_in_the_same_curves() {
    let (first, second) = (run_of("practise"), copy_of("practise"));
    append(&second.path().join("metrics.jsonl"), "{\"step\":13,\"attempt\":1,\"reward\":0.75}\n");
    let dashboard = Dashboard::start(&[&first, second.path()]);
    let mut browser = open(&dashboard.url);
    let steps = lines(&first.join("metrics.jsonl")).len();
    assert_eq!(points(&mut browser, "Reward"), json!([steps, steps + 1]));
    let names = "[...document.querySelectorAll('#runs tbody th')].map((it) => it.innerText.trim())";
    let expected = [first.as_path(), second.path()].map(|path| path.display().to_string());
    assert_eq!(browser.evaluate(names).unwrap(), json!(expected));
    browser.evaluate("document.querySelector('#runs input').click()").unwrap();
    assert_eq!(points(&mut browser, "Reward"), json!([steps + 1]));
    // The second run has another attempt, which is an incident.
    browser.evaluate("document.querySelector('#details').selectedIndex = 1").unwrap();
    browser
        .evaluate("document.querySelector('#details').dispatchEvent(new Event('change'))")
        .unwrap();
    browser.wait_for("!document.querySelector('#incidents').hidden").unwrap();
    let incident = browser.evaluate("document.querySelector('#incidents li').textContent").unwrap();
    assert_eq!(incident, json!("Step 13 The learners restarted as attempt 2 up to this step."));
    assert_eq!(browser.problems(), Vec::<String>::new());
}

#[test]
fn the_page_follows_a_running_run() {
    let run = copy_of("practise");
    let all = fs::read_to_string(run.path().join("metrics.jsonl")).unwrap();
    let (first, rest) = all.split_at(all.find('\n').unwrap() + 1);
    fs::write(run.path().join("metrics.jsonl"), first).unwrap();
    fs::write(run.path().join("state.json"), "{\"epoch\":1,\"succeeded\":false}").unwrap();
    let lock = File::create(run.path().join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let dashboard = Dashboard::start(&[run.path()]);
    let mut browser = open(&dashboard.url);
    assert_eq!(points(&mut browser, "Reward"), json!([1]));
    let state = |text: &str| format!("document.querySelector('#state').innerText === '{text}'");
    browser.wait_for(&state("Running 1 of 12 steps")).unwrap();
    append(&run.path().join("metrics.jsonl"), rest);
    browser.wait_for(&state("Running 12 of 12 steps")).unwrap();
    assert_eq!(points(&mut browser, "Reward"), json!([12]));
    let spoken = browser.evaluate("document.querySelector('[role=status]').textContent").unwrap();
    assert_eq!(spoken, json!("practise: step 12 of 12"));
    drop(lock);
    browser.wait_for(&state("Stopped 12 of 12 steps")).unwrap();
    assert_eq!(browser.problems(), Vec::<String>::new());
}

#[test]
fn the_page_can_be_used_by_keyboard_and_in_dark_and_has_tables_for_its_curves() {
    let dashboard = Dashboard::start(&[&run_of("practise")]);
    let mut browser = open(&dashboard.url);
    let background = "getComputedStyle(document.body).backgroundColor";
    let light = browser.evaluate(background).unwrap();
    browser.prefer("dark").unwrap();
    let dark = browser.evaluate(background).unwrap();
    browser.screenshot(&pictures().join("run-dark.png")).unwrap();
    browser.prefer("light").unwrap();
    browser.screenshot(&pictures().join("run-light.png")).unwrap();
    assert_eq!((light, dark), (json!("rgb(247, 247, 245)"), json!("rgb(19, 20, 22)")));

    // The first stop skips to the content; then every control has a visible focus.
    browser.wait_for("document.querySelectorAll('#answers select').length === 3").unwrap();
    browser.press("Tab").unwrap();
    let active = |expression: &str| format!("document.activeElement.{expression}");
    assert_eq!(browser.evaluate(&active("textContent")).unwrap(), "Skip to the content");
    let controls = "[...document.querySelectorAll(\
         'a, select, button:enabled, summary, [tabindex=\"0\"]')]\
         .filter((it) => it.checkVisibility()).length";
    let controls = browser.evaluate(controls).unwrap().as_u64().unwrap();
    let mut reached = 1;
    while reached < controls {
        browser.press("Tab").unwrap();
        let outline =
            browser.evaluate("getComputedStyle(document.activeElement).outlineStyle").unwrap();
        assert_eq!(outline, "solid", "{}", browser.evaluate(&active("outerHTML")).unwrap());
        reached += 1;
    }
    assert_eq!(browser.evaluate(&active("tagName")).unwrap(), "SUMMARY", "the spec is last");

    browser.evaluate(&format!("{}.querySelector('.plot').focus()", figure("Reward"))).unwrap();
    browser.press("Home").unwrap();
    browser.press("ArrowRight").unwrap();
    let steps = lines(&run_of("practise").join("metrics.jsonl"));
    let spoken = browser.evaluate(&active("getAttribute('aria-valuetext')")).unwrap();
    let (spoken, value) = (spoken.as_str().unwrap(), steps[1]["reward"].as_f64().unwrap());
    assert!(spoken.starts_with("step 2: "), "{spoken}");
    assert!((spoken[8..].parse::<f64>().unwrap() - value).abs() < 1e-4, "{spoken}: {value}");

    browser.press("Tab").unwrap();
    browser.press("Enter").unwrap();
    let rows = format!("{}.querySelectorAll('tbody tr').length", figure("Reward"));
    browser.wait_for(&format!("{rows} === {}", steps.len())).unwrap();
    let unnamed: Vec<String> = browser
        .accessible()
        .unwrap()
        .into_iter()
        .filter(|(role, name)| CONTROLS.contains(&role.as_str()) && name.is_empty())
        .map(|(role, _)| role)
        .collect();
    assert_eq!(unnamed, Vec::<String>::new(), "controls that a screen reader cannot name");
    let landmarks =
        "['header', 'nav', 'main', 'h1'].map((it) => document.querySelectorAll(it).length)";
    assert_eq!(browser.evaluate(landmarks).unwrap(), json!([1, 1, 1, 1]));
    assert_eq!(browser.problems(), Vec::<String>::new());
}
