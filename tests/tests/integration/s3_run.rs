//! Runs stored in a bucket of a real S3 server end with the baseline run's weights after loss of
//! their disks, corruption of checkpoints and server outages.

use std::fs;
use std::path::PathBuf;

use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE, RUN_CONFIG_FILE};
use rljob_protocol::status::{EvaluationMetrics, StepMetrics};
use rljob_tests::S3;
use rljob_tests::process::wait_until;
use rljob_tests::s3::BUCKET;
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::local_run::{INTERRUPTED, JOBS, LIMIT, LocalRun, baseline, folder_with, steps};

/// Steps of the job.
const STEPS: u32 = 12;

/// The job `practise`, started from the baseline's export, with its own bucket.
struct InBucket {
    s3: S3,
    folder: TempDir,
    storage: String,
    model: String,
}

impl InBucket {
    fn new() -> Self {
        let s3 = S3::start().unwrap();
        let folder = folder_with(JOBS.split("---\n").nth(1).unwrap());
        let export = baseline().folder.join("baseline/default/imitate/export");
        Self {
            storage: format!(
                "spec.storage={{s3: {{bucket: {BUCKET}, prefix: team, endpoint: '{}'}}}}",
                s3.endpoint()
            ),
            model: format!("spec.model={{path: {}}}", export.display()),
            folder,
            s3,
        }
    }

    /// Starts the job with `runs` as scratch folder.
    fn start(&self, runs: &str, sets: &[&str]) -> LocalRun {
        let sets = [self.storage.as_str(), &self.model]
            .into_iter()
            .chain(sets.iter().copied())
            .flat_map(|set| ["--set", set]);
        let arguments: Vec<&str> = ["--use-bucket"].into_iter().chain(sets).collect();
        LocalRun::start_in(self.folder.path(), runs, &arguments, &S3::environment())
    }

    fn scratch(&self, runs: &str) -> PathBuf {
        self.folder.path().join(runs).join("default/practise")
    }

    /// Keys of the run's objects in a folder, relative to the folder.
    fn keys(&self, folder: &str) -> Vec<String> {
        let prefix = format!("team/default/practise/{folder}/");
        self.s3.keys(&prefix).into_iter().map(|key| key[prefix.len()..].to_owned()).collect()
    }

    fn object(&self, name: &str) -> PathBuf {
        self.s3.objects().join("team/default/practise").join(name)
    }

    fn lines<T: DeserializeOwned>(&self, name: &str) -> Vec<T> {
        let text = fs::read_to_string(self.object(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Names of complete checkpoints.
    fn checkpoints(&self) -> Vec<String> {
        self.keys("checkpoints")
            .iter()
            .filter_map(|key| key.strip_suffix("/manifest.json"))
            .map(ToOwned::to_owned)
            .collect()
    }

    /// Waits for a checkpoint, which learners write while they train on.
    fn wait_for_checkpoint(&self, name: &str) {
        let complete = || Ok(self.checkpoints().iter().any(|complete| complete == name));
        wait_until(&format!("checkpoint {name} in the bucket"), LIMIT, complete).unwrap();
    }

    /// Asserts that the run succeeds and that the bucket contains the baseline's weights and all
    /// metrics.
    fn assert_same(&self, local: LocalRun) {
        let (code, output) = local.end();
        let logs = || {
            ["one", "two"].map(|runs| {
                fs::read_to_string(self.scratch(runs).join("logs/coordinator.log"))
                    .unwrap_or_default()
            })
        };
        assert_eq!(code, Some(0), "{output}\n── logs of the coordinators\n{}", logs().join("\n"));
        assert!(self.object("export/complete.json").is_file());
        let weights = fs::read(self.object("export/model.safetensors")).unwrap();
        assert!(
            weights == baseline().artifacts.exports[1],
            "the weights differ from those of the baseline run\n{output}"
        );
        let steps: Vec<StepMetrics> = self.lines(METRICS_FILE);
        assert_eq!(
            steps.iter().map(|metrics| metrics.step).collect::<Vec<_>>(),
            (1..=STEPS).collect::<Vec<_>>(),
            "each step is recorded once"
        );
        let evaluations: Vec<EvaluationMetrics> = self.lines(EVALUATIONS_FILE);
        assert_eq!(evaluations.iter().map(|metrics| metrics.step).collect::<Vec<_>>(), [0, 6, 12]);
    }
}

/// Deletes a machine's local state, except for the run configuration and status that the cluster
/// provides.
fn wipe(scratch: &std::path::Path) {
    for entry in fs::read_dir(scratch).unwrap().flatten() {
        let known = [RUN_CONFIG_FILE, "state.json"].iter().any(|name| entry.file_name() == *name);
        if entry.path().is_dir() {
            fs::remove_dir_all(entry.path()).unwrap();
        } else if !known {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[test]
fn a_run_resumes_from_the_bucket_alone_and_is_not_repeated_once_finished() {
    let run = InBucket::new();
    let keep = "spec.checkpoint.keepLast=1";
    let local = run.start("one", &[keep]);
    local.wait_for_steps("practise", 3);
    local.kill("rljob-coordinator");
    local.wait_for_steps("practise", 8);
    local.kill_all();
    wipe(&run.scratch("one"));
    run.assert_same(run.start("one", &[keep]));

    assert_eq!(run.checkpoints().len(), 1, "{:?}", run.checkpoints());
    let (folders, samples) = (run.keys("checkpoints"), run.keys("journal/samples"));
    assert!(folders.iter().all(|key| key.starts_with("step-12.")), "{folders:?}");
    assert_eq!(samples, Vec::<String>::new(), "no batch is newer than the last checkpoint");
    assert_eq!(run.s3.unfinished_parts(), 0);

    // Recreated on another machine: another UID and an empty disk.
    let local = run.start("two", &[keep]);
    run.assert_same(local);
    assert!(
        !log(&run, "two", "trainer-0").contains("starting learners"),
        "a finished run starts no learner"
    );
}

fn log(run: &InBucket, runs: &str, process: &str) -> String {
    fs::read_to_string(run.scratch(runs).join(format!("logs/{process}.log"))).unwrap()
}

#[test]
fn a_corrupted_checkpoint_in_the_bucket_is_rejected_and_the_previous_one_is_used() {
    let run = InBucket::new();
    let local = run.start("one", &[]);
    local.wait_for_steps("practise", 7);
    run.wait_for_checkpoint("step-5.attempt-0");
    local.signal(Signal::INT);
    assert_eq!(local.end().0, Some(INTERRUPTED));
    let checkpoints = run.checkpoints();
    let [newest, before] =
        [checkpoints.iter().rfind(|name| !name.starts_with("step-5.")), checkpoints.first()]
            .map(|name| name.unwrap().clone());
    assert_eq!(before, "step-5.attempt-0");
    let shard = format!("checkpoints/{newest}/rank-1-of-2.safetensors");
    let mut bytes = fs::read(run.object(&shard)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(run.object(&shard), bytes).unwrap();

    run.assert_same(run.start("two", &[]));
    let log = log(&run, "two", "coordinator");
    let line = log
        .lines()
        .find(|line| line.contains("rejected checkpoint"))
        .unwrap_or_else(|| panic!("the log does not mention the checkpoint:\n{log}"));
    let start = format!(
        "rejected checkpoint {newest}: `s3://{BUCKET}/team/default/practise/{shard}` was altered: \
            its SHA-256 is "
    );
    assert!(line.contains(&start) && line.ends_with("; step-5.attempt-0 is used"), "{line}");
}

/// A job with another name has another prefix.
#[test]
fn another_job_restores_a_checkpoint_from_the_bucket_with_another_world_size() {
    let run = InBucket::new();
    let local = run.start("one", &[]);
    local.wait_for_steps("practise", 6);
    run.wait_for_checkpoint("step-5.attempt-0");
    local.signal(Signal::INT);
    assert_eq!(local.end().0, Some(INTERRUPTED));
    let path = format!("s3://{BUCKET}/team/default/practise/checkpoints/step-5.attempt-0");
    let newest: u64 = run
        .checkpoints()
        .iter()
        .map(|name| name["step-".len()..].split('.').next().unwrap().parse().unwrap())
        .max()
        .unwrap();
    for (name, source, from, first) in
        [("more", "s3.uri", path.as_str(), 6), ("others", "rljob.name", "practise", newest + 1)]
    {
        let (name, restore) =
            (format!("metadata.name={name}"), format!("spec.restoreFrom.{source}={from}"));
        let (code, output) =
            run.start(&name, &[&name, "spec.trainer.processesPerReplica=1", &restore]).end();
        assert_eq!(code, Some(0), "{output}");
        let metrics = run
            .s3
            .objects()
            .join("team/default")
            .join(&name["metadata.name=".len()..])
            .join(METRICS_FILE);
        assert_eq!(steps(&metrics), (first..=12).collect::<Vec<_>>(), "{from}");
    }
    let more = run.s3.objects().join("team/default/more");
    let manifest: Value = serde_json::from_slice(
        &fs::read(more.join("checkpoints/step-12.attempt-0/manifest.json")).unwrap(),
    )
    .unwrap();
    assert_eq!(manifest["worldSize"], 1);
}

#[test]
fn a_server_outage_pauses_the_run_without_losing_progress() {
    let mut run = InBucket::new();
    let local = run.start("one", &[]);
    for steps in [2, 5, 9] {
        local.wait_for_steps("practise", steps);
        let log = run.scratch("one").join("logs/coordinator.log");
        let noticed = || {
            fs::read_to_string(&log).unwrap().matches("the bucket's server is unavailable").count()
        };
        let before = noticed();
        run.s3.kill().unwrap();
        wait_until("the coordinator to report the outage", LIMIT, || Ok(noticed() > before))
            .unwrap();
        run.s3.restart().unwrap();
    }
    run.assert_same(local);
    let state: Value =
        serde_json::from_slice(&fs::read(run.scratch("one").join("state.json")).unwrap()).unwrap();
    assert_eq!(state["epoch"], 1, "no process was restarted");
}
