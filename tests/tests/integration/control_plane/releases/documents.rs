//! Commands of docs/install.md and docs/upgrades.md, and those of Helm of all pages, run as printed
//! on real API servers.
//!
//! A shell runs the blocks with commands of [`PROGRAMS`]; nothing in them is replaced. The image is
//! that of the pages: no node pulls it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Kubectl};
use serde_json::Value;

use super::{DEPLOYMENT, start_operator};
use crate::control_plane::operator::{LIMIT, SYSTEM};
use crate::control_plane::wait_for_crd;
use crate::documents::commands::{Place, commands_of, runs};
use crate::documents::user::User;
use rljob_tests::documents::blocks_in;

const INSTALL: &str = "docs/install.md";
const UPGRADES: &str = "docs/upgrades.md";
/// A line that is left out, because it waits for pods on nodes, which these clusters do not have.
const NEEDS_NODES: &str = "rollout status deployment/rljob-operator";

fn read(page: &str) -> String {
    fs::read_to_string(workspace().join(page)).unwrap()
}

/// Shell blocks of a text that run.
fn blocks_of(text: &str) -> Vec<String> {
    blocks_in(text, "sh").into_iter().filter(|block| runs(block)).collect()
}

/// A user who follows the pages.
struct Reader {
    user: User,
    /// Blocks and commands that ran.
    ran: BTreeSet<String>,
}

impl Reader {
    fn new() -> Self {
        let user = User::new();
        symlink("rljob", user.path("bin/kubectl-rljob")).unwrap();
        // The job of README.md, whose coordinator nothing runs: a suspension does not wait for it.
        let job = blocks_in(&read("README.md"), "yaml").remove(0);
        user.write("job.yaml", &job.replace("\nspec:\n", "\nspec:\n  drainTimeoutSeconds: 1\n"));
        Self { user, ran: BTreeSet::new() }
    }

    /// Runs the blocks below a heading of the second level.
    fn follow(&mut self, page: &str, heading: &str) {
        let text = read(page);
        let start = format!("{heading}\n");
        let section = text.split("\n## ").find(|section| section.starts_with(&start));
        let blocks = blocks_of(section.unwrap_or_else(|| panic!("{page} has no {heading}")));
        assert!(!blocks.is_empty(), "{page}: {heading}");
        for block in blocks {
            let lines = block.lines().filter(|line| !line.ends_with(NEEDS_NODES));
            self.shell(&lines.collect::<Vec<_>>().join("\n"));
            self.ran.extend(block.lines().map(ToOwned::to_owned));
            self.ran.insert(block);
        }
    }

    /// Runs the commands of Helm of other pages that differ from those that ran.
    fn follow_other_pages(&mut self) {
        for command in commands_of(Place::Release) {
            if self.ran.insert(command.text.clone()) {
                self.shell(&command.text);
                if command.text.starts_with("helm install") {
                    self.shell("helm uninstall rljob --namespace rljob-system");
                }
            }
        }
    }

    fn shell(&self, script: &str) -> String {
        self.user.shell(script).unwrap_or_else(|error| panic!("{error}"))
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
    let mut reader = Reader::new();
    with_helm(&mut reader);
    with_kubectl(&mut reader);
    let blocks = [INSTALL, UPGRADES].iter().flat_map(|page| blocks_of(&read(page)));
    let missing: Vec<String> = blocks.filter(|block| !reader.ran.contains(block)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// A release with a job, from its installation to its removal.
fn with_helm(reader: &mut Reader) {
    let cluster = Cluster::start(0).unwrap();
    reader.user.use_namespace(cluster.kubeconfig(), "default");
    create_namespaces(&cluster.kubectl(), ["team-a"]);
    reader.follow(INSTALL, "Images");
    reader.follow(INSTALL, "With Helm");
    assert_eq!(deployed(&cluster), "registry.example/rljob:0.1.0");
    wait_for_crd(&cluster.kubectl()).unwrap();
    reader.follow(UPGRADES, "The operator");
    let operator = start_operator(&cluster, SYSTEM, SYSTEM);
    reader.shell("kubectl apply --filename job.yaml");
    let started = ["wait", "--for=create", "statefulset/gsm8k-trainer", "--timeout=60s"];
    cluster.kubectl().run(&started).unwrap();
    reader.follow(UPGRADES, "A running job");
    drop(operator);
    reader.follow(UPGRADES, "Rollback");
    reader.follow(INSTALL, "Upgrade");
    reader.follow(INSTALL, "Rollback");
    reader.follow(INSTALL, "Removal");
    let kept = cluster.kubectl().run(&["get", "rljobs", "--output=name"]).unwrap();
    assert_eq!(kept, "rljob.rljob.dev/gsm8k\n");
    reader.follow_other_pages();
}

/// An installation by kubectl that a release takes over, and releases for one namespace each.
fn with_kubectl(reader: &mut Reader) {
    let cluster = Cluster::start(0).unwrap();
    reader.user.use_namespace(cluster.kubeconfig(), "default");
    create_namespaces(&cluster.kubectl(), ["team-a", "team-b"]);
    reader.follow(INSTALL, "With kubectl or kustomize");
    assert_eq!(deployed(&cluster), "registry.example/rljob:0.1.0");
    reader.follow(INSTALL, "Removal");
    // As the table of removals says.
    reader.shell("kubectl delete crd rljobs.rljob.dev");
    reader.follow(INSTALL, "One namespace");
    let releases = reader.shell("helm list --all-namespaces --output json");
    let releases: Value = serde_json::from_str(&releases).unwrap();
    let namespaces = releases.as_array().unwrap().iter().map(|release| &release["namespace"]);
    let namespaces: BTreeSet<&str> = namespaces.map(|name| name.as_str().unwrap()).collect();
    assert_eq!(namespaces, BTreeSet::from(["team-a-rljob", "team-b-rljob"]));
}
