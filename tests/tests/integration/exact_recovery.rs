//! Exact recovery: whatever is killed, wherever it was, and however often, a deterministic run ends
//! with the bits of the one that nobody disturbed, and with the same prompts and samples in the
//! same batches. (A run that is not deterministic and samples ahead: `sampling_ahead`.)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE, SAMPLES_FILE};
use rljob_tests::process::run;
use rustix::process::Signal;
use serde_json::Value;

use crate::journal::query;
use crate::local_run::{INTERRUPTED, LocalRun, assert_same_weights, undisturbed};

mod strikes;

pub(crate) use strikes::{Frozen, Struck, Victim};

/// Of the kills at random.
const SEED: u64 = 4;
/// More than any of these tests needs.
const RESTARTS: &str = "practise:spec.failurePolicy.maxRestarts=50";

/// The second of the jobs, `practise`; the first one, which it starts from, is that of the
/// undisturbed run.
pub(crate) fn practise(runs: &str, sets: &[&str], more: &[&str]) -> Struck {
    let folder = undisturbed().folder.path();
    let jobs = folder.join(runs).join("default");
    fs::create_dir_all(&jobs).unwrap();
    run(Command::new("cp").arg("-a").arg(folder.join("undisturbed/default/imitate")).arg(&jobs))
        .unwrap();
    let sets = [RESTARTS].iter().chain(sets).flat_map(|set| ["--set", *set]);
    Struck::new(
        LocalRun::start_with(folder, runs, &sets.chain(more.iter().copied()).collect::<Vec<_>>()),
        "practise",
    )
}

impl Struck {
    /// Where the rank's log says these words last.
    fn learner_that_says(&mut self, rank: u32, words: &str) {
        let says = |traces: &strikes::Traces| traces.rank_says(rank, words);
        self.strike(Victim::Learner(rank), says, |_, dead| says(dead));
    }

    /// Rank 0, which completes what all ranks write, while a checkpoint or a folder of weights is
    /// not whole; it never will be.
    fn learner_that_writes(&mut self) {
        let before = self.traces().unfinished().clone();
        let new = |traces: &strikes::Traces| {
            traces.unfinished().difference(&before).cloned().collect::<Vec<PathBuf>>()
        };
        self.strike(
            Victim::Learner(0),
            |traces| !new(traces).is_empty(),
            |at_kill, dead| new(at_kill).iter().any(|folder| dead.unfinished().contains(folder)),
        );
    }

    fn coordinator_in_an_update(&mut self) {
        self.strike(Victim::Coordinator, strikes::Traces::updating, |_, dead| dead.updating());
    }

    fn engine_in_an_update(&mut self) {
        self.strike(Victim::Engine, strikes::Traces::updating, |at_kill, dead| {
            dead.failed_updates() > at_kill.failed_updates()
        });
    }
}

/// Every step and every evaluation once, with the same numbers; every batch of the same samples.
fn assert_same_records(directory: &Path) {
    let expected = undisturbed().folder.path().join("undisturbed/default/practise");
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
            "{sql}: differs from that of the undisturbed run"
        );
    }
}

/// What is trained on. Versions name the attempt that published them, and are not compared.
const SAMPLES: &str =
    "SELECT step, position, sample_index, data_row, reward, finish_reason, sampling, hex(prompt_tokens), hex(completion_tokens), hex(sampler_logprobs)
    FROM samples WHERE step IS NOT NULL ORDER BY position, sample_index";

/// The lines of a JSONL file without what depends on time and on who computed them.
fn untimed_lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let untimed = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        for field in [
            "attempt",
            "seconds",
            "rolloutSeconds",
            "trainSeconds",
            "syncSeconds",
            "tokensPerSecond",
        ] {
            value.as_object_mut().unwrap().remove(field);
        }
        value
    };
    text.lines().map(untimed).collect()
}

pub(crate) fn assert_same(struck: Struck) {
    let directory = struck.local.runs.join("default/practise");
    assert_same_weights(struck.local);
    assert_same_records(&directory);
}

#[test]
fn killed_in_backward_in_a_checkpoint_and_in_a_broadcast_a_run_ends_with_the_same_bits_and_batches()
{
    let mut struck = practise("struck", &[], &[]);
    struck.learner_that_says(1, "backward");
    struck.wait_for_steps(2);
    struck.engine_in_an_update();
    struck.learner_that_writes();
    struck.wait_for_steps(6);
    struck.learner_that_says(0, "backward");
    struck.coordinator_in_an_update();
    struck.learner_that_says(1, "sending the weights");
    assert_same(struck);
}

#[test]
fn whoever_is_stopped_is_found_and_killed_and_the_run_ends_with_the_same_bits_and_batches() {
    // Of one engine, since the run would end on the other before the stopped one is replaced.
    let mut struck = practise("stopped", &["practise:spec.inference.replicas=1"], &[]);
    struck.wait_for_steps(2);
    // A run goes on without its supervisor, and would be through before it is replaced: it stands
    // still with its engine.
    for victims in
        [&[Victim::Learner(1)][..], &[Victim::Coordinator], &[Victim::Engine, Victim::Supervisor]]
    {
        struck.stop(victims);
    }
    let directory = struck.local.runs.join("default/practise");
    assert_same(struck);
    let failures = "SELECT DISTINCT json_extract(detail, '$.restarts'), json_extract(detail, '$.lastFailure.reason') FROM events WHERE kind = 'RunChanged'";
    assert_eq!(query(&directory, failures), "0|None\n1|LearnerHung");
}

#[test]
fn killed_in_a_sync_through_the_disk_a_run_ends_with_the_same_bits_and_batches() {
    let mut struck = practise("struck-disk", &["practise:spec.weightSync.method=Disk"], &[]);
    struck.learner_that_writes();
    struck.wait_for_steps(3);
    struck.engine_in_an_update();
    struck.wait_for_steps(6);
    struck.coordinator_in_an_update();
    struck.learner_that_says(0, "update");
    assert_same(struck);
}

#[test]
fn killed_at_random_again_and_again_a_run_ends_with_the_same_bits_and_batches() {
    let mut struck = practise("struck-at-random", &[], &[]);
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    for victim in [
        Victim::Coordinator,
        Victim::Engine,
        Victim::Learner(0),
        Victim::Coordinator,
        Victim::Engine,
        Victim::Learner(1),
    ] {
        struck.anywhere(victim, random.random_range(5..60));
    }
    assert_same(struck);
}

#[test]
fn each_process_that_is_told_to_end_ends_in_order_and_the_run_ends_with_the_same_bits_and_batches()
{
    let mut struck = practise("told-to-end", &[], &[]).with(Signal::TERM);
    // The engine last: without it the run goes on, and may be through before the next one's moment.
    for victim in [Victim::Learner(1), Victim::Coordinator, Victim::Supervisor, Victim::Engine] {
        struck.anywhere(victim, 10);
    }
    assert_same(struck);
}

#[test]
fn a_trainer_that_is_told_to_end_leaves_a_checkpoint_of_its_last_step_and_nothing_is_counted() {
    let mut struck =
        practise("leaves", &["practise:spec.checkpoint.everySteps=1000"], &[]).with(Signal::TERM);
    struck.wait_for_steps(3);
    struck.anywhere(Victim::Supervisor, 1);
    let directory = struck.local.runs.join("default/practise");
    assert_same_weights(struck.local);
    let counted = "SELECT max(json_extract(detail, '$.restarts')), max(json_extract(detail, '$.attempt')) FROM events WHERE kind = 'RunChanged'";
    assert_eq!(query(&directory, counted), "0|1");
    assert_eq!(query(&directory, "SELECT count(*) FROM checkpoints WHERE step < 12"), "1");
}

#[test]
fn a_run_that_is_told_to_end_says_how_to_go_on_at_any_moment_and_ends_with_the_same_bits_and_batches()
 {
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let goes_on = || practise("told-to-end-whole", &[], &[]);
    for lines in [1, random.random_range(5..200)] {
        let mut struck = goes_on();
        struck.await_lines(lines);
        struck.local.signal(Signal::TERM);
        let (code, output) = struck.local.end();
        assert_eq!(code, Some(INTERRUPTED), "{output}");
        assert!(output.contains("To go on:\n  rljob run -f jobs.yaml"), "{output}");
    }
    assert_same(goes_on());
}
