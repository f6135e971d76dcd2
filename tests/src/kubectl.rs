//! kubectl, as a user runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{files, process};

/// Longest time a kubectl may take, waits included.
const LIMIT_SECONDS: &str = "900";

/// A kubectl for one cluster, one user and one namespace.
#[derive(Clone, Debug)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    namespace: Option<String>,
}

impl Kubectl {
    /// For the kubeconfig's user, in the namespace that objects name, or `default`.
    pub fn new(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_path_buf(), namespace: None }
    }

    /// The same in another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// Runs it and returns what it printed.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with_input(arguments, "")
    }

    /// Runs it with a text on standard input, for `--filename=-`.
    pub fn run_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT_SECONDS]).arg(files::kubernetes("kubectl")?);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        if let Some(namespace) = &self.namespace {
            command.arg("--namespace").arg(namespace);
        }
        command.args(arguments);
        process::run_with_input(&mut command, input)
    }

    /// `kubectl apply` of a text.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with_input(&["apply", "--filename=-"], manifest)
    }

    /// `kubectl get … --output=json`.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = vec!["get", "--output=json"];
        all.extend_from_slice(arguments);
        let text = self.run(&all)?;
        serde_json::from_str(&text)
            .with_context(|| format!("kubectl get {} did not print JSON", arguments.join(" ")))
    }
}
