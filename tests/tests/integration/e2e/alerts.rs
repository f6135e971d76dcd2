//! Alerts of a job on nodes, each fired by a fault: no node for a pod, a full disk, a spec that is
//! invalid, a reward that hangs and then is down, a lost pod, a failed run. Alerts end with their
//! faults.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use jiff::Timestamp;
use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Namespace};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::monitors::{Monitored, SHARED_LIMIT};
use super::{LIMIT, NODES, Run, cluster};
use crate::alerts::short_rules;

/// Age of a checkpoint from which it is too old, in place of four hours.
const TOO_OLD_SECONDS: i64 = 30;
/// Restarts of learners within an hour that fire an alert.
const LOOP: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Score,
    /// No response until the answer changes.
    Nothing,
    Unavailable,
}

/// A server of rewards, stopped on drop.
struct Verifier {
    address: SocketAddr,
    answer: watch::Sender<Answer>,
    _runtime: Runtime,
}

impl Verifier {
    fn start(listener: TcpListener) -> Self {
        let (answer, receiver) = watch::channel(Answer::Score);
        let address = listener.local_addr().unwrap();
        let runtime = Runtime::new().unwrap();
        listener.set_nonblocking(true).unwrap();
        let routes = Router::new().route("/score", routing::post(score)).with_state(receiver);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, routes).await.unwrap();
        });
        Self { address, answer, _runtime: runtime }
    }
}

async fn score(State(mut answer): State<watch::Receiver<Answer>>) -> (StatusCode, Json<Value>) {
    let answers = answer.wait_for(|it| *it != Answer::Nothing).await;
    match answers.map_or(Answer::Unavailable, |it| *it) {
        Answer::Score => (StatusCode::OK, Json(json!({"reward": 0.5}))),
        _ => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({}))),
    }
}

/// Fills a file system. Returns the file to remove.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let error = io::copy(&mut io::repeat(0), &mut File::create(&path).unwrap()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    path
}

/// Sets a label of all nodes, or removes it (`NAME-`).
fn label_nodes(label: &str) {
    cluster().kubectl().run(&["label", "nodes", "--all", "--overwrite", label]).unwrap();
}

/// The job and what its test breaks.
struct Faults<'a> {
    monitored: Monitored<'a>,
    run: &'a Run<'a>,
    verifier: &'a Verifier,
    disk: &'a Path,
}

impl Faults<'_> {
    fn wait_for_end(&self, alert: &str, patch: &Value) {
        self.monitored.wait_for_alert(alert, patch, false);
        self.run.log(&format!("{alert} ended"));
    }

    /// The trainer's pod is pending until a node has the label that it needs. The alert waits for
    /// the start of Prometheus.
    fn a_pending_pod(&self) {
        self.monitored.wait_for_alert("RLJobNotStarting", &json!({}), true);
        self.run.log("RLJobNotStarting");
    }

    /// The disk is full when the learners get a node: the coordinator cannot record their attempt.
    fn storage_that_takes_no_writes(&self) {
        let none = json!({});
        let filler = fill(self.disk);
        label_nodes("example.com/trains=yes");
        let (reason, alert) = ("StorageUnavailable", "RLJobStorageUnavailable");
        self.monitored.reason_fires_its_alert(reason, alert, &none);
        fs::remove_file(filler).unwrap();
        self.wait_for_end(alert, &none);
        self.run.wait_for_steps(3);
        self.wait_for_end("RLJobNotStarting", &none);
    }

    /// A spec that a person must change.
    fn an_invalid_job(&self) {
        let invalid = self.run.manifest.replace("name: alarms", "name: invalid");
        let invalid = invalid.replace("steps: 100000", "steps: 100000, minibatches: 5");
        self.run.namespace.kubectl.apply(&invalid).unwrap();
        let patch = json!({"name": "invalid", "reason": "InvalidSpec"});
        self.monitored.alert_fires_in_time("RLJobStalled", &patch, Instant::now());
        self.run.namespace.kubectl.run(&["delete", "rljob/invalid"]).unwrap();
        self.wait_for_end("RLJobStalled", &patch);
    }

    /// Without rewards no step ends, and engines get no requests.
    fn a_reward_that_hangs_and_is_down(&self) {
        let (none, idle) = (json!({}), json!({"severity": "info"}));
        self.run.wait_for_progress();
        self.verifier.answer.send(Answer::Nothing).unwrap();
        let start = Instant::now();
        self.run.log("the reward hangs");
        self.monitored.reason_fires_its_alert("NoProgress", "RLJobNoProgress", &none);
        self.monitored.wait_for_alert("RLJobEnginesIdle", &idle, true);
        // Ten seconds are those of the rule.
        println!("alerts: RLJobEnginesIdle after {:.1} s", start.elapsed().as_secs_f64());
        self.verifier.answer.send(Answer::Unavailable).unwrap();
        self.monitored.reason_fires_its_alert("RewardUnavailable", "RLJobRewardUnavailable", &none);
        self.verifier.answer.send(Answer::Score).unwrap();
        self.wait_for_end("RLJobRewardUnavailable", &none);
        self.run.wait_for_progress();
        self.wait_for_end("RLJobNoProgress", &none);
        self.wait_for_end("RLJobEnginesIdle", &idle);
    }

    /// Learners fail at their checkpoints until there is space.
    fn a_full_disk(&self) {
        let none = json!({});
        let filler = fill(self.disk);
        let attempt = || self.monitored.job()["status"]["attempt"].as_u64();
        wait_until("restarts", LIMIT, || Ok(attempt() >= Some(LOOP))).unwrap();
        self.monitored.alert_fires_in_time("RLJobRestartLoop", &none, Instant::now());
        self.monitored.wait_for_alert("RLJobCheckpointTooOld", &none, true);
        let checkpoint = self.monitored.job()["status"]["checkpoint"]["time"].take();
        let time: Timestamp = checkpoint.as_str().unwrap().parse().unwrap();
        let age = Timestamp::now().duration_since(time).as_secs_f64();
        println!("alerts: RLJobCheckpointTooOld at an age of {age:.1} s");
        fs::remove_file(filler).unwrap();
        self.wait_for_end("RLJobCheckpointTooOld", &none);
    }

    /// The replacement of the lost pod finds no node until the nodes have their label again.
    fn a_lost_trainer(&self) {
        let restarting = json!({"reason": "Restarting"});
        label_nodes("example.com/trains-");
        self.run.lose_pod("trainer");
        self.monitored.wait_for_alert("RLJobInterrupted", &restarting, true);
        self.run.log("RLJobInterrupted");
        label_nodes("example.com/trains=yes");
        self.run.wait_for_progress();
        self.wait_for_end("RLJobInterrupted", &restarting);
    }

    /// A killed learner fails the job by a rule.
    fn the_end(&self) {
        let rules = json!([{"action": "FailJob", "onReasons": ["LearnerKilled"]}]);
        let patch = json!({"spec": {"failurePolicy": {"rules": rules}}}).to_string();
        let patch = ["patch", "rljob/alarms", "--type=merge", "--patch", &patch];
        self.run.namespace.kubectl.run(&patch).unwrap();
        self.run.wait_for_progress();
        self.run.kill_learner();
        self.monitored.wait_for_reason("Succeeded", "Failed");
        let patch = json!({"reason": "Failed"});
        self.monitored.alert_fires_in_time("RLJobFailed", &patch, Instant::now());
        self.wait_for_end("RLJobRestartLoop", &json!({}));
    }
}

#[test]
#[ignore = "long: make thorough"]
fn faults_of_a_job_and_what_it_needs_fire_their_alerts() {
    let _nodes = NODES.read();
    let cluster: &Cluster = cluster();
    let namespace = Namespace::create(cluster, "alarms").unwrap();
    let folder = cluster.shared_folder("runs").unwrap().join(&namespace.name);
    fs::create_dir_all(&folder).unwrap();
    let disk = cluster.mount_memory(&folder, "200m").unwrap();
    let verifier = Verifier::start(cluster.listen((cluster.address(), 0).into()).unwrap());
    let address = verifier.address.to_string();
    let manifest = include_str!("alerts.yaml").replace("VERIFIER", &address);
    let mut run = Run::start(cluster, &namespace, &manifest, "alarms");
    run.directory = disk.join("alarms");
    let rules = short_rules(&[("4 * 3600", &TOO_OLD_SECONDS.to_string())]);
    let monitored = Monitored::start(cluster, &run, &rules, SHARED_LIMIT);
    let faults = Faults { monitored, run: &run, verifier: &verifier, disk: &disk };
    faults.a_pending_pod();
    faults.storage_that_takes_no_writes();
    faults.an_invalid_job();
    faults.a_reward_that_hangs_and_is_down();
    faults.a_full_disk();
    faults.a_lost_trainer();
    faults.the_end();
    namespace.kubectl.run(&["delete", "rljob/alarms", "--wait"]).unwrap();
}
