//! RLJobs under GitOps: health as Argo CD and Flux see it, applies without drift, changes by
//! commits, `kubectl wait`, and the manifests of `manifests/gitops`.

use std::fs;

use rljob_tests::documents::blocks_in;
use rljob_tests::files::workspace;

use super::cluster;
use crate::documents::user::User;

mod changes;
mod drift;
mod health;
mod manifests;
mod wait;

const PREREQUISITES: &str = "manifests/gitops/jobs/prerequisites.yaml";
/// Parts of the blocks that the tests of `manifests` and `wait` run.
const BLOCKS: [&str; 5] =
    ["kubectl wait", PREREQUISITES, "rljob validate", "argocd-cm", "kubeconform"];

/// Text of a file of the checkout.
fn read(file: &str) -> String {
    fs::read_to_string(workspace().join(file)).unwrap()
}

/// Shell code blocks of docs/gitops.md.
fn blocks() -> Vec<String> {
    blocks_in(&read("docs/gitops.md"), "sh")
}

/// A user of the cluster, with a default namespace.
fn user(namespace: &str) -> User {
    let user = User::new();
    user.use_namespace(cluster().kubeconfig(), namespace);
    user
}

#[test]
fn tests_run_every_block_of_the_page() {
    let others: Vec<String> = blocks()
        .into_iter()
        .filter(|block| BLOCKS.iter().filter(|part| block.contains(**part)).count() != 1)
        .collect();
    assert_eq!(others, Vec::<String>::new());
}
