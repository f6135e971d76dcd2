//! kubectl commands, with a time limit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{files, process};

/// Time limit of one command, including `kubectl wait`.
const LIMIT_SECONDS: &str = "900";
/// Time limit of the first conditions of a CustomResourceDefinition.
const DEFINITION_LIMIT: Duration = Duration::from_secs(60);

/// kubectl with a kubeconfig and a namespace.
#[derive(Clone, Debug)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    namespace: Option<String>,
}

impl Kubectl {
    /// Uses the kubeconfig's user and the namespace that objects name, else `default`.
    pub fn new(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_path_buf(), namespace: None }
    }

    /// Returns a copy that uses another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// Runs a command and returns its standard output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with_input(arguments, "")
    }

    /// Runs a command with `input` on standard input, for `--filename=-`.
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

    /// `kubectl apply` of a manifest.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with_input(&["apply", "--filename=-"], manifest)
    }

    /// Waits until the API server serves the objects of a CustomResourceDefinition. `kubectl wait`
    /// fails if the definition has no conditions yet.
    pub fn wait_for_definition(&self, name: &str) -> Result<()> {
        let definition = format!("crd/{name}");
        let wait = ["wait", "--for=condition=Established", &definition, "--timeout=60s"];
        process::wait_until(&definition, DEFINITION_LIMIT, || Ok(self.run(&wait).is_ok()))
    }

    /// `kubectl get … --output=json`.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = vec!["get", "--output=json"];
        all.extend_from_slice(arguments);
        let text = self.run(&all)?;
        serde_json::from_str(&text)
            .with_context(|| format!("kubectl get {} printed no JSON", arguments.join(" ")))
    }
}
