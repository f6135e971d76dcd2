//! Commands of docs/install.md and docs/upgrades.md, run as printed on real API servers.
//!
//! A shell runs the blocks with commands of [`PROGRAMS`] in a folder that has the chart and the
//! manifests, as a checkout has them. Nothing in them is replaced. The image is that of the pages:
//! no node pulls it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use rljob_tests::files::{binary, helm, kubernetes, workspace};
use rljob_tests::process::{run, wait_until};
use rljob_tests::{Cluster, Kubectl};
use serde_json::Value;
use tempfile::TempDir;

use super::{DEPLOYMENT, start_operator};
use crate::control_plane::operator::{LIMIT, SYSTEM};
use crate::control_plane::wait_for_crd;
use rljob_tests::documents::blocks_in;

const INSTALL: &str = "docs/install.md";
const UPGRADES: &str = "docs/upgrades.md";
/// Programs whose blocks run. The others build images, push them, or start a cluster.
const PROGRAMS: [&str; 3] = ["helm", "kubectl", "rljob"];
/// A line that is left out, because it waits for pods on nodes, which these clusters do not have.
const NEEDS_NODES: &str = "rollout status deployment/rljob-operator";

/// Shell blocks of a text that run one of the programs.
fn blocks_of(text: &str) -> Vec<String> {
    let runs = |line: &str| {
        let program = line.trim_start().split(' ').next().unwrap_or_default();
        PROGRAMS.contains(&program)
    };
    let mut blocks = blocks_in(text, "sh");
    blocks.retain(|block| block.lines().any(runs));
    blocks
}

fn read(page: &str) -> String {
    fs::read_to_string(workspace().join(page)).unwrap()
}

/// A user with a checkout, who follows the pages.
struct User {
    folder: TempDir,
    /// Blocks that ran.
    ran: BTreeSet<String>,
}

impl User {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let link = |from, name: &str| symlink(from, folder.path().join(name)).unwrap();
        link(workspace().join("charts"), "charts");
        link(workspace().join("manifests"), "manifests");
        for (program, path) in [
            ("helm", helm().unwrap()),
            ("kubectl", kubernetes("kubectl").unwrap()),
            ("rljob", binary("rljob").unwrap()),
            ("kubectl-rljob", binary("rljob").unwrap()),
        ] {
            link(path, program);
        }
        // The job of README.md, whose coordinator nothing runs: a suspension does not wait for it.
        let job = blocks_in(&read("README.md"), "yaml").remove(0);
        let job = job.replace("\nspec:\n", "\nspec:\n  drainTimeoutSeconds: 1\n");
        fs::write(folder.path().join("job.yaml"), job).unwrap();
        Self { folder, ran: BTreeSet::new() }
    }

    /// Runs the blocks below a heading of the second level.
    fn follow(&mut self, cluster: &Cluster, page: &str, heading: &str) {
        let text = read(page);
        let start = format!("{heading}\n");
        let section = text.split("\n## ").find(|section| section.starts_with(&start));
        let blocks = blocks_of(section.unwrap_or_else(|| panic!("{page} has no {heading}")));
        assert!(!blocks.is_empty(), "{page}: {heading}");
        for block in blocks {
            let lines = block.lines().filter(|line| !line.ends_with(NEEDS_NODES));
            let script = lines.collect::<Vec<_>>().join("\n");
            self.shell(cluster, &script);
            self.ran.insert(block);
        }
    }

    fn shell(&self, cluster: &Cluster, script: &str) -> String {
        let folder = self.folder.path();
        let path = format!("{}:/usr/bin:/bin", folder.display());
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "300", "bash", "-e", "-c", script]);
        command.current_dir(folder).env_clear().env("PATH", path).env("HOME", folder);
        command.env("KUBECONFIG", cluster.kubeconfig()).env("PASSWORD", "secret");
        run(&mut command).unwrap_or_else(|error| panic!("{script}\n{error:#}"))
    }
}

fn create_namespaces<const N: usize>(kubectl: &Kubectl, names: [&str; N]) {
    for name in names {
        kubectl.run(&["create", "namespace", name]).unwrap();
        // The controller manager creates it.
        let account = ["get", "serviceaccount", "default", "--namespace", name];
        wait_until("the service account", LIMIT, || Ok(kubectl.run(&account).is_ok())).unwrap();
    }
}

/// Image of the operator.
fn deployed(cluster: &Cluster) -> String {
    let image = "--output=jsonpath={.spec.template.spec.containers[0].image}";
    cluster.kubectl().in_namespace(SYSTEM).run(&["get", DEPLOYMENT, image]).unwrap()
}

#[test]
fn commands_of_the_pages_install_upgrade_roll_back_and_remove_releases() {
    let mut user = User::new();
    with_helm(&mut user);
    with_kubectl(&mut user);
    let pages = [INSTALL, UPGRADES].iter();
    assert_eq!(user.ran, pages.flat_map(|page| blocks_of(&read(page))).collect());
}

/// A release with a job, from its installation to its removal.
fn with_helm(user: &mut User) {
    let cluster = Cluster::start(0).unwrap();
    create_namespaces(&cluster.kubectl(), ["team-a"]);
    user.follow(&cluster, INSTALL, "Images");
    user.follow(&cluster, INSTALL, "With Helm");
    assert_eq!(deployed(&cluster), "registry.example/rljob:0.1.0");
    wait_for_crd(&cluster.kubectl()).unwrap();
    user.follow(&cluster, UPGRADES, "The operator");
    let operator = start_operator(&cluster, SYSTEM, SYSTEM);
    user.shell(&cluster, "kubectl apply --filename job.yaml");
    let started = ["wait", "--for=create", "statefulset/gsm8k-trainer", "--timeout=60s"];
    cluster.kubectl().run(&started).unwrap();
    user.follow(&cluster, UPGRADES, "A running job");
    drop(operator);
    user.follow(&cluster, UPGRADES, "Rollback");
    user.follow(&cluster, INSTALL, "Upgrade");
    user.follow(&cluster, INSTALL, "Rollback");
    user.follow(&cluster, INSTALL, "Removal");
    let kept = cluster.kubectl().run(&["get", "rljobs", "--output=name"]).unwrap();
    assert_eq!(kept, "rljob.rljob.dev/gsm8k\n");
}

/// An installation by kubectl that a release takes over, and releases for one namespace each.
fn with_kubectl(user: &mut User) {
    let cluster = Cluster::start(0).unwrap();
    create_namespaces(&cluster.kubectl(), ["team-a", "team-b"]);
    user.follow(&cluster, INSTALL, "With kubectl or kustomize");
    assert_eq!(deployed(&cluster), "registry.example/rljob:0.1.0");
    user.follow(&cluster, INSTALL, "Removal");
    // As the table of removals says.
    user.shell(&cluster, "kubectl delete crd rljobs.rljob.dev");
    user.follow(&cluster, INSTALL, "One namespace");
    let releases = user.shell(&cluster, "helm list --all-namespaces --output json");
    let releases: Value = serde_json::from_str(&releases).unwrap();
    let namespaces = releases.as_array().unwrap().iter().map(|release| &release["namespace"]);
    assert_eq!(namespaces.collect::<Vec<_>>(), ["team-a-rljob", "team-b-rljob"]);
}
