//! `rljob checkpoints copy` and `restore` on runs: a restored run repeats the discarded steps with
//! the same result, and a copied checkpoint starts another run.

use std::fs;
use std::path::Path;
use std::process::Command;

use rljob_crds::names::{METRICS_FILE, TENSORBOARD_FILES};
use rljob_tests::files::binary;
use rljob_tests::process;
use rustix::process::Signal;

use super::{INTERRUPTED, LocalRun, assert_same_weights, baseline, steps};
use crate::exact_recovery::{assert_same, practise};
use crate::journal::query;

/// `rljob checkpoints ARGUMENTS`. Lines of errors have no prefix.
fn checkpoints(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(binary("rljob").unwrap());
    process::run(command.arg("checkpoints").args(arguments))
        .map_err(|error| format!("{error:#}").replace("\nerror: ", "\n"))
}

/// Names in a folder of the run, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_finished_run_is_restored_to_a_checkpoint_and_repeats_the_later_steps_with_the_same_result() {
    let run = practise("restored-in-place", &[], &[]);
    let directory = run.local.runs.join("default/practise");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");
    let dir = directory.display().to_string();
    let restore = |step: &str, more: &[&str]| {
        checkpoints(&[&["restore", &dir, "--step", step], more].concat())
    };
    let all = ["step-10.attempt-0", "step-12.attempt-0", "step-5.attempt-0"];
    let missing = restore("6", &[]).unwrap_err();
    let complete = "complete ones: step-5.attempt-0, step-10.attempt-0, step-12.attempt-0";
    assert!(
        missing.contains(&format!("no complete checkpoint of step 6; {complete}")),
        "{missing}"
    );
    let unconfirmed = restore("5", &[]).unwrap_err();
    let listed =
        "a restore of default/practise to step 5 discards:\nsteps 6 to 12\n7 fixed batches\n";
    assert!(
        unconfirmed.contains(listed) && unconfirmed.contains("pass --discard"),
        "{unconfirmed}"
    );
    assert_eq!(names(&directory.join("checkpoints")), all, "nothing has changed");
    assert_eq!(steps(&directory.join(METRICS_FILE)), (1..=12).collect::<Vec<_>>());

    // A restore that was interrupted after it had removed the newest checkpoint.
    fs::remove_dir_all(directory.join("checkpoints/step-12.attempt-0")).unwrap();
    let restored = restore("5", &["--discard"]).unwrap();
    let later = "checkpoints/step-10.attempt-0\nexport\n";
    let end = "default/practise continues after step 5 with its next `rljob run`\n";
    assert!(restored.starts_with("discarded:\nsteps 6 to 12\n"), "{restored}");
    assert!(restored.ends_with(&format!("{later}{end}")), "{restored}");
    assert_eq!(names(&directory.join("checkpoints")), ["step-5.attempt-0"]);
    assert!(!directory.join("export").exists());
    assert_eq!(steps(&directory.join(METRICS_FILE)), [1, 2, 3, 4, 5]);
    let newest = |table| query(&directory, &format!("SELECT coalesce(max(step), 0) FROM {table}"));
    // Samples up to the oldest checkpoint were pruned.
    assert_eq!(["steps", "batches", "samples"].map(newest), ["5", "5", "0"]);
    let again = restore("5", &["--discard"]).unwrap();
    assert_eq!(again, format!("nothing is later; {end}"));

    let run = practise("restored-in-place", &[], &[]);
    assert_same(run);
    let event = "SELECT json_extract(detail, '$.to'), json_extract(detail, '$.lastStep') \
        FROM events WHERE kind = 'RolledBack'";
    assert_eq!(query(&directory, event), "step-5.attempt-0|12");
    for file in TENSORBOARD_FILES {
        assert!(directory.join(file).exists(), "{file}");
    }
}

#[test]
fn an_active_run_and_an_altered_checkpoint_are_not_restored_and_a_copy_starts_another_run() {
    let folder = &baseline().folder;
    let local = LocalRun::start(folder, "copied");
    local.wait_for_steps("practise", 7);
    let directory = local.runs.join("default/practise");
    let dir = directory.display().to_string();
    let active = checkpoints(&["restore", &dir, "--step=5", "--discard"]).unwrap_err();
    assert!(active.contains("default/practise is active: stop its `rljob run`"), "{active}");
    // The run is active.
    let to = folder.join("copies");
    let to_text = to.display().to_string();
    let copy = |more: &[&str]| checkpoints(&[&["copy", &dir, "--to", &to_text], more].concat());
    let copied = copy(&["--step=5"]).unwrap();
    local.signal(Signal::INT);
    assert_eq!(local.end().0, Some(INTERRUPTED));
    let target = to.join("step-5.attempt-0");
    assert!(copied.starts_with(&format!("{}: 2 files of ", target.display())), "{copied}");
    let files = ["rank-0-of-2.safetensors", "rank-1-of-2.safetensors"];
    assert_eq!(names(&target), [&["manifest.json", "position.json"], &files[..]].concat());
    let twice = copy(&["--step=5"]).unwrap_err();
    assert!(twice.contains(&format!("{} exists already", target.display())), "{twice}");
    let missing = copy(&["--step=6"]).unwrap_err();
    assert!(missing.contains("has no complete checkpoint of step 6"), "{missing}");

    let file = directory.join("checkpoints/step-5.attempt-0/rank-1-of-2.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let altered = checkpoints(&["restore", &dir, "--step=5", "--discard"]).unwrap_err();
    assert!(altered.contains("checkpoint step-5.attempt-0 cannot be restored: "), "{altered}");
    fs::remove_dir_all(&target).unwrap();
    let altered = copy(&["--step=5"]).unwrap_err();
    assert!(altered.contains("rank-1-of-2.safetensors: has SHA-256 "), "{altered}");
    assert!(!target.exists());
    assert_same_weights(LocalRun::start(folder, "copied"));

    let newest = copy(&[]).unwrap();
    assert!(newest.starts_with(&format!("{to_text}/step-12.attempt-")), "{newest}");
    let copied = copy(&["--step=10"]).unwrap();
    let (target, _) = copied.split_once(": ").unwrap();
    let from = format!("practise:spec.restoreFrom.path={target}");
    let local = LocalRun::start_with(folder, "from-copy", &["--set", &from]);
    let metrics = local.runs.join("default/practise").join(METRICS_FILE);
    assert_same_weights(local);
    assert_eq!(steps(&metrics), [11, 12]);
}
