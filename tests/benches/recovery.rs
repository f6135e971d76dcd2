//! Time from a failure to resumed training, on two real nodes with a job of the quick start's size
//! and DNS cached for 30 s. Kills a learner, an engine and the coordinator, force-deletes a trainer
//! pod and loses a node, in turn, and waits for the next step that needs the failed component.
//!
//! ```text
//!  injection ──▶ milestones in the pods' logs ──▶ line of the next step in metrics.jsonl
//! ```
//! A checkpoint is written at every step, so that the replay is at most one step: the checkpoint
//! interval is the user's choice. Every round uses new pods because kubelet's restart backoff grows
//! with each restart of a container.

#![expect(clippy::unwrap_used, clippy::panic, reason = "benchmarks exit on errors")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::Duration;

use jiff::Timestamp;
use rljob_tests::Kubectl;
use rljob_tests::bench::{Aim, median, row};
use rljob_tests::chaos::{Engine, Testbed};
use rljob_tests::process::wait_until;
use rustix::process::{Signal, kill_process};

const YAML: &str = include_str!("recovery.yaml");
const NAMESPACE: &str = "recovery";
const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(300);

/// Failed component and the milestones of its recovery.
struct Case {
    name: &'static str,
    /// Target in seconds.
    aim: f64,
    rounds: usize,
    inject: fn(&Bench) -> Injection,
    /// Steps that can complete without the failed component. `None` if that number is unknown
    /// because the pod is terminating: then the first step after all milestones counts.
    steps_in_progress: Option<usize>,
    /// Milestones until training resumes: name, pod, and text in the pod's log.
    milestones: &'static [(&'static str, &'static str, &'static str)],
}

/// Start of a recovery, and the action that reverts the fault.
struct Injection {
    at: Timestamp,
    undo: Option<Box<dyn FnOnce()>>,
}

const LEARNERS: (&str, &str, &str) = ("learners started", "trainer-0", "starting learners");
const READY: (&str, &str, &str) = ("loaded", "trainer-0", "the learner is ready");

const CASES: [Case; 5] = [
    Case {
        name: "learner",
        aim: 3.0,
        rounds: ROUNDS,
        inject: |bench| bench.kill("rljob-learner"),
        steps_in_progress: Some(0),
        milestones: &[("found", "coordinator-0", "stage=Stopping"), LEARNERS, READY],
    },
    Case {
        name: "engine",
        aim: 10.0,
        rounds: ROUNDS,
        inject: |bench| bench.kill("rljob-engine"),
        steps_in_progress: Some(1),
        milestones: &[
            ("listening", "inference-0", "listening on"),
            ("weights updated", "coordinator-0", "updated an engine's weights"),
        ],
    },
    Case {
        name: "coordinator",
        aim: 5.0,
        rounds: ROUNDS,
        inject: |bench| bench.kill("rljob-coordinator"),
        steps_in_progress: Some(1),
        milestones: &[("opened its data", "coordinator-0", "opened the data")],
    },
    Case {
        name: "trainer-pod",
        aim: 10.0,
        rounds: ROUNDS,
        inject: Bench::remove_trainer,
        steps_in_progress: None,
        milestones: &[LEARNERS, READY],
    },
    // Measured from the forced removal of the node's pods.
    Case {
        name: "node",
        aim: 10.0,
        rounds: 1,
        inject: Bench::lose_node,
        steps_in_progress: None,
        milestones: &[LEARNERS, READY],
    },
];

struct Bench {
    testbed: Testbed,
    kubectl: Kubectl,
}

fn main() {
    let testbed = Testbed::start(Engine::Embedded).unwrap();
    testbed.use_namespace(NAMESPACE).unwrap();
    let kubectl = testbed.cluster.kubectl().in_namespace(NAMESPACE);
    kubectl
        .apply(
            &YAML
                .replace("DATA", &testbed.data.display().to_string())
                .replace("RUNS", &testbed.runs().display().to_string()),
        )
        .unwrap();
    let bench = Bench { testbed, kubectl };
    for case in &CASES {
        let rounds: Vec<Vec<f64>> = (0..case.rounds).map(|_| bench.round(case)).collect();
        let middle = |index: usize| median(rounds.iter().map(|round| round[index]).collect());
        let targets: Vec<String> = case
            .milestones
            .iter()
            .enumerate()
            .map(|(index, (name, ..))| format!("{name} after {:.2} s", middle(index)))
            .collect();
        let all = middle(case.milestones.len());
        let figures = format!(
            "{all:.2} s to the next step, median of {} ({})",
            case.rounds,
            targets.join(", ")
        );
        row(&format!("recovery-{}", case.name), &figures, all, Aim::AtMost(case.aim));
    }
}

impl Bench {
    /// Seconds from the injection to each milestone and to the next step, with new pods.
    fn round(&self, case: &Case) -> Vec<f64> {
        self.kubectl.run(&["delete", "pods", "--all"]).unwrap();
        let (before, steps) = (self.steps(), |bench: &Self| bench.steps());
        wait_until("steps of new pods", LIMIT, || Ok(steps(self) >= before + 5)).unwrap();
        self.kubectl
            .run(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=120s"])
            .unwrap();
        let Injection { at, undo } = (case.inject)(self);
        if case.steps_in_progress.is_none() {
            wait_until("the milestones", LIMIT, || {
                Ok(case.milestones.iter().all(|mark| self.logged(mark, at).is_some()))
            })
            .unwrap();
        }
        let wanted = self.steps() + case.steps_in_progress.unwrap_or_default() + 1;
        wait_until("the next step", LIMIT, || Ok(steps(self) >= wanted)).unwrap();
        let all = seconds(at, Timestamp::now());
        let mut targets: Vec<f64> = case
            .milestones
            .iter()
            .map(|mark| seconds(at, self.logged(mark, at).unwrap()))
            .collect();
        targets.push(all);
        println!("{}: {targets:.2?}", case.name);
        if let Some(undo) = undo {
            undo();
        }
        targets
    }

    fn steps(&self) -> usize {
        std::fs::read_to_string(self.testbed.run_directory().join("metrics.jsonl"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    fn kill(&self, program: &str) -> Injection {
        let pids = self.testbed.processes(&format!("/{program}"));
        let at = Timestamp::now();
        kill_process(
            *pids.first().unwrap_or_else(|| panic!("no process of {program} exists")),
            Signal::KILL,
        )
        .unwrap();
        Injection { at, undo: None }
    }

    fn remove_trainer(&self) -> Injection {
        let at = Timestamp::now();
        self.kubectl
            .run(&["delete", "pod/chaos-trainer-0", "--grace-period=0", "--force", "--wait=false"])
            .unwrap();
        Injection { at, undo: None }
    }

    /// Stops the node of a trainer pod; the recovery starts when its pods are force-deleted.
    fn lose_node(&self) -> Injection {
        let uid = || {
            self.kubectl.run(&[
                "get",
                "pod/chaos-trainer-0",
                "--ignore-not-found",
                "--output=jsonpath={.metadata.uid}",
            ])
        };
        let (before, start) = (uid().unwrap(), Timestamp::now());
        let node = self
            .kubectl
            .run(&["get", "pod/chaos-trainer-0", "--output=jsonpath={.spec.nodeName}"])
            .unwrap();
        let stopped = self.testbed.cluster.stop_node(&node).unwrap();
        wait_until("the removal of a lost node's pod", LIMIT, || Ok(uid()? != before)).unwrap();
        let at = Timestamp::now();
        println!("node: its pods were force-deleted {:.1} s after its loss", seconds(start, at));
        Injection { at, undo: Some(Box::new(|| drop(stopped))) }
    }

    /// First time after `after` at which a milestone was logged; learners prefix lines with their
    /// rank. A new pod may have no log yet.
    fn logged(&self, (_, pod, text): &(&str, &str, &str), after: Timestamp) -> Option<Timestamp> {
        let log = self.kubectl.run(&["logs", &format!("pod/chaos-{pod}")]).ok()?;
        let log = rljob_logging::readable(&log);
        let mut times = log
            .lines()
            .filter(|line| line.contains(text))
            .filter_map(|line| line.split_whitespace().find_map(|word| word.parse().ok()));
        times.find(|time| *time > after)
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
