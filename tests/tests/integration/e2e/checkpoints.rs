//! `kubectl rljob checkpoints` on real nodes: a copy of a running job's checkpoint, and a job that
//! goes back to one.

use std::fs;
use std::path::Path;
use std::process::Command;

use rljob_crds::names::METRICS_FILE;
use rljob_tests::Namespace;
use rljob_tests::files::binary;
use rljob_tests::process::{run as run_program, wait_until};
use serde_json::{Value, json};

use super::{NODES, Run, cluster, steps_done};

/// `rljob checkpoints COMMAND back ARGUMENTS` for the job of a namespace.
fn checkpoints(namespace: &Namespace, command: &str, more: &[&str]) -> Result<String, String> {
    let kubeconfig = Path::new(cluster().kubeconfig()).display().to_string();
    let place = ["--cluster", "--kubeconfig", &kubeconfig, "--namespace", &namespace.name];
    let mut program = Command::new(binary("rljob").unwrap());
    program.args(["checkpoints", command, "back"]).args(more).args(place);
    run_program(&mut program).map_err(|error| format!("{error:#}"))
}

fn suspend(run: &Run<'_>, suspend: bool) {
    let patch = json!({"spec": {"suspend": suspend}}).to_string();
    let patch = ["patch", "rljob/back", "--type=merge", "--patch", &patch];
    run.namespace.kubectl.run(&patch).unwrap();
    if suspend {
        run.wait_for_condition("Suspended");
    }
}

/// Complete checkpoints in the status, by step.
fn listed(run: &Run<'_>) -> Vec<(u64, String)> {
    let status = run.status();
    let entries = status["checkpoints"].as_array().cloned().unwrap_or_default();
    let entry = |entry: &Value| {
        (entry["step"].as_u64().unwrap(), entry["path"].as_str().unwrap().to_owned())
    };
    entries.iter().map(entry).collect()
}

/// Compares the files of a copy, which are those of the manifest, with their sources.
fn assert_equal(source: &Path, copy: &Path) {
    let mut names = Vec::new();
    for file in fs::read_dir(copy).unwrap() {
        let file = file.unwrap();
        let expected = fs::read(source.join(file.file_name())).unwrap();
        assert!(expected == fs::read(file.path()).unwrap(), "{file:?} differs");
        names.push(file.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["manifest.json", "rank-0-of-1.safetensors"]);
}

#[test]
fn a_checkpoint_of_a_running_job_is_copied_and_a_suspended_job_goes_back_to_one() {
    let _nodes = NODES.read();
    let namespace = Namespace::create(cluster(), "back").unwrap();
    let text = include_str!("suspend.yaml").replace("name: pause", "name: back").replace(
        "training: {steps: 100000}",
        "training: {steps: 100000, deterministic: true}\n  checkpoint: {keepLast: 1000}",
    );
    let run = Run::start(cluster(), &namespace, &text, "back");
    run.wait_for_steps(3);
    suspend(&run, true);
    let (step, path) = listed(&run).pop().unwrap();
    // Of the steps in metrics.jsonl, without a line that is being written.
    let recorded = |field: &str| {
        let text = fs::read_to_string(run.directory.join(METRICS_FILE)).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.map(|line| line[field].clone()).collect::<Vec<_>>()
    };

    suspend(&run, false);
    run.wait_for_steps(step + 3);
    let folder = tempfile::tempdir().unwrap();
    let to = format!("--to={}", folder.path().display());
    let of_step = format!("--step={step}");
    let copied = checkpoints(&namespace, "copy", &[&of_step, &to]).unwrap();
    assert!(copied.contains("match the manifest; a job starts from it"), "{copied}");
    let version = path.strip_prefix("checkpoints/").unwrap();
    assert_equal(&run.directory.join(&path), &folder.path().join(version));
    let verified = checkpoints(&namespace, "verify", &[&of_step]).unwrap();
    let expected = format!("{version}: ");
    assert!(
        verified.starts_with(&expected) && verified.contains("match the manifest"),
        "{verified}"
    );
    let exists = checkpoints(&namespace, "copy", &[&of_step, &to]).unwrap_err();
    assert!(exists.contains(&format!("{version} exists already")), "{exists}");
    run.log("a checkpoint is copied");

    suspend(&run, true);
    let done = steps_done(&run.directory);
    let (losses, attempts) = (recorded("loss"), recorded("attempt"));
    let discarded = checkpoints(&namespace, "restore", &[&of_step, "--discard"]).unwrap();
    let expected = format!("discards steps {} to {done}", step + 1);
    assert!(discarded.contains(&expected), "{discarded}");
    suspend(&run, false);
    run.log("the job resumes");
    let last = losses.len() - 1;
    wait_until("the discarded steps", run.limit, || {
        let again = recorded("attempt");
        Ok(again.get(last).is_some_and(|attempt| *attempt != attempts[last]))
    })
    .unwrap();
    // A later start does not repeat the request.
    suspend(&run, true);
    suspend(&run, false);
    run.wait_for_progress();
    suspend(&run, true);
    let again = recorded("loss");
    assert_eq!(again[..=last], losses, "the discarded steps have the same result as before");
    let seen = run.steps();
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>(), "every step is recorded once");
    let journal = crate::journal::query(
        &run.directory,
        "SELECT count(*) FROM events WHERE kind = 'RolledBack'",
    );
    assert_eq!(journal, "1", "the request is done once");
}
