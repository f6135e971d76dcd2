//! Kubernetes namespace of one test. A failing test prints its objects, events and logs.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use crate::{Api, Cluster, Kubectl, panics};

static MADE: AtomicU32 = AtomicU32::new(0);

/// A namespace that is deleted on drop.
#[derive(Debug)]
pub struct Namespace {
    pub name: String,
    /// Runs commands in this namespace.
    pub kubectl: Kubectl,
    /// Reads that are repeated while a test waits.
    pub api: Api,
}

impl Namespace {
    /// Creates a namespace whose name starts with `prefix`.
    pub fn create(cluster: &Cluster, prefix: &str) -> Result<Self> {
        panics::keep_messages();
        let name = format!("{prefix}-{}", MADE.fetch_add(1, Ordering::Relaxed));
        cluster.kubectl().run(&["create", "namespace", &name])?;
        Ok(Self { kubectl: cluster.kubectl().in_namespace(&name), api: cluster.api()?, name })
    }

    /// Objects, events and the last log lines of the pods; excludes Secrets.
    pub fn report(&self) -> String {
        report(&self.kubectl)
    }
}

/// [`Namespace::report`] for any namespace.
pub fn report(kubectl: &Kubectl) -> String {
    let show = |arguments: &[&str]| {
        let text = kubectl.run(arguments).unwrap_or_else(|error| format!("{error:#}\n"));
        format!("── kubectl {}\n{text}", arguments.join(" "))
    };
    let mut text = show(&["get", "rljobs", "--output=yaml"]);
    text += &show(&["get", "statefulsets,deployments,pods,services", "--output=wide"]);
    text += &show(&["describe", "pods"]);
    text += &show(&["get", "events", "--sort-by=.lastTimestamp"]);
    for pod in kubectl.run(&["get", "pods", "--output=name"]).unwrap_or_default().lines() {
        text += &show(&["logs", pod, "--all-containers", "--tail=60"]);
        text += &show(&["logs", pod, "--all-containers", "--tail=40", "--previous"]);
    }
    text
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}\n{}", self.report(), panics::last_message());
        }
        if let Err(error) = self.kubectl.run(&["delete", "namespace", &self.name, "--wait=false"]) {
            eprintln!("failed to delete namespace {}: {error:#}", self.name);
        }
    }
}
