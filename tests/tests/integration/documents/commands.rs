//! Commands of the shell blocks, each with the test that runs it as printed or the reason why none
//! does. A command of neither kind fails the test of this file.

use std::collections::BTreeSet;

use rljob_tests::documents::{self, Block, blocks};

use super::PAGES;

/// Pages whose blocks run as a whole, in another order: `control_plane::releases::documents` runs
/// the first two, `control_plane::gitops` the last one.
const WHOLE: [&str; 3] = ["docs/install.md", "docs/upgrades.md", "docs/gitops.md"];
/// Programs of the blocks of these pages that run.
pub(crate) const PROGRAMS: [&str; 3] = ["helm", "kubectl", "rljob"];

const REGISTRY: &str = "needs a registry that has the base images or takes an image";
const GPUS: &str = "needs GPUs";
const BUILD: &str = "builds for minutes";
const RESTARTED: &str = "needs a container that has restarted: `e2e::logs` has one";

/// Parts of commands that no test runs, with the reason.
const NOT_RUN: [(&str, &str); 25] = [
    ("podman ", REGISTRY),
    ("skopeo copy", REGISTRY),
    ("cosign ", REGISTRY),
    ("make quickstart", BUILD),
    ("make test", "runs these tests"),
    ("make images", BUILD),
    ("make check-images", BUILD),
    ("make setup-nodes build", BUILD),
    ("make krew", BUILD),
    ("make build-cuda", BUILD),
    ("cargo build --release", BUILD),
    ("cargo run --bin rljob-test-cluster", "runs until Ctrl-D: tests have the same cluster"),
    ("target/krew/", "needs krew: `control_plane::command_line` unpacks its archive"),
    ("tensorboard ", "is not installed: `tracking` reads its files"),
    ("pip install", "downloads 5 GB"),
    ("LD_LIBRARY_PATH=", GPUS),
    ("bench/gpu/", GPUS),
    ("--engine-command", GPUS),
    ("rljob run -f sft.yaml", GPUS),
    ("import transformers", GPUS),
    ("/var/lib/rljob/", "writes to folders of this machine: `e2e` has others"),
    ("quickstart-cluster.yaml", "`e2e` runs this sample, with other folders"),
    ("rollout status", "needs pods of the image: `e2e::release` waits for them"),
    (" --previous", RESTARTED),
    ("trainer-GROUP-0", "needs a group, which the job of the test lacks"),
];

/// Parts of commands on a cluster that need a kubelet.
const NODES: [&str; 6] =
    [" logs ", " exec ", " dashboard ", " report ", "checkpoints verify", "checkpoints copy"];
/// Beginnings of commands on one machine.
const MACHINE: [&str; 7] = [
    "rljob ",
    "source <(rljob ",
    "RLJOB_SECRETS=",
    "export PATH=",
    "mkdir ",
    "printf ",
    "python3 ",
];

/// Parts of commands that run on each page that has them.
const AGAIN: [&str; 4] = [" suspend ", " resume ", " restore ", " wait "];

/// Names that readers replace.
const PLACEHOLDERS: [(&str, &str); 6] = [
    ("RESOURCE", "statefulsets"),
    ("CLAIM", "runs"),
    (" NAME", " gsm8k"),
    ("=NAME", "=gsm8k"),
    ("/NAME", "/gsm8k"),
    ("NAME-", "gsm8k-"),
];

/// Test that runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `documents::machine`, beside local runs.
    Machine,
    /// `control_plane::documents`, on a job with simulated pods.
    ControlPlane,
    /// `e2e::documents`, on a job in pods.
    Nodes,
    /// `control_plane::releases::documents`.
    Release,
}

fn place(command: &str) -> Option<Place> {
    let has = |parts: &[&str]| parts.iter().any(|part| command.contains(part));
    if has(&["helm "]) {
        Some(Place::Release)
    } else if has(&["kubectl", " --cluster"]) {
        Some(if has(&NODES) { Place::Nodes } else { Place::ControlPlane })
    } else {
        MACHINE.iter().any(|begin| command.starts_with(begin)).then_some(Place::Machine)
    }
}

/// The part of a command because of which no test runs it.
fn excluded(command: &str) -> Option<&'static str> {
    NOT_RUN.iter().find(|(part, _)| command.contains(part)).map(|(part, _)| *part)
}

/// A command and the path of its page.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) page: String,
    pub(crate) text: String,
}

impl Command {
    /// The command with names in place of those that readers of runbooks replace.
    pub(crate) fn with_names(&self, namespace: &str) -> String {
        let text = self.text.replace("NAMESPACE", namespace);
        PLACEHOLDERS.iter().fold(text, |text, (from, to)| text.replace(from, to))
    }
}

/// Whether a block of a page in [`WHOLE`] runs.
pub(crate) fn runs(block: &str) -> bool {
    let program = |line: &str| line.trim_start().split(' ').next().unwrap_or_default().to_owned();
    block.lines().any(|line| PROGRAMS.contains(&program(line).as_str()))
}

fn without_comment(command: &str) -> String {
    command.split(" # ").next().unwrap_or_default().trim_end().to_owned()
}

/// Commands that do not run as a part of their block.
fn all() -> Vec<Command> {
    let is_whole = |block: &Block| WHOLE.contains(&block.page.as_str()) && runs(&block.text);
    let single = blocks(&PAGES, "sh").unwrap().into_iter().filter(|block| !is_whole(block));
    single
        .flat_map(|Block { page, text }| {
            let commands = documents::commands(&text).into_iter();
            commands.map(move |text| Command { page: page.clone(), text: without_comment(&text) })
        })
        .collect()
}

/// Commands that a test runs, in the order of the pages. One that several pages have runs once,
/// unless it changes the state of a job or waits for it.
pub(crate) fn commands_of(test: Place) -> Vec<Command> {
    let (mut commands, mut seen) = (all(), BTreeSet::new());
    commands.retain(|Command { text, .. }| {
        let is_repeated = AGAIN.iter().any(|part| text.contains(part));
        excluded(text).is_none()
            && place(text) == Some(test)
            && (seen.insert(text.clone()) || is_repeated)
    });
    commands
}

#[test]
fn a_test_runs_every_command_of_the_documents_or_a_reason_says_why_not() {
    let commands = all();
    let unknown: Vec<_> = commands
        .iter()
        .filter(|command| excluded(&command.text).is_none() && place(&command.text).is_none())
        .collect();
    assert!(unknown.is_empty(), "no test runs {unknown:#?}");
    let used: BTreeSet<&str> = commands.iter().filter_map(|found| excluded(&found.text)).collect();
    let unused: Vec<_> = NOT_RUN.iter().filter(|(part, _)| !used.contains(part)).collect();
    assert!(unused.is_empty(), "no command has {unused:?}");
}
