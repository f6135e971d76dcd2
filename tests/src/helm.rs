//! Helm commands, with a time limit. They read and write no configuration of the user.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::files::{self, workspace};
use crate::process;

/// Time limit of one command.
const LIMIT_SECONDS: &str = "300";

/// Helm with a namespace and, for commands that need a cluster, a kubeconfig.
#[derive(Debug)]
pub struct Helm {
    kubeconfig: Option<PathBuf>,
    namespace: String,
    home: TempDir,
}

impl Helm {
    /// Renders and checks charts without a cluster.
    pub fn offline(namespace: &str) -> Result<Self> {
        let home = tempfile::tempdir().context("failed to create a folder for Helm")?;
        Ok(Self { kubeconfig: None, namespace: namespace.to_owned(), home })
    }

    /// Manages releases in a namespace, with the kubeconfig's user.
    pub fn new(kubeconfig: &Path, namespace: &str) -> Result<Self> {
        let kubeconfig = Some(kubeconfig.to_path_buf());
        Ok(Self { kubeconfig, ..Self::offline(namespace)? })
    }

    /// Folder of the project's chart.
    pub fn chart() -> String {
        workspace().join("charts/rljob").display().to_string()
    }

    /// Runs a command and returns its standard output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with_input(arguments, "")
    }

    /// Runs a command with `input` on standard input, for `--values=-`.
    pub fn run_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT_SECONDS]).arg(files::helm()?);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path());
        }
        // Without a cluster, no kubeconfig of the user is read.
        let none = PathBuf::from("/dev/null");
        command.env("KUBECONFIG", self.kubeconfig.as_ref().unwrap_or(&none));
        command.args(["--namespace", &self.namespace]).args(arguments);
        process::run_with_input(&mut command, input)
    }
}
