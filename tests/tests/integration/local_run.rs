//! `rljob run` under kills and interrupts: the final weights do not change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rljob_crds::names::{
    EVALUATIONS_FILE, EXPORT_COMPLETE_FILE, EXPORT_DIR, EXPORTS_DIR, JOURNAL_FILE, METRICS_FILE,
};
use rljob_protocol::status::EvaluationMetrics;
use rljob_tests::process::{run, wait_until};
use rljob_tests::quickstart;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::exact_recovery::practise;

mod authorities;
mod critic;
mod data;
mod epochs;
mod evaluation;
mod full_disk;
mod functions;
mod model_reward;
mod moved;
mod off_policy;
mod pairs;
mod process;
mod rejections;
mod restore;
pub(crate) mod served_model;
mod served_teacher;
mod user_engine;
mod wrong_programs;

pub(crate) use process::{LIMIT, LocalRun};

/// An SFT job and a GRPO job that starts from its export.
pub(crate) const JOBS: &str = include_str!("local_run/jobs.yaml");
/// Shell convention: 128 + SIGINT.
pub(crate) const INTERRUPTED: i32 = 130;

/// A folder with the jobs, their data, and the artifacts of a run without faults. No test is the
/// last to use it, so the next process of these tests removes it.
pub(crate) struct Baseline {
    pub(crate) folder: PathBuf,
    pub(crate) artifacts: Artifacts,
}

/// Artifacts of a run that must not depend on failures.
#[derive(PartialEq)]
pub(crate) struct Artifacts {
    /// Exported weights of both jobs.
    pub(crate) exports: [Vec<u8>; 2],
    /// Intermediate exports that were kept: name and weights.
    pub(crate) intermediate_exports: Vec<(String, Vec<u8>)>,
    /// Steps and bits of the validation losses.
    pub(crate) validation: Vec<(u32, u64)>,
}

pub(crate) fn baseline() -> &'static Baseline {
    static RUN: OnceLock<Baseline> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("local-run");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fill(&folder, JOBS);
        let local = LocalRun::start_with(&folder, "baseline", &["--compare"]);
        let (code, output) = local.end();
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("comparison.html") && output.contains("PROMPTS"), "{output}");
        Baseline { artifacts: artifacts(&folder.join("baseline")), folder }
    })
}

/// Creates a folder with the jobs and the quick start's data.
pub(crate) fn folder_with(jobs: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), jobs);
    folder
}

fn fill(folder: &Path, jobs: &str) {
    quickstart::generate(folder, 4_000).unwrap();
    teach_second_turns(&folder.join("teacher.jsonl"));
    fs::write(folder.join("jobs.yaml"), jobs).unwrap();
}

/// Asks every other question again after the teacher's answer, with the right sum as completion:
/// workflows need a policy that is sometimes right in a second turn.
fn teach_second_turns(teacher: &Path) {
    let rows = fs::read_to_string(teacher).unwrap();
    let rows = rows.lines().enumerate().map(|(index, line)| {
        let row: Value = serde_json::from_str(line).unwrap();
        let [question, answer] = ["question", "completion"].map(|key| row[key].as_str().unwrap());
        if index % 2 == 0 {
            return format!("{row}\n");
        }
        let terms = question.trim_end_matches('=').split('+');
        let sum: u32 = terms.map(|term| term.parse::<u32>().unwrap()).sum();
        let question = format!("{question}{answer}<eos> {question}");
        format!("{}\n", json!({"question": question, "completion": format!("{sum:03}")}))
    });
    fs::write(teacher, rows.collect::<String>()).unwrap();
}

fn artifacts(runs: &Path) -> Artifacts {
    let [imitate, practise] = ["imitate", "practise"].map(|job| runs.join("default").join(job));
    let mut kept: Vec<PathBuf> = fs::read_dir(imitate.join(EXPORTS_DIR))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    kept.sort();
    let name = |folder: &Path| folder.file_name().unwrap().to_str().unwrap().to_owned();
    Artifacts {
        exports: [imitate.join(EXPORT_DIR), practise.join(EXPORT_DIR)]
            .map(|folder| weights(&folder)),
        intermediate_exports: kept.iter().map(|folder| (name(folder), weights(folder))).collect(),
        validation: evaluations(&imitate)
            .iter()
            .map(|evaluation| (evaluation.step, evaluation.loss.unwrap().to_bits()))
            .collect(),
    }
}

/// Weights of a complete export.
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
    let (artifacts, baseline) = (artifacts(&runs), &baseline().artifacts);
    for (job, (disturbed, baseline)) in
        ["imitate", "practise"].iter().zip(artifacts.exports.iter().zip(&baseline.exports))
    {
        assert!(
            disturbed == baseline,
            "the weights of {job} differ from those of the baseline run\n{output}"
        );
    }
    assert_eq!(artifacts.validation, baseline.validation, "{output}");
    assert!(
        artifacts == *baseline,
        "the intermediate exports differ from those of the baseline run\n{output}"
    );
}

#[test]
fn killed_learners_do_not_change_the_final_weights() {
    let local = LocalRun::start(&baseline().folder, "killed");
    local.wait_for_steps("imitate", 70);
    local.kill("rljob-learner");
    local.wait_for_steps("practise", 3); // before the first checkpoint
    local.kill("rljob-learner");
    local.wait_for_steps("practise", 8); // after it
    local.kill("rljob-learner");
    assert_same_weights(local);
}

#[test]
fn killed_engine_coordinator_and_supervisor_do_not_change_the_final_weights() {
    let local = LocalRun::start(&baseline().folder, "all-killed");
    local.wait_for_steps("practise", 2);
    local.kill("rljob-engine");
    local.wait_for_steps("practise", 4);
    local.kill("rljob-coordinator");
    local.wait_for_steps("practise", 7);
    local.kill("rljob-supervisor");
    assert_same_weights(local);
}

#[test]
fn an_interrupted_run_resumes_with_the_same_spec_only_and_ends_with_the_same_weights() {
    let folder = &baseline().folder;
    let local = LocalRun::start(folder, "interrupted");
    local.wait_for_steps("practise", 7);
    local.signal(Signal::INT);
    let (code, output) = local.end();
    assert_eq!(code, Some(INTERRUPTED), "{output}");
    assert!(
        output.ends_with(
            "practise: all steps are in a checkpoint; to resume:\n  rljob run -f jobs.yaml --dir \
                interrupted\n"
        ),
        "{output}"
    );
    let changes = ["--set", "spec.training.seed=9", "--set", "spec.optimizer.learningRate=0.5"];
    let (code, output) = LocalRun::start_with(folder, "interrupted", &changes).end();
    let refused = "spec.optimizer.learningRate, spec.training.seed differ; restore them";
    assert!(code == Some(1) && output.contains(refused), "{code:?}\n{output}");
    assert_same_weights(LocalRun::start(folder, "interrupted"));
}

#[test]
fn a_run_resumes_after_all_processes_are_killed_with_the_same_weights() {
    let folder = &baseline().folder;
    let local = LocalRun::start(folder, "killed-whole");
    local.wait_for_steps("practise", 7);
    local.kill_all();
    assert_same_weights(LocalRun::start(folder, "killed-whole"));
}

/// Kills during process start, before PR_SET_PDEATHSIG takes effect.
#[test]
fn a_run_killed_during_start_leaves_no_processes() {
    for process in ["rljob-coordinator", "rljob-engine", "rljob-supervisor"] {
        let local = practise("killed-at-start", &[], &[]).local;
        wait_until(process, LIMIT, || Ok(local.find(process, "").is_some())).unwrap();
        local.kill_all();
    }
}

#[test]
fn a_corrupted_checkpoint_is_rejected_and_the_previous_one_is_used() {
    let folder = &baseline().folder;
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
    let line = log
        .lines()
        .find(|line| line.contains("rejected checkpoint"))
        .unwrap_or_else(|| panic!("the log does not mention the checkpoint:\n{log}"));
    let start = format!(
        "rejected checkpoint step-{newest}.attempt-0: `{}` was altered: its SHA-256 is ",
        shard.display()
    );
    assert!(
        line.contains(&start) && line.ends_with(&format!("; step-{before}.attempt-0 is used")),
        "{line}"
    );
}

#[test]
fn a_damaged_journal_fails_the_run_and_the_message_names_the_checkpoint_to_continue_from() {
    let folder = &baseline().folder;
    let local = LocalRun::start(folder, "damaged");
    local.wait_for_steps("practise", 7);
    local.signal(Signal::INT);
    assert_eq!(local.end().0, Some(INTERRUPTED));
    let run = folder.join("damaged/default/practise");
    let journal = fs::canonicalize(run.join(JOURNAL_FILE)).unwrap();
    let mut bytes = fs::read(&journal).unwrap();
    bytes[4096..].fill(0xff);
    fs::write(&journal, bytes).unwrap();
    let checkpoints = fs::read_dir(run.join("checkpoints")).unwrap();
    let newest = checkpoints.filter_map(|entry| step_of(&entry.unwrap().path())).max().unwrap();
    let checkpoint = format!("damaged/default/practise/checkpoints/step-{newest}.attempt-0");

    let (code, output) = LocalRun::start(folder, "damaged").end();
    assert_eq!(code, Some(1), "{output}");
    let named = format!("the journal {} is damaged: ", journal.display());
    let way_back = format!("restoreFrom.path: {}", folder.join(&checkpoint).display());
    assert!(output.contains(&named) && output.contains(&way_back), "{output}");

    let restore = format!("practise:spec.restoreFrom.path={checkpoint}");
    assert_same_weights(LocalRun::start_with(folder, "restored-after", &["--set", &restore]));
}

#[test]
fn a_run_restored_from_a_checkpoint_continues_after_its_step_with_the_same_weights() {
    let folder = &baseline().folder;
    let restore = "practise:spec.restoreFrom.path=\
        baseline/default/practise/checkpoints/step-10.attempt-0";
    let local = LocalRun::start_with(folder, "restored", &["--set", restore]);
    let metrics = local.runs.join("default/practise").join(METRICS_FILE);
    assert_same_weights(local);
    assert_eq!(steps(&metrics), [11, 12]);
}

#[test]
fn a_run_restored_from_a_job_keeps_using_the_checkpoint_chosen_first() {
    let practise = JOBS.split("---\n").nth(1).unwrap();
    let more = practise.replace("name: practise", "name: more").replace("steps: 12", "steps: 24");
    let folder = folder_with(&more.replace(
        "checkpoint: {everySteps: 5, keepLast: 9",
        "restoreFrom: {rljob: {name: practise}}\n  checkpoint: {everySteps: 12, keepLast: 9",
    ));
    let runs = folder.path().join("runs/default");
    fs::create_dir_all(&runs).unwrap();
    for job in ["imitate", "practise"] {
        run(Command::new("cp")
            .arg("-a")
            .arg(baseline().folder.join("baseline/default").join(job))
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

/// The steps of a metrics.jsonl, in file order.
pub(crate) fn steps(metrics: &Path) -> Vec<u64> {
    let lines = fs::read_to_string(metrics).unwrap();
    lines
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap()
        })
        .collect()
}

/// The step of a checkpoint folder.
fn step_of(folder: &Path) -> Option<u32> {
    folder.file_name()?.to_str()?.strip_prefix("step-")?.split('.').next()?.parse().ok()
}
