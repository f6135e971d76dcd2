//! Prometheus that scrapes an operator as the chart's PodMonitor does, and pods of jobs as those of
//! docs/operations.md do, and evaluates rules every second.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::sandbox::Program;
use crate::{files, scrape};

/// Namespace of the operator in install.yaml.
pub const OPERATOR_NAMESPACE: &str = "rljob-system";
/// Next port of a server.
static PORT: AtomicU16 = AtomicU16::new(19090);

/// A running server. Dropping the value kills it and removes its data.
#[derive(Debug)]
pub struct Prometheus {
    program: Program,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a server in the cluster's network that scrapes an operator. `rules` is the content of
    /// a rule file.
    pub fn start(cluster: &Cluster, operator: SocketAddr, rules: &Value) -> Result<Self> {
        Self::with_pods(cluster, &[(operator, OPERATOR_NAMESPACE)], &[], rules)
    }

    /// A server that scrapes several operators, by address and namespace, and `pods` of jobs, by
    /// address and labels.
    pub fn with_pods(
        cluster: &Cluster,
        operators: &[(SocketAddr, &str)],
        pods: &[(SocketAddr, Value)],
        rules: &Value,
    ) -> Result<Self> {
        let folder = tempfile::tempdir().context("failed to create a folder for Prometheus")?;
        let pod = |(address, labels): &(SocketAddr, Value)| {
            let targets = [address.to_string()];
            json!({"targets": targets, "labels": labels})
        };
        let operators = operators.iter().zip(0..).map(|((address, namespace), number)| {
            let name = format!("rljob-operator-{number}");
            pod(&(*address, json!({"namespace": namespace, "pod": name})))
        });
        let operators: Vec<Value> = operators.collect();
        let pods: Vec<Value> = pods.iter().map(pod).collect();
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{
                "job_name": "rljob-system/rljob-operator",
                "honor_labels": true,
                "static_configs": operators,
            }, {
                "job_name": "pods-of-jobs",
                "static_configs": pods,
            }],
        });
        // JSON is YAML.
        fs::write(folder.path().join("prometheus.yaml"), config.to_string())?;
        fs::write(folder.path().join("rules.yaml"), rules.to_string())?;
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let arguments = [
            format!("--config.file={}", folder.path().join("prometheus.yaml").display()),
            format!("--storage.tsdb.path={}", folder.path().join("data").display()),
            format!("--web.listen-address=0.0.0.0:{port}"),
            "--log.level=warn".to_owned(),
        ];
        let name = format!("prometheus-{port}");
        let program =
            cluster.start_program(&name, &files::prometheus("prometheus")?, &arguments)?;
        let address = SocketAddr::from((cluster.address(), port));
        Ok(Self { program, address, _folder: folder })
    }

    /// Labels of the alerts that fire, in the order of their names.
    pub fn firing(&self) -> Result<Vec<Value>> {
        let data = self.get("/api/v1/alerts")?;
        let alerts = data["alerts"].as_array().context("the response has no alerts")?;
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        let mut labels: Vec<Value> = firing.map(|alert| alert["labels"].clone()).collect();
        labels.sort_by_key(ToString::to_string);
        Ok(labels)
    }

    /// Whether a metric has samples now.
    pub fn has(&self, metric: &str) -> Result<bool> {
        let data = self.get(&format!("/api/v1/query?query={metric}"))?;
        Ok(data["result"].as_array().is_some_and(|samples| !samples.is_empty()))
    }

    /// Number of series that a query has now.
    pub fn series(&self, query: &str) -> Result<usize> {
        let data = self.get(&format!("/api/v1/query?query={}", encoded(query)))?;
        data["result"].as_array().map(Vec::len).context("the response has no result")
    }

    /// Values of a label of the series that a selector matches.
    pub fn label_values(&self, selector: &str, label: &str) -> Result<Value> {
        self.get(&format!("/api/v1/label/{label}/values?match[]={}", encoded(selector)))
    }

    /// Log so far.
    pub fn output(&self) -> String {
        self.program.output()
    }

    fn get(&self, path: &str) -> Result<Value> {
        let mut answer: Value = serde_json::from_str(&scrape::get(self.address, path)?)
            .with_context(|| format!("the response to {path} is not JSON"))?;
        ensure!(answer["status"] == "success", "GET {path}: {answer}");
        Ok(answer["data"].take())
    }
}

fn encoded(query: &str) -> String {
    query.bytes().fold(String::new(), |mut encoded, byte| {
        let _ = write!(encoded, "%{byte:02X}");
        encoded
    })
}
