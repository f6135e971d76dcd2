//! RLJobs under GitOps: health as Argo CD and Flux see it, applies without drift, changes by
//! commits, `kubectl wait`, and the manifests of `manifests/gitops`.

use std::fs;
use std::path::Path;
use std::process::Command;

use rljob_tests::files::{binary, kubernetes, workspace};

use rljob_tests::documents::blocks_in;

mod changes;
mod drift;
mod health;
mod manifests;
mod wait;

/// Text of a file of the checkout.
fn read(file: &str) -> String {
    fs::read_to_string(workspace().join(file)).unwrap()
}

/// Shell code blocks of docs/gitops.md.
fn blocks() -> Vec<String> {
    blocks_in(&read("docs/gitops.md"), "sh")
}

/// A shell that runs a script in the checkout, with kubectl, rljob and a kubeconfig. kubectl has
/// its cache beside the kubeconfig.
fn bash(script: &str, kubeconfig: &Path) -> Command {
    let programs = [kubernetes("kubectl").unwrap(), binary("rljob").unwrap()];
    let folders = programs.map(|program| program.parent().unwrap().display().to_string());
    let path = format!("{}:/usr/bin:/bin", folders.join(":"));
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(workspace());
    command.env_clear().env("PATH", path).env("KUBECONFIG", kubeconfig);
    command.env("HOME", kubeconfig.parent().unwrap());
    command
}
