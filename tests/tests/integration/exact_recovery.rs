//! Exact recovery: a deterministic run whose processes are killed at any point ends with the
//! weights, prompts and samples of the baseline run, bit for bit. Runs with asynchronous rollouts
//! are tested in `async_rollouts`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rljob_crds::dataflow::LearnerCall;
use rljob_crds::names::{EVALUATIONS_FILE, EXPORT_DIR, METRICS_FILE, SAMPLES_FILE};
use rljob_tests::process::run;
use rustix::process::Signal;
use serde_json::Value;

use crate::journal::query;
use crate::local_run::{INTERRUPTED, LocalRun, assert_same_weights, baseline, weights};

mod curriculum;
mod groups;
mod hybrid;
mod kills;
mod objectives;
mod programs;
mod read_back;
mod refills;
mod reward_engines;
mod separate_evaluation;
mod teacher;

pub(crate) use kills::{PausedProcess, RunUnderFaults, Victim};

/// Seed of random kills.
const SEED: u64 = 4;
/// More restarts than any test needs.
const RESTARTS: &str = "practise:spec.failurePolicy.maxRestarts=50";

/// Starts the second job, `practise`, from a copy of the baseline run's first job.
pub(crate) fn practise(runs: &str, sets: &[&str], more: &[&str]) -> RunUnderFaults {
    let folder = &baseline().folder;
    let jobs = folder.join(runs).join("default");
    fs::create_dir_all(&jobs).unwrap();
    run(Command::new("cp").arg("-a").arg(folder.join("baseline/default/imitate")).arg(&jobs))
        .unwrap();
    let sets = [RESTARTS].iter().chain(sets).flat_map(|set| ["--set", *set]);
    RunUnderFaults::new(
        LocalRun::start_with(folder, runs, &sets.chain(more.iter().copied()).collect::<Vec<_>>()),
        "practise",
    )
}

impl RunUnderFaults {
    /// Kills a learner when the newest log line of its rank contains `text`.
    fn kill_learner_at_log_line(&mut self, rank: u32, text: &str) {
        let logged = |traces: &kills::Traces| traces.rank_logged(rank, text);
        self.kill_when(Victim::Learner(rank), logged, |_, dead| logged(dead));
    }

    /// Kills rank 0, which commits checkpoints and published weights, while one of them is
    /// incomplete.
    fn kill_learner_during_write(&mut self) {
        let before = self.traces().unfinished().clone();
        let new = |traces: &kills::Traces| {
            traces.unfinished().difference(&before).cloned().collect::<Vec<PathBuf>>()
        };
        self.kill_when(
            Victim::Learner(0),
            |traces| !new(traces).is_empty(),
            |at_kill, dead| new(at_kill).iter().any(|folder| dead.unfinished().contains(folder)),
        );
    }

    fn kill_coordinator_during_update(&mut self) {
        self.kill_coordinator_when(kills::Traces::updating);
    }

    /// Kills the coordinator while it samples a turn after the first.
    pub(crate) fn kill_coordinator_in_a_turn(&mut self) {
        self.kill_coordinator_when(kills::Traces::sampling_turn);
    }

    fn kill_engine_during_update(&mut self) {
        self.kill_when(Victim::Engine, kills::Traces::updating, |at_kill, dead| {
            dead.failed_updates() > at_kill.failed_updates()
        });
    }
}

/// Asserts that metrics, evaluations and batches equal those of the baseline run.
fn assert_same_records(directory: &Path) {
    let expected = baseline().folder.join("baseline/default/practise");
    for file in [METRICS_FILE, EVALUATIONS_FILE, SAMPLES_FILE] {
        assert_eq!(
            untimed_lines(&directory.join(file)),
            untimed_lines(&expected.join(file)),
            "{file}"
        );
    }
    for sql in ["SELECT * FROM batches ORDER BY step", SAMPLES] {
        assert!(
            query(directory, sql) == query(&expected, sql),
            "{sql}: the rows differ from those of the baseline run"
        );
    }
}

/// Trained samples. Versions contain the attempt and are not compared.
const SAMPLES: &str = "SELECT step, position, sample_index, data_row, reward, \
    finish_reason, sampling, hex(tokens), hex(sampler_logprobs) \
    FROM samples WHERE step IS NOT NULL ORDER BY position, sample_index";

/// Two runs have the same samples in their journals and the same exported weights.
pub(crate) fn assert_same_result(found: &Path, expected: &Path) {
    assert!(
        query(found, SAMPLES) == query(expected, SAMPLES),
        "the samples differ from those of the run without kills"
    );
    assert!(
        weights(&found.join(EXPORT_DIR)) == weights(&expected.join(EXPORT_DIR)),
        "the weights differ from those of the run without kills"
    );
}

/// The lines of a JSONL file without fields that depend on time or on the attempt.
pub(crate) fn untimed_lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let untimed = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        for field in [
            "attempt",
            "seconds",
            "rolloutSeconds",
            "trainSeconds",
            "waitSeconds",
            "syncSeconds",
            "syncStageSeconds",
            "syncJoinSeconds",
            "syncPauseSeconds",
            "syncTransferSeconds",
            "syncResumeSeconds",
            "tokensPerSecond",
        ]
        .into_iter()
        .chain(LearnerCall::ALL.map(LearnerCall::seconds))
        {
            value.as_object_mut().unwrap().remove(field);
        }
        value
    };
    text.lines().map(untimed).collect()
}

/// Runs the job without kills, and with a kill of each victim after its step; both have the same
/// result and metrics. Returns the directories of both runs, and the lines of metrics.
fn with_and_without_kills(
    runs: &str,
    sets: &[&str],
    kills: &[(usize, Victim)],
) -> ([PathBuf; 2], Vec<Value>) {
    let directories =
        [(runs.to_owned(), &[][..]), (format!("{runs}-killed"), kills)].map(|(runs, kills)| {
            let mut run = practise(&runs, sets, &[]);
            for (step, victim) in kills {
                run.wait_for_steps(*step);
                run.kill_after_log_lines(*victim, 5);
            }
            let directory = run.local.runs.join("default/practise");
            let (code, output) = run.local.end();
            assert_eq!(code, Some(0), "{output}");
            directory
        });
    let [expected, found] = &directories;
    assert_same_result(found, expected);
    let [steps, expected] = [found, expected].map(|run| untimed_lines(&run.join(METRICS_FILE)));
    assert_eq!(steps, expected);
    (directories, steps)
}

pub(crate) fn assert_same(run: RunUnderFaults) {
    let directory = run.local.runs.join("default/practise");
    assert_same_weights(run.local);
    assert_same_records(&directory);
}

#[test]
fn kills_during_backward_checkpoint_and_broadcast_do_not_change_the_result() {
    let mut run = practise("run", &[], &[]);
    run.kill_learner_at_log_line(1, "backward");
    run.wait_for_steps(2);
    run.kill_engine_during_update();
    run.kill_learner_during_write();
    run.wait_for_steps(6);
    run.kill_learner_at_log_line(0, "backward");
    run.kill_coordinator_during_update();
    run.kill_learner_at_log_line(1, "sending the weights");
    assert_same(run);
}

#[test]
fn stopped_processes_are_replaced_and_do_not_change_the_result() {
    // With two engines, the run would finish before the stopped one is replaced.
    let mut run = practise("stopped", &["practise:spec.inference.replicas=1"], &[]);
    run.wait_for_steps(2);
    // Without its supervisor the run continues and would finish before the replacement; a stopped
    // engine blocks it.
    for victims in
        [&[Victim::Learner(1)][..], &[Victim::Coordinator], &[Victim::Engine, Victim::Supervisor]]
    {
        run.pause_until_replaced(victims);
    }
    let directory = run.local.runs.join("default/practise");
    assert_same(run);
    let failures = "SELECT DISTINCT json_extract(detail, '$.restarts'), json_extract(detail, \
        '$.lastFailure.reason') FROM events WHERE kind = 'RunChanged'";
    assert_eq!(query(&directory, failures), "0|None\n1|LearnerHung");
}

#[test]
fn kills_during_a_disk_weight_sync_do_not_change_the_result() {
    let mut run = practise("run-disk", &["practise:spec.weightSync.method=Disk"], &[]);
    run.kill_learner_during_write();
    run.wait_for_steps(3);
    run.kill_engine_during_update();
    run.wait_for_steps(6);
    run.kill_coordinator_during_update();
    run.kill_learner_at_log_line(0, "update");
    assert_same(run);
}

#[test]
fn random_kills_do_not_change_the_result() {
    let mut run = practise("run-at-random", &[], &[]);
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    for victim in [
        Victim::Coordinator,
        Victim::Engine,
        Victim::Learner(0),
        Victim::Coordinator,
        Victim::Engine,
        Victim::Learner(1),
    ] {
        run.kill_after_log_lines(victim, random.random_range(5..60));
    }
    assert_same(run);
}

#[test]
fn sigterm_of_any_process_does_not_change_the_result() {
    let mut run = practise("terminated", &[], &[]).with(Signal::TERM);
    // The engine is last: without it the run continues and may finish before the next kill.
    for victim in [Victim::Learner(1), Victim::Coordinator, Victim::Supervisor, Victim::Engine] {
        run.kill_after_log_lines(victim, 10);
    }
    assert_same(run);
}

#[test]
fn a_terminating_trainer_checkpoints_its_last_step_and_counts_no_restart() {
    let mut run = practise("terminating", &["practise:spec.checkpoint.everySteps=1000"], &[])
        .with(Signal::TERM);
    run.wait_for_steps(3);
    run.kill_after_log_lines(Victim::Supervisor, 1);
    let directory = run.local.runs.join("default/practise");
    assert_same_weights(run.local);
    let counted = "SELECT max(json_extract(detail, '$.restarts')), max(json_extract(detail, \
        '$.attempt')) FROM events WHERE kind = 'RunChanged'";
    assert_eq!(query(&directory, counted), "0|1");
    assert_eq!(query(&directory, "SELECT count(*) FROM checkpoints WHERE step < 12"), "1");
}

#[test]
fn a_terminated_run_prints_the_resume_command_and_does_not_change_the_result() {
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let start = || practise("terminated-whole", &[], &[]);
    for lines in [1, random.random_range(5..200)] {
        let mut run = start();
        run.wait_for_log_lines(lines);
        run.local.signal(Signal::TERM);
        let (code, output) = run.local.end();
        assert_eq!(code, Some(INTERRUPTED), "{output}");
        assert!(output.contains("to resume:\n  rljob run -f jobs.yaml"), "{output}");
    }
    assert_same(start());
}
