//! A run stored in a bucket, on two nodes: missing credentials, server outage, pods lost with their
//! disks, corrupted checkpoint and journal, and a recreated RLJob.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rljob_crds::names::{EXPORT_COMPLETE_FILE, EXPORT_DIR};
use rljob_tests::link::Link;
use rljob_tests::process::wait_until;
use rljob_tests::s3::{ACCESS_KEY, SECRET_KEY};
use rljob_tests::{Namespace, S3};
use serde_json::{Value, json};

use super::{LIMIT, NODES, Run, cluster};

/// Steps of the job in bucket.yaml.
const STEPS: u64 = 40;

/// A run stored under a prefix of a bucket.
struct BucketRun<'a> {
    run: Run<'a>,
    s3: S3,
}

impl BucketRun<'_> {
    /// Complete checkpoints by step.
    fn checkpoints(&self) -> Vec<(u64, PathBuf)> {
        let whole = files(&self.run.directory.join("checkpoints"))
            .filter(|folder| folder.join("manifest.json").is_file());
        let mut found: Vec<_> = whole
            .filter_map(|folder| Some((step(folder.file_name()?.to_str()?)?, folder)))
            .collect();
        found.sort();
        found
    }

    fn newest(&self) -> u64 {
        self.checkpoints().last().map_or(0, |(step, _)| *step)
    }

    /// Waits for a checkpoint of a later step.
    fn wait_for_progress(&self) {
        let before = self.newest();
        wait_until(&format!("a checkpoint after step {before}"), LIMIT, || {
            Ok(self.newest() > before)
        })
        .unwrap();
        self.run.log(&format!("the checkpoint of step {}", self.newest()));
    }

    /// Waits until a pod's log contains `text`.
    fn wait_for_log(&self, role: &str, text: &str) {
        let pod = format!("{}-{role}-0", self.run.job);
        let says = || Ok(self.run.namespace.kubectl.run(&["logs", &pod])?.contains(text));
        wait_until(&format!("`{text}` in the log of {pod}"), LIMIT, says).unwrap();
        self.run.log(&format!("{pod}: {text}"));
    }

    fn patch(&self, spec: &Value) {
        let (job, patch) = (format!("rljob/{}", self.run.job), json!({"spec": spec}).to_string());
        self.run
            .namespace
            .kubectl
            .run(&["patch", &job, "--type=merge", "--patch", &patch])
            .unwrap();
    }
}

/// Entries of a folder of the bucket.
fn files(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The step of a checkpoint folder `step-N.attempt-K`.
fn step(folder: &str) -> Option<u64> {
    folder.strip_prefix("step-")?.split('.').next()?.parse().ok()
}

/// Flips a bit of an object; a second call restores it.
fn flip_bit(object: &Path) {
    let mut bytes = fs::read(object).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(object, bytes).unwrap();
}

/// Creates the Secret of the job with these keys.
fn give_keys(namespace: &Namespace, keys: &Value) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bucket-keys"},
        "stringData": keys,
    });
    namespace.kubectl.apply(&secret.to_string()).unwrap();
}

/// Suspends the run and corrupts its newest checkpoint and its journal; restores the journal once
/// the coordinator has rejected it.
fn alter_while_suspended(bucket_run: &BucketRun) {
    bucket_run.patch(&json!({"suspend": true}));
    bucket_run.run.wait_for_condition("Suspended");
    let (newest, folder) = bucket_run.checkpoints().pop().unwrap();
    assert!(newest < STEPS, "the job succeeded before its checkpoint was corrupted");
    let entry = files(&bucket_run.run.directory.join("journal/log")).max().unwrap();
    flip_bit(
        &files(&folder)
            .find(|path| path.extension().is_some_and(|end| end == "safetensors"))
            .unwrap(),
    );
    flip_bit(&entry);
    bucket_run.patch(&json!({"suspend": false}));
    bucket_run.wait_for_log("coordinator", "the journal in the bucket is corrupted");
    flip_bit(&entry);
    bucket_run.wait_for_log(
        "coordinator",
        &format!("rejected checkpoint {}", folder.file_name().unwrap().display()),
    );
}

/// Recreates the job; its run in the bucket does not change.
fn recreated_job_is_still_succeeded(bucket_run: &BucketRun) {
    let export = || {
        fs::metadata(bucket_run.run.directory.join(EXPORT_DIR).join(EXPORT_COMPLETE_FILE))
            .unwrap()
            .modified()
            .unwrap()
    };
    let before = export();
    bucket_run.run.namespace.kubectl.run(&["delete", "rljob/kept", "--wait"]).unwrap();
    bucket_run.run.namespace.kubectl.apply(&bucket_run.run.manifest).unwrap();
    bucket_run.run.wait_for_condition("Succeeded");
    assert_eq!(
        (export(), bucket_run.run.steps().len() as u64),
        (before, STEPS),
        "a finished run is not repeated"
    );
}

#[test]
fn a_run_in_a_bucket_survives_the_loss_of_disks_and_a_server_outage() {
    let _nodes = NODES.read();
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "bucket").unwrap();
    let s3 = S3::start().unwrap();
    let link =
        Link::from(cluster.listen(SocketAddr::from((cluster.address(), 0))).unwrap(), s3.port())
            .unwrap();
    give_keys(&namespace, &json!({"AWS_ACCESS_KEY_ID": ACCESS_KEY}));
    let mut run = Run::start(
        cluster,
        &namespace,
        &include_str!("bucket.yaml").replace("ENDPOINT", &link.endpoint()),
        "kept",
    );
    run.directory = s3.objects().join("team").join(&namespace.name).join(run.job);
    let mut bucket_run = BucketRun { run, s3 };

    bucket_run.wait_for_log("coordinator", "has no key `AWS_SECRET_ACCESS_KEY`");
    give_keys(
        &namespace,
        &json!({"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}),
    );
    bucket_run.wait_for_progress();
    bucket_run.s3.kill().unwrap();
    bucket_run.wait_for_log("coordinator", "the bucket's server is unavailable");
    bucket_run.s3.restart().unwrap();
    bucket_run.wait_for_progress();
    let status = bucket_run.run.status();
    assert_eq!(
        (&status["epoch"], &status["restarts"]),
        (&json!(1), &json!(0)),
        "no learner and no pod was restarted: {status}"
    );
    bucket_run.run.lose_pod("coordinator");
    bucket_run.wait_for_log("coordinator", "rebuilt the journal from the bucket");
    bucket_run.run.lose_pod("trainer");
    bucket_run.wait_for_progress();
    alter_while_suspended(&bucket_run);
    bucket_run.run.wait_for_condition("Succeeded");

    let status = bucket_run.run.status();
    assert_eq!(
        (&status["restarts"], &status["progress"]["step"], &status["epoch"]),
        (&json!(0), &json!(STEPS), &json!(3)),
        "{status}"
    );
    // The coordinator uploads the JSONL files a last time when it exits.
    wait_until("the last step's line", LIMIT, || Ok(bucket_run.run.steps().len() as u64 == STEPS))
        .unwrap();
    assert_eq!(
        bucket_run.run.steps(),
        (1..=STEPS).collect::<Vec<_>>(),
        "every step is recorded once",
    );
    recreated_job_is_still_succeeded(&bucket_run);
}
