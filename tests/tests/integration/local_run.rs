//! `rljob run` as a user runs it: what is killed or interrupted on the way changes nothing in the
//! weights at its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rljob_crds::names::{
    EVALUATIONS_FILE, EXPORT_COMPLETE_FILE, EXPORT_DIR, EXPORTS_DIR, METRICS_FILE,
};
use rljob_protocol::status::EvaluationMetrics;
use rljob_tests::files::{binary, workspace};
use rljob_tests::process::{run, wait_until};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::exact_recovery::practise;

mod process;
mod user_engine;

pub(crate) use process::{LIMIT, LocalRun};

/// Two jobs.
pub(crate) const JOBS: &str = include_str!("local_run/jobs.yaml");
/// As shells count it: 128 + SIGINT.
pub(crate) const INTERRUPTED: i32 = 130;

/// A folder with the jobs and their data, and what an undisturbed run made of them.
pub(crate) struct Undisturbed {
    pub(crate) folder: TempDir,
    pub(crate) made: Made,
}

/// What a run leaves that must not depend on what happened on the way.
#[derive(PartialEq)]
pub(crate) struct Made {
    /// The exported weights of both jobs, byte for byte.
    pub(crate) exports: [Vec<u8>; 2],
    /// Those that were made on the way and kept: name and weights.
    pub(crate) on_the_way: Vec<(String, Vec<u8>)>,
    /// Steps and bits of the losses of the data that is not trained on.
    pub(crate) validation: Vec<(u32, u64)>,
}

pub(crate) fn undisturbed() -> &'static Undisturbed {
    static RUN: OnceLock<Undisturbed> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = folder_with(JOBS);
        let local = LocalRun::start(folder.path(), "undisturbed");
        let (code, output) = local.end();
        assert_eq!(code, Some(0), "{output}");
        Undisturbed { made: made(&folder.path().join("undisturbed")), folder }
    })
}

/// A folder with these jobs and the quick start's data.
pub(crate) fn folder_with(jobs: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    run(Command::new("python3")
        .arg(workspace().join("manifests/samples/quickstart/make_data.py"))
        .arg(folder.path()))
    .unwrap();
    fs::write(folder.path().join("jobs.yaml"), jobs).unwrap();
    folder
}

fn made(runs: &Path) -> Made {
    let [imitate, practise] = ["imitate", "practise"].map(|job| runs.join("default").join(job));
    let mut kept: Vec<PathBuf> = fs::read_dir(imitate.join(EXPORTS_DIR))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    kept.sort();
    let name = |folder: &Path| folder.file_name().unwrap().to_str().unwrap().to_owned();
    Made {
        exports: [imitate.join(EXPORT_DIR), practise.join(EXPORT_DIR)]
            .map(|folder| weights(&folder)),
        on_the_way: kept.iter().map(|folder| (name(folder), weights(folder))).collect(),
        validation: evaluations(&imitate)
            .iter()
            .map(|evaluation| (evaluation.step, evaluation.loss.unwrap().to_bits()))
            .collect(),
    }
}

/// The weights of a complete export.
pub(crate) fn weights(export: &Path) -> Vec<u8> {
    assert!(export.join(EXPORT_COMPLETE_FILE).is_file(), "{} is not complete", export.display());
    fs::read(export.join("model.safetensors")).unwrap()
}

pub(crate) fn evaluations(run: &Path) -> Vec<EvaluationMetrics> {
    let lines = fs::read_to_string(run.join(EVALUATIONS_FILE)).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn assert_same_weights(local: LocalRun) {
    let runs = local.runs.clone();
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    let (made, undisturbed) = (made(&runs), &undisturbed().made);
    for (job, (disturbed, undisturbed)) in
        ["imitate", "practise"].iter().zip(made.exports.iter().zip(&undisturbed.exports))
    {
        assert!(
            disturbed == undisturbed,
            "the weights of {job} differ from those of the undisturbed run\n{output}"
        );
    }
    assert_eq!(made.validation, undisturbed.validation, "{output}");
    assert!(
        made == *undisturbed,
        "the exports on the way differ from those of the undisturbed run\n{output}"
    );
}

#[test]
fn killed_learners_go_on_and_the_final_weights_are_the_same_bits() {
    let local = LocalRun::start(undisturbed().folder.path(), "killed");
    local.wait_for_steps("imitate", 70);
    local.kill("rljob-learner");
    local.wait_for_steps("practise", 3); // before the first checkpoint
    local.kill("rljob-learner");
    local.wait_for_steps("practise", 8); // after it
    local.kill("rljob-learner");
    assert_same_weights(local);
}

#[test]
fn every_other_process_may_be_killed_too() {
    let local = LocalRun::start(undisturbed().folder.path(), "all-killed");
    local.wait_for_steps("practise", 2);
    local.kill("rljob-engine");
    local.wait_for_steps("practise", 4);
    local.kill("rljob-coordinator");
    local.wait_for_steps("practise", 7);
    local.kill("rljob-supervisor");
    assert_same_weights(local);
}

#[test]
fn an_interrupted_run_says_how_to_go_on_and_ends_with_the_same_bits() {
    let folder = undisturbed().folder.path();
    let local = LocalRun::start(folder, "interrupted");
    local.wait_for_steps("practise", 7);
    local.signal(Signal::INT);
    let (code, output) = local.end();
    assert_eq!(code, Some(INTERRUPTED), "{output}");
    assert!(
        output.ends_with(
            "practise is in a checkpoint. To go on:\n  rljob run -f jobs.yaml --dir interrupted\n"
        ),
        "{output}"
    );
    assert_same_weights(LocalRun::start(folder, "interrupted"));
}

#[test]
fn a_run_that_is_killed_whole_goes_on_and_ends_with_the_same_bits() {
    let folder = undisturbed().folder.path();
    let local = LocalRun::start(folder, "killed-whole");
    local.wait_for_steps("practise", 7);
    local.kill_all();
    assert_same_weights(LocalRun::start(folder, "killed-whole"));
}

/// They are killed while they start, so that none has been told by the kernel yet.
#[test]
fn a_run_that_is_killed_as_soon_as_it_starts_processes_leaves_none() {
    for process in ["rljob-coordinator", "rljob-engine", "rljob-supervisor"] {
        let local = practise("killed-at-start", &[], &[]).local;
        wait_until(process, LIMIT, || Ok(local.find(process, "").is_some())).unwrap();
        local.kill_all();
    }
}

#[test]
fn an_altered_checkpoint_is_refused_and_the_one_before_is_used_with_the_same_bits_at_the_end() {
    let folder = undisturbed().folder.path();
    let local = LocalRun::start(folder, "altered");
    local.wait_for_steps("practise", 7);
    local.signal(Signal::INT);
    assert_eq!(local.end().0, Some(INTERRUPTED));
    let run = folder.join("altered/default/practise");
    let mut steps: Vec<u32> = fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .filter_map(|entry| step_of(&entry.unwrap().path()))
        .collect();
    steps.sort_unstable();
    let [before, newest] = steps[..] else { panic!("{steps:?}") };
    let shard = run.join(format!("checkpoints/step-{newest}.attempt-0/rank-1-of-2.safetensors"));
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();

    assert_same_weights(LocalRun::start(folder, "altered"));
    let log = fs::read_to_string(run.join("logs/coordinator.log")).unwrap();
    let said = log
        .lines()
        .find(|line| line.contains("refused checkpoint"))
        .unwrap_or_else(|| panic!("nothing is said of it:\n{log}"));
    let start = format!(
        "refused checkpoint step-{newest}.attempt-0: `{}` was altered: its SHA-256 is ",
        shard.display()
    );
    assert!(
        said.contains(&start) && said.ends_with(&format!("; step-{before}.attempt-0 is used")),
        "{said}"
    );
}

#[test]
fn a_run_that_starts_from_another_ones_checkpoint_makes_the_steps_after_it_with_the_same_bits_at_the_end()
 {
    let folder = undisturbed().folder.path();
    let restore = "practise:spec.checkpoint.restoreFrom=undisturbed/default/practise/checkpoints/step-10.attempt-0";
    let local = LocalRun::start_with(folder, "restored", &["--set", restore]);
    let metrics = local.runs.join("default/practise").join(METRICS_FILE);
    assert_same_weights(local);
    assert_eq!(steps(&metrics), [11, 12]);
}

#[test]
fn a_run_that_names_a_job_starts_from_its_newest_checkpoint_and_keeps_to_it_whatever_that_job_does()
{
    let practise = JOBS.split("---\n").nth(1).unwrap();
    let more = practise.replace("name: practise", "name: more").replace("steps: 12", "steps: 24");
    let folder = folder_with(&more.replace(
        "everySteps: 5, keepLast: 9",
        "everySteps: 12, keepLast: 9, restoreFrom: practise",
    ));
    let runs = folder.path().join("runs/default");
    fs::create_dir_all(&runs).unwrap();
    for job in ["imitate", "practise"] {
        run(Command::new("cp")
            .arg("-a")
            .arg(undisturbed().folder.path().join("undisturbed/default").join(job))
            .arg(&runs))
        .unwrap();
    }
    let local = LocalRun::start(folder.path(), "runs");
    local.wait_for_steps("more", 2);
    local.kill_all();
    let checkpoints = runs.join("practise/checkpoints");
    run(Command::new("cp")
        .arg("-a")
        .arg(checkpoints.join("step-12.attempt-0"))
        .arg(checkpoints.join("step-20.attempt-0")))
    .unwrap();
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(steps(&runs.join("more").join(METRICS_FILE)), (13..=24).collect::<Vec<_>>());
}

/// The steps of a metrics.jsonl, in its order.
pub(crate) fn steps(metrics: &Path) -> Vec<u64> {
    let lines = fs::read_to_string(metrics).unwrap();
    lines
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap()
        })
        .collect()
}

/// The step of a checkpoint's folder.
fn step_of(folder: &Path) -> Option<u32> {
    folder.file_name()?.to_str()?.strip_prefix("step-")?.split('.').next()?.parse().ok()
}

/// The checkpoints of `practise`, about 5 MB each, are on a tmpfs of 7 MB that only this run sees;
/// then it is made larger.
#[test]
fn a_full_disk_fails_the_run_in_its_own_words_and_with_room_it_goes_on_from_the_checkpoint_before()
{
    let folder = undisturbed().folder.path();
    let runs = folder.join("full");
    let checkpoints = runs.join("default/practise/checkpoints");
    fs::create_dir_all(&checkpoints).unwrap();
    let copy = [folder.join("undisturbed/default/imitate"), runs.join("default/imitate")];
    run(Command::new("cp").arg("-a").args(copy)).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=7m tmpfs '{0}' || exit 99
         '{1}' run --file jobs.yaml --dir full --set practise:spec.failurePolicy.maxRestarts=1; code=$?
         echo complete: '{0}'/*/manifest.json
         mount -o remount,size=70m '{0}' && '{1}' run --file jobs.yaml --dir full; echo then $?
         exit $code",
        checkpoints.display(),
        binary("rljob").unwrap().display()
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .current_dir(folder)
        .output()
        .unwrap();
    let (said, failed) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}{failed}");
    assert!(
        failed.contains("error: practise failed: ") && failed.contains("No space left on device"),
        "{said}{failed}"
    );
    assert!(
        said.contains(&format!(
            "complete: {}/step-5.attempt-0/manifest.json\n",
            checkpoints.display()
        )),
        "{said}"
    );
    assert!(said.ends_with("\nthen 0\n"), "{said}{failed}");
    assert!(
        made(&runs) == undisturbed().made,
        "the weights differ from those of the undisturbed run"
    );
}
