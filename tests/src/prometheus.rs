//! Prometheus that evaluates rules every second, or more often. It discovers the targets of
//! PodMonitors with the configuration that the Prometheus Operator generates, or scrapes given
//! addresses: an operator as the chart's PodMonitor does, and pods of jobs as docs/operations.md
//! says.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::sandbox::Program;
use crate::{files, process, scrape};

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
        Self::with_config(cluster, &config.to_string(), rules)
    }

    /// A server that discovers the targets of PodMonitors in [`OPERATOR_NAMESPACE`], as an
    /// administrator of the cluster.
    pub fn with_monitors(cluster: &Cluster, monitors: &[Value], rules: &Value) -> Result<Self> {
        let kubeconfig: Value = serde_json::from_str(&fs::read_to_string(cluster.kubeconfig())?)?;
        let (server, user) =
            (&kubeconfig["clusters"][0]["cluster"], &kubeconfig["users"][0]["user"]);
        let prometheus = json!({
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "Prometheus",
            "metadata": {"name": "test", "namespace": OPERATOR_NAMESPACE},
            "spec": {
                "version": "3.16.0",
                "scrapeInterval": "30s", // the default of the CRD
                // Alerts wait for scrapes, not for evaluations.
                "evaluationInterval": "200ms",
                "podMonitorSelector": {},
                "apiserverConfig": {
                    "host": server["server"],
                    "tlsConfig": {
                        "caFile": server["certificate-authority"],
                        "certFile": user["client-certificate"],
                        "keyFile": user["client-key"],
                    },
                },
            },
        });
        let objects = json!({"prometheus": prometheus, "podMonitors": monitors});
        let mut command = Command::new(files::prometheus_operator("prometheus-config")?);
        let config = process::run_with_input(&mut command, &objects.to_string())?;
        // A pod of the operator replaces its variables, and mounts files of rules that it names.
        let config = config.replace("$(SHARD)", "0").replace("$(POD_NAME)", "prometheus-test-0");
        Self::with_config(cluster, &format!("{config}rule_files: [rules.yaml]\n"), rules)
    }

    fn with_config(cluster: &Cluster, config: &str, rules: &Value) -> Result<Self> {
        let folder = tempfile::tempdir().context("failed to create a folder for Prometheus")?;
        fs::write(folder.path().join("prometheus.yaml"), config)?;
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

    /// Active targets, as the API has them.
    pub fn targets(&self) -> Result<Vec<Value>> {
        let mut data = self.get("/api/v1/targets?state=active")?;
        serde_json::from_value(data["activeTargets"].take()).context("the response has no targets")
    }

    /// Whether a metric has samples now.
    pub fn has(&self, metric: &str) -> Result<bool> {
        let data = self.get(&format!("/api/v1/query?query={metric}"))?;
        Ok(data["result"].as_array().is_some_and(|samples| !samples.is_empty()))
    }

    /// Number of series that a query has now.
    pub fn series(&self, query: &str) -> Result<usize> {
        self.labels(query).map(|series| series.len())
    }

    /// Labels of the series that a query has now.
    pub fn labels(&self, query: &str) -> Result<Vec<Value>> {
        let data = self.get(&format!("/api/v1/query?query={}", encoded(query)))?;
        let series = data["result"].as_array().context("the response has no result")?;
        Ok(series.iter().map(|series| series["metric"].clone()).collect())
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
