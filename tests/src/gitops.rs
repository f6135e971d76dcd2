//! Health and differences of objects as Argo CD and Flux see them, by a program that contains their
//! libraries (tests/gitops).

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::files::{self, workspace};
use crate::process;

/// ConfigMap with the health check and the actions for Argo CD.
pub const ARGOCD_CM: &str = "manifests/gitops/argocd/argocd-cm.yaml";
/// Flux Kustomization with health check expressions.
pub const FLUX_UNTIL_SUCCEEDED: &str = "manifests/gitops/flux/until-succeeded.yaml";

/// A state and its message.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Verdict {
    pub status: String,
    pub message: String,
}

/// Health of one object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Health {
    /// By Argo CD with [`ARGOCD_CM`].
    pub argocd: Verdict,
    /// By kstatus, which Flux applies to objects without expressions.
    pub kstatus: Verdict,
    /// By Flux with the expressions of [`FLUX_UNTIL_SUCCEEDED`].
    pub expressions: String,
}

/// Judges an object.
pub fn health(object: &Value) -> Result<Health> {
    let path = |file: &str| workspace().join(file).display().to_string();
    run(&["health", &path(ARGOCD_CM), &path(FLUX_UNTIL_SUCCEEDED)], object)
}

/// The object as each action that Argo CD offers for it, with [`ARGOCD_CM`], would change it.
pub fn actions(object: &Value) -> Result<BTreeMap<String, Value>> {
    run(&["actions", &workspace().join(ARGOCD_CM).display().to_string()], object)
}

/// What Argo CD compares.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Comparison {
    /// Whether the application is OutOfSync.
    pub modified: bool,
    pub live: Value,
    pub predicted: Value,
}

/// Compares a manifest with the live object as Argo CD does without server-side diff.
pub fn diff(desired: &Value, live: &Value) -> Result<Comparison> {
    run(&["diff"], &json!({"desired": desired, "live": live}))
}

/// Compares a manifest with the live object as Argo CD does with server-side diff. `predicted` is
/// the result of a server-side apply in a dry run.
pub fn server_side_diff(desired: &Value, live: &Value, predicted: &Value) -> Result<Comparison> {
    run(&["diff"], &json!({"desired": desired, "live": live, "predicted": predicted}))
}

fn run<T: for<'a> Deserialize<'a>>(arguments: &[&str], input: &Value) -> Result<T> {
    let mut command = Command::new(files::gitops("gitops")?);
    let output = process::run_with_input(command.args(arguments), &input.to_string())?;
    serde_json::from_str(&output).with_context(|| format!("unexpected output: {output}"))
}
