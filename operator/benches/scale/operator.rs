//! The operator of a measurement, and its readings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use rljob_tests::sandbox::Program;
use rljob_tests::{Cluster, account, scrape};
use rustix::process::Signal;

use super::stage::{Usage, until};

const PORT: u16 = 18082;

/// The operator process and its metrics.
pub struct Operator {
    program: Program,
    metrics: SocketAddr,
}

/// Metrics and usage of the operator at one time.
pub struct Reading {
    pub at: Instant,
    samples: BTreeMap<String, f64>,
    pub usage: Usage,
}

impl Operator {
    /// Starts an operator whose default image this is, and waits until it is ready.
    pub async fn start(cluster: &Cluster, image: &str) -> Self {
        let name = format!("operator-{}", image.replace(':', "-"));
        // The jobs have volumes of hosts.
        let more = [format!("--image={image}"), "--allow-host-path".to_owned()];
        Self::start_program(cluster, &name, &cluster.kubeconfig().display().to_string(), more).await
    }

    /// Starts the operator of the Deployment in a namespace, with its arguments and service
    /// account, and waits until it is ready. `name`: of its log.
    pub async fn start_deployed(cluster: &Cluster, namespace: &str, name: &str) -> Self {
        let (config, arguments) =
            account::deployed_program(cluster, namespace, "rljob-operator").unwrap();
        Self::start_program(cluster, name, &config, arguments).await
    }

    async fn start_program(
        cluster: &Cluster,
        name: &str,
        config: &str,
        more: impl IntoIterator<Item = String>,
    ) -> Self {
        let first = [
            format!("KUBECONFIG={config}"),
            env!("CARGO_BIN_EXE_rljob-operator").to_owned(),
            format!("--listen=0.0.0.0:{PORT}"),
        ];
        let arguments: Vec<String> = first.into_iter().chain(more).collect();
        let program = cluster.start_program(name, "env".as_ref(), &arguments).unwrap();
        let metrics = SocketAddr::from((cluster.address(), PORT));
        until("the operator", async || scrape::get(metrics, "/readyz").is_ok()).await;
        Self { program, metrics }
    }

    /// Ends the operator as kubelet does.
    pub async fn stop(&self) {
        self.program.signal(Signal::TERM).unwrap();
        until("its end", async || scrape::get(self.metrics, "/healthz").is_err()).await;
    }

    /// The text of its metrics.
    pub fn scrape(&self) -> String {
        scrape::get(self.metrics, "/metrics").unwrap()
    }

    pub fn read(&self) -> Reading {
        Reading {
            at: Instant::now(),
            samples: scrape::metrics(self.metrics).unwrap(),
            usage: Usage::of(&self.program),
        }
    }
}

/// Cores used between two readings.
pub fn cores(first: &Reading, second: &Reading) -> f64 {
    (second.usage.cpu_seconds - first.usage.cpu_seconds)
        / second.at.duration_since(first.at).as_secs_f64()
}

impl Reading {
    fn sample(&self, name: &str) -> f64 {
        self.samples.get(name).copied().unwrap_or_default()
    }

    pub fn requests(&self, verbs: &[&str]) -> f64 {
        verbs
            .iter()
            .map(|verb| self.sample(&format!("rljob_api_requests_total{{verb=\"{verb}\"}}")))
            .sum()
    }

    pub fn writes(&self) -> f64 {
        self.requests(&["create", "update", "patch", "delete"])
    }

    pub fn jobs(&self, state: &str) -> usize {
        self.sample(&format!("rljob_jobs{{state=\"{state}\"}}")) as usize
    }

    pub fn passes(&self) -> f64 {
        self.sample("rljob_reconcile_duration_seconds_count")
    }
}
