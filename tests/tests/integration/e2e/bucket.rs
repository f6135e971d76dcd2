//! A run in a bucket on two nodes: a key is missing, the server goes away, pods are lost with their
//! disks, checkpoint and journal are altered, the RLJob is made anew.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use rljob_crds::names::{EXPORT_COMPLETE_FILE, EXPORT_DIR};
use rljob_tests::link::Link;
use rljob_tests::process::wait_until;
use rljob_tests::s3::{ACCESS_KEY, SECRET_KEY};
use rljob_tests::{Namespace, S3};
use serde_json::{Value, json};

use super::{LIMIT, NODES, Run, cluster};

/// Of the job, in bucket.yaml.
const STEPS: u64 = 40;

/// A run whose directory is a prefix of a bucket.
struct Kept<'a> {
    run: Run<'a>,
    s3: S3,
}

impl Kept<'_> {
    /// Complete checkpoints, by step.
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

    /// Waits until there is a checkpoint of a later step than there is now.
    fn goes_on(&self) {
        let before = self.newest();
        wait_until(&format!("a checkpoint after step {before}"), LIMIT, || {
            Ok(self.newest() > before)
        })
        .unwrap();
        self.run.say(&format!("the checkpoint of step {}", self.newest()));
    }

    /// Waits until a pod's log says so.
    fn wait_for_words(&self, role: &str, words: &str) {
        let pod = format!("{}-{role}-0", self.run.job);
        let says = || Ok(self.run.namespace.kubectl.run(&["logs", &pod])?.contains(words));
        wait_until(&format!("`{words}` in the log of {pod}"), LIMIT, says).unwrap();
        self.run.say(&format!("{pod}: {words}"));
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

/// What is in a folder of the bucket.
fn files(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Of a checkpoint's folder, `step-N.attempt-K`.
fn step(folder: &str) -> Option<u64> {
    folder.strip_prefix("step-")?.split('.').next()?.parse().ok()
}

/// Changes a bit of an object; the second time, back.
fn alter(object: &Path) {
    let mut bytes = fs::read(object).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(object, bytes).unwrap();
}

/// The Secret that the job names, with these keys.
fn give_keys(namespace: &Namespace, keys: &Value) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bucket-keys"}, "stringData": keys});
    namespace.kubectl.apply(&secret.to_string()).unwrap();
}

/// Suspends the run and alters its newest checkpoint and its journal; the journal is mended when
/// its coordinator has refused it.
fn alter_while_suspended(kept: &Kept) {
    kept.patch(&json!({"suspend": true}));
    kept.run.wait_for_condition("Suspended");
    let (newest, folder) = kept.checkpoints().pop().unwrap();
    assert!(newest < STEPS, "the job was through before its checkpoint was altered");
    let entry = files(&kept.run.directory.join("journal/log")).max().unwrap();
    alter(
        &files(&folder)
            .find(|path| path.extension().is_some_and(|end| end == "safetensors"))
            .unwrap(),
    );
    alter(&entry);
    kept.patch(&json!({"suspend": false}));
    kept.wait_for_words("coordinator", "the journal in the bucket is torn");
    alter(&entry);
    kept.wait_for_words(
        "coordinator",
        &format!("refused checkpoint {}", folder.file_name().unwrap().display()),
    );
}

/// What is in the bucket stays as it is.
fn made_anew_it_has_succeeded(kept: &Kept) {
    let export = || {
        fs::metadata(kept.run.directory.join(EXPORT_DIR).join(EXPORT_COMPLETE_FILE))
            .unwrap()
            .modified()
            .unwrap()
    };
    let before = export();
    kept.run.namespace.kubectl.run(&["delete", "rljob/kept", "--wait"]).unwrap();
    kept.run.namespace.kubectl.apply(&kept.run.manifest).unwrap();
    kept.run.wait_for_condition("Succeeded");
    assert_eq!(
        (export(), kept.run.steps().len() as u64),
        (before, STEPS),
        "a finished run is not made again"
    );
}

#[test]
fn a_run_in_a_bucket_needs_no_disk_of_its_pods_and_outlives_its_server_being_away() {
    let _nodes = NODES.read().unwrap_or_else(PoisonError::into_inner);
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
    let mut kept = Kept { run, s3 };

    kept.wait_for_words("coordinator", "has no key `AWS_SECRET_ACCESS_KEY`");
    give_keys(
        &namespace,
        &json!({"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}),
    );
    kept.goes_on();
    kept.s3.kill().unwrap();
    kept.wait_for_words("coordinator", "the bucket's server is away");
    kept.s3.restart().unwrap();
    kept.goes_on();
    let status = kept.run.status();
    assert_eq!(
        (&status["epoch"], &status["restarts"]),
        (&json!(1), &json!(0)),
        "no learner and no pod was started again: {status}"
    );
    kept.run.lose_pod("coordinator");
    kept.wait_for_words("coordinator", "the journal was made anew from the bucket");
    kept.run.lose_pod("trainer");
    kept.goes_on();
    alter_while_suspended(&kept);
    kept.run.wait_for_condition("Succeeded");

    let status = kept.run.status();
    assert_eq!(
        (&status["restarts"], &status["progress"]["step"], &status["epoch"]),
        (&json!(0), &json!(STEPS), &json!(3)),
        "{status}"
    );
    // The coordinator copies what people read for the last time when it ends.
    wait_until("the last step's line", LIMIT, || Ok(kept.run.steps().len() as u64 == STEPS))
        .unwrap();
    assert_eq!(kept.run.steps(), (1..=STEPS).collect::<Vec<_>>(), "every step is recorded once");
    made_anew_it_has_succeeded(&kept);
}
