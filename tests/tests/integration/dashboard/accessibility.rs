//! Accessibility of the page in a real browser, WCAG 2.2 at level AA: the rules of axe-core in both
//! color schemes and on a narrow screen, contrast of charts, focus, announcements and motion.

use std::fs::{self, File};
use std::path::Path;

use rljob_tests::browser::Browser;
use rljob_tests::files;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::details::plan;
use super::{Dashboard, append, copy_of, open, run_of};

/// Width of a page of 1,280 pixels that is enlarged to 400 % (WCAG 1.4.10).
const NARROW: u32 = 320;

/// A run with every section, and a text that is longer than its box. Running while locked.
fn full_run() -> (TempDir, File) {
    let run = copy_of("practise");
    let file = |name: &str| run.path().join(name);
    let report = fs::read_to_string(run_of("practise").join("status.json")).unwrap();
    let mut report: Value = serde_json::from_str(&report).unwrap();
    report["memory"] = plan();
    report["lastFailure"] = json!({
        "reason": "LearnerKilled", "message": "learner 0 of practise-trainer-0 was killed",
    });
    fs::write(file("status.json"), report.to_string()).unwrap();
    fs::write(file("state.json"), "{\"epoch\":1,\"succeeded\":false}").unwrap();
    let long = "word ".repeat(2_000);
    let segments = json!([{"sampled": false, "text": "2 + 2?"}, {"sampled": true, "text": long}]);
    let sample = json!({
        "step": 1000, "prompt": "2 + 2?", "completion": long, "answer": "4", "reward": 0.5,
        "finishReason": "length", "tokens": 2, "turns": [{"reward": 0.0, "segments": segments}],
    });
    append(&file("samples.jsonl"), &format!("{sample}\n"));
    let lock = File::create(file("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    (run, lock)
}

/// The page with the checks, all of its sections and its details open.
fn checked(url: &str) -> Option<Browser> {
    let axe = files::required(files::axe())?;
    let mut browser = open(url);
    browser.wait_for("document.querySelectorAll('#answers select').length === 3").unwrap();
    browser.evaluate(&fs::read_to_string(axe).unwrap()).unwrap();
    browser.evaluate(include_str!("accessibility.js")).unwrap();
    let opened = "document.querySelectorAll('details').forEach((it) => { it.open = true; })";
    browser.evaluate(opened).unwrap();
    Some(browser)
}

fn no_problems(browser: &mut Browser, check: &str, place: &str) {
    let problems = browser.evaluate(check).unwrap();
    assert_eq!(problems, json!([]), "{check} {place}: {problems:#}");
}

/// Pages of one run with all sections, and of several runs, of which one has failed.
fn each_page(check: impl Fn(&mut Browser, &str)) {
    let (run, _lock) = full_run();
    let failed = copy_of("practise");
    let state = json!({"epoch": 1, "succeeded": false, "failure": "learner 0 ran out of memory"});
    fs::write(failed.path().join("state.json"), state.to_string()).unwrap();
    let practise = run_of("practise");
    let pages: [&[&Path]; 3] =
        [&[run.path()], &[failed.path()], &[run.path(), failed.path(), &practise]];
    for (page, folders) in pages.iter().enumerate() {
        let dashboard = Dashboard::start(folders);
        let Some(mut browser) = checked(&dashboard.url) else { return };
        check(&mut browser, &format!("page {page}"));
        assert_eq!(browser.problems(), Vec::<String>::new());
    }
}

#[test]
fn axe_finds_no_problem_in_light_in_dark_and_on_a_narrow_screen() {
    each_page(|browser, page| {
        for scheme in ["light", "dark"] {
            browser.prefer(scheme).unwrap();
            no_problems(browser, "axeProblems()", &format!("of {page}, {scheme}"));
            no_problems(browser, "faintCharts()", &format!("of {page}, {scheme}"));
        }
        browser.resize(NARROW, 800).unwrap();
        no_problems(browser, "axeProblems()", &format!("of {page}, narrow"));
        let widths = "[document.scrollingElement].map((it) => it.scrollWidth - it.clientWidth)";
        assert_eq!(browser.evaluate(widths).unwrap(), json!([0]), "{page} scrolls sideways");
    });
}

#[test]
fn the_sections_of_the_full_page_are_those_that_the_checks_see() {
    let (run, _lock) = full_run();
    let dashboard = Dashboard::start(&[run.path()]);
    let Some(mut browser) = checked(&dashboard.url) else { return };
    let shown = "[...document.querySelectorAll('main > section')]\
         .filter((it) => !it.hidden).map((it) => it.id)";
    let expected = ["curves", "plan", "now", "memory", "incidents", "samples", "answers", "spec"];
    assert_eq!(browser.evaluate(shown).unwrap(), json!(expected));
}

/// Values of charts change with the pointer and with each step: they would be read all the time.
#[test]
fn only_progress_and_problems_are_announced() {
    let dashboard = Dashboard::start(&[&run_of("practise")]);
    let Some(mut browser) = checked(&dashboard.url) else { return };
    assert_eq!(browser.evaluate("announced()").unwrap(), json!(["problem", "announcement"]));
}

#[test]
fn the_focus_is_visible_in_both_schemes_and_stays_when_its_control_is_disabled() {
    let dashboard = Dashboard::start(&[&run_of("practise")]);
    let Some(mut browser) = checked(&dashboard.url) else { return };
    let key = |browser: &mut Browser| {
        browser.evaluate("document.activeElement.dataset.key ?? document.activeElement.id").unwrap()
    };
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).unwrap();
        browser.evaluate("document.querySelector('.skip').focus()").unwrap();
        for _ in 0..12 {
            browser.press("Tab").unwrap();
            no_problems(&mut browser, "faintFocus()", scheme);
        }
    }
    // The newest step is shown. At the first one, the button that leads there is disabled.
    let previous = "document.querySelector('[data-key=\"Previous step\"]')";
    browser.evaluate(&format!("{previous}.focus()")).unwrap();
    let is_first = format!("{previous}.disabled");
    while browser.evaluate(&is_first).unwrap() != json!(true) {
        assert_eq!(key(&mut browser), "Previous step");
        let step = browser.evaluate("samples.shown.step").unwrap();
        browser.press("Enter").unwrap();
        browser.wait_for(&format!("samples.shown.step !== {step}")).unwrap();
    }
    assert_eq!(key(&mut browser), "samples-tools");
    no_problems(&mut browser, "faintFocus()", "after the first step");
    browser.press("Tab").unwrap();
    assert_eq!(key(&mut browser), "Step");
}

#[test]
fn nothing_moves_for_those_who_prefer_less_motion() {
    let dashboard = Dashboard::start(&[&run_of("practise")]);
    let Some(mut browser) = checked(&dashboard.url) else { return };
    let scrolling = "getComputedStyle(document.documentElement).scrollBehavior";
    let moving = "[...document.querySelectorAll('*')].map((it) => getComputedStyle(it))\
         .filter((it) => it.animationName !== 'none' || it.transitionDuration !== '0s').length";
    for (preference, expected) in [("no-preference", "smooth"), ("reduce", "auto")] {
        browser.emulate("prefers-reduced-motion", preference).unwrap();
        assert_eq!(browser.evaluate(scrolling).unwrap(), expected);
        assert_eq!(browser.evaluate(moving).unwrap(), json!(0));
    }
}
