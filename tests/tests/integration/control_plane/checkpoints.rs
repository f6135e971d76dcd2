//! `kubectl rljob checkpoints` of jobs with simulated pods: requests that the API server accepts,
//! and errors. `e2e::checkpoints` has real coordinators.

use std::fs;

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::command_line::Plugin;
use super::operator::{LIMIT, Operator, namespace_with, wait_for_condition};
use super::simulated_pods::SimulatedPods;

#[test]
fn a_suspended_job_is_restored_to_a_checkpoint_and_others_are_rejected() {
    let namespace = namespace_with("restored", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    let simulated = SimulatedPods::start(&namespace);
    {
        let mut run = simulated.run.lock();
        (run.step, run.checkpoints) = (2, vec!["step-1.attempt-0", "step-2.attempt-0"]);
    }
    wait_for_condition(&namespace, "Ready");
    let plugin = Plugin::install();
    let restore = |more: &[&str]| {
        plugin.run(&namespace, &[&["checkpoints", "restore", "sample"], more].concat())
    };
    let active = restore(&["--step=1", "--discard"]).unwrap_err();
    assert!(active.contains("is not suspended: `kubectl rljob suspend sample`"), "{active}");
    let list = || plugin.run(&namespace, &["checkpoints", "list", "sample"]);
    wait_until("both checkpoints", LIMIT, || {
        Ok(list().is_ok_and(|text| text.contains("checkpoints/step-1.attempt-0")))
    })
    .unwrap();
    plugin.run(&namespace, &["suspend", "sample"]).unwrap();
    wait_for_condition(&namespace, "Suspended");

    let missing = plugin.run(&namespace, &["checkpoints", "restore", "none", "--step=1"]);
    assert!(missing.unwrap_err().contains("it does not exist"));
    let unknown = restore(&["--step=7", "--discard"]).unwrap_err();
    assert!(unknown.contains("no complete checkpoint of step 7; complete ones: 1, 2"), "{unknown}");
    let newest = restore(&["--step=2", "--discard"]).unwrap();
    assert!(newest.starts_with("nothing is later than step 2"), "{newest}");
    let unconfirmed = restore(&["--step=1"]).unwrap_err();
    assert!(unconfirmed.contains("discards steps 2 to 2 with"), "{unconfirmed}");
    let target = || namespace.kubectl.get(&["rljob/sample"]).unwrap()["spec"]["rollbackTo"].take();
    assert_eq!(target(), Value::Null);
    let answer = restore(&["--step=1", "--discard"]).unwrap();
    let expected = "rljob sample goes back to step 1 when it resumes, and discards steps 2 to 2";
    assert!(answer.starts_with(expected), "{answer}");
    assert_eq!(target()["step"], 1);
    let first = target()["requestedAt"].clone();
    wait_until("another second", LIMIT, || {
        restore(&["--step=1", "--discard"]).map_err(anyhow::Error::msg)?;
        Ok(target()["requestedAt"] != first)
    })
    .unwrap();

    let copy = |to: &str| {
        let to = format!("--to={to}");
        plugin.run(&namespace, &["checkpoints", "copy", "sample", "--step=1", &to]).unwrap_err()
    };
    let folder = tempfile::tempdir().unwrap();
    let suspended = copy(&folder.path().display().to_string());
    let place = format!("copy the folder {}/sample/checkpoints/step-1.attempt-0", namespace.name);
    assert!(suspended.contains("is suspended and has no coordinator"), "{suspended}");
    assert!(suspended.contains(&place), "{suspended}");
    fs::create_dir(folder.path().join("step-1.attempt-0")).unwrap();
    let exists = copy(&folder.path().display().to_string());
    assert!(exists.contains("step-1.attempt-0 exists already"), "{exists}");
}
