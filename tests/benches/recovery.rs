//! From a failure to resumed training, on two real nodes with a job of the quick start's size and a
//! DNS that is cached for 30 s: a learner, an engine and the coordinator are killed, a trainer pod
//! is removed by force and a node is lost, each in turn, and the next step that needs who was
//! struck is waited for.
//!
//! ```text
//!  strike ──▶ marks in the logs of the pods, after each other ──▶ the next step's line in metrics.jsonl
//! ```
//! A checkpoint is written at every step, so that the replay is one step at most: how far apart
//! checkpoints are is the user's choice. A kubelet waits longer each time it restarts a container
//! of one pod, so that every round has new pods.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot go on ends")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::Duration;

use jiff::Timestamp;
use rljob_tests::Kubectl;
use rljob_tests::bench::{Aim, median, row};
use rljob_tests::chaos::{Engine, Scene};
use rljob_tests::process::wait_until;
use rustix::process::{Signal, kill_process};

const YAML: &str = include_str!("recovery.yaml");
const NAMESPACE: &str = "recovery";
const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(300);

/// Who is struck, and what its recovery goes through.
struct Case {
    name: &'static str,
    /// Seconds.
    aim: f64,
    rounds: usize,
    strike: fn(&Bench) -> Strike,
    /// Steps that may be under way without who was struck; none where those of a pod that is on its
    /// way out cannot be told: there the first one after the marks counts.
    under_way: Option<usize>,
    /// What happens until training goes on: a name, and the pod whose log has the words.
    marks: &'static [(&'static str, &'static str, &'static str)],
}

/// When the clock of a recovery starts, and what is to be taken back afterwards.
struct Strike {
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
        strike: |bench| bench.kill("rljob-learner"),
        under_way: Some(0),
        marks: &[("found", "coordinator-0", "stage=\"Stopping\""), LEARNERS, READY],
    },
    Case {
        name: "engine",
        aim: 10.0,
        rounds: ROUNDS,
        strike: |bench| bench.kill("rljob-engine"),
        under_way: Some(1),
        marks: &[
            ("listening", "inference-0", "listening on"),
            ("weights updated", "coordinator-0", "updated an engine's weights"),
        ],
    },
    Case {
        name: "coordinator",
        aim: 5.0,
        rounds: ROUNDS,
        strike: |bench| bench.kill("rljob-coordinator"),
        under_way: Some(1),
        marks: &[("opened its data", "coordinator-0", "opened the data")],
    },
    Case {
        name: "trainer-pod",
        aim: 10.0,
        rounds: ROUNDS,
        strike: Bench::remove_trainer,
        under_way: None,
        marks: &[LEARNERS, READY],
    },
    // Counted from when the node's pods are removed by force, which is the bound.
    Case {
        name: "node",
        aim: 10.0,
        rounds: 1,
        strike: Bench::lose_node,
        under_way: None,
        marks: &[LEARNERS, READY],
    },
];

struct Bench {
    scene: Scene,
    kubectl: Kubectl,
}

fn main() {
    let scene = Scene::set(Engine::Embedded).unwrap();
    scene.turn_to(NAMESPACE).unwrap();
    let kubectl = scene.cluster.kubectl().in_namespace(NAMESPACE);
    kubectl
        .apply(
            &YAML
                .replace("DATA", &scene.data.display().to_string())
                .replace("RUNS", &scene.runs().display().to_string()),
        )
        .unwrap();
    let bench = Bench { scene, kubectl };
    for case in &CASES {
        let rounds: Vec<Vec<f64>> = (0..case.rounds).map(|_| bench.round(case)).collect();
        let middle = |index: usize| median(rounds.iter().map(|round| round[index]).collect());
        let parts: Vec<String> = case
            .marks
            .iter()
            .enumerate()
            .map(|(index, (name, ..))| format!("{name} after {:.2} s", middle(index)))
            .collect();
        let all = middle(case.marks.len());
        let figures = format!(
            "{all:.2} s to the next step, median of {} ({})",
            case.rounds,
            parts.join(", ")
        );
        row(&format!("recovery-{}", case.name), &figures, all, Aim::AtMost(case.aim));
    }
}

impl Bench {
    /// Seconds from a strike to each mark and to the next step, with new pods.
    fn round(&self, case: &Case) -> Vec<f64> {
        self.kubectl.run(&["delete", "pods", "--all"]).unwrap();
        let (before, steps) = (self.steps(), |bench: &Self| bench.steps());
        wait_until("steps of new pods", LIMIT, || Ok(steps(self) >= before + 5)).unwrap();
        self.kubectl
            .run(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=120s"])
            .unwrap();
        let Strike { at, undo } = (case.strike)(self);
        if case.under_way.is_none() {
            wait_until("the marks", LIMIT, || {
                Ok(case.marks.iter().all(|mark| self.logged(mark, at).is_some()))
            })
            .unwrap();
        }
        let wanted = self.steps() + case.under_way.unwrap_or_default() + 1;
        wait_until("the next step", LIMIT, || Ok(steps(self) >= wanted)).unwrap();
        let all = seconds(at, Timestamp::now());
        let mut parts: Vec<f64> =
            case.marks.iter().map(|mark| seconds(at, self.logged(mark, at).unwrap())).collect();
        parts.push(all);
        println!("{}: {parts:.2?}", case.name);
        if let Some(undo) = undo {
            undo();
        }
        parts
    }

    fn steps(&self) -> usize {
        std::fs::read_to_string(self.scene.run_directory().join("metrics.jsonl"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    fn kill(&self, program: &str) -> Strike {
        let pids = self.scene.processes(&format!("/{program}"));
        let at = Timestamp::now();
        kill_process(
            *pids.first().unwrap_or_else(|| panic!("no process is {program}")),
            Signal::KILL,
        )
        .unwrap();
        Strike { at, undo: None }
    }

    fn remove_trainer(&self) -> Strike {
        let at = Timestamp::now();
        self.kubectl
            .run(&["delete", "pod/chaos-trainer-0", "--grace-period=0", "--force", "--wait=false"])
            .unwrap();
        Strike { at, undo: None }
    }

    /// Takes away the node of a trainer; until its pods are removed.
    fn lose_node(&self) -> Strike {
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
        let stopped = self.scene.cluster.stop_node(&node).unwrap();
        wait_until("the removal of a lost node's pod", LIMIT, || Ok(uid()? != before)).unwrap();
        let at = Timestamp::now();
        println!(
            "node: its pods were removed by force {:.1} s after it was lost",
            seconds(start, at)
        );
        Strike { at, undo: Some(Box::new(|| drop(stopped))) }
    }

    /// When a mark was logged first after a time; a learner's lines have its rank before the time.
    /// A new pod has no log yet.
    fn logged(&self, (_, pod, words): &(&str, &str, &str), after: Timestamp) -> Option<Timestamp> {
        let log = self.kubectl.run(&["logs", &format!("pod/chaos-{pod}")]).ok()?;
        let mut times = log
            .lines()
            .filter(|line| line.contains(words))
            .filter_map(|line| line.split_whitespace().find_map(|word| word.parse().ok()));
        times.find(|time| *time > after)
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
