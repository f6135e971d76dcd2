//! OpenTelemetry Collector that receives OTLP over HTTP and writes traces to a file. Dropping the
//! value stops the collector and removes the file.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::files::otelcol;
use crate::process::start_server;

/// Time limit of a start.
const LIMIT: Duration = Duration::from_secs(60);

/// A collector.
#[derive(Debug)]
pub struct Otelcol {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Otelcol {
    /// Starts a collector without traces.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir().context("failed to create a folder for the collector")?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let endpoint = format!("127.0.0.1:{port}");
        // A file with rotation is written without a buffer: a killed collector loses nothing.
        let file = json!({"path": folder.path().join("traces.json"), "rotation": {}});
        let config = json!({
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": endpoint}}}},
            "exporters": {"file": file},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            },
        });
        // JSON is YAML.
        fs::write(folder.path().join("config.yaml"), config.to_string())?;
        let mut collector = Self { folder, port, process: None };
        collector.restart()?;
        Ok(collector)
    }

    /// Starts the collector on the same port with the same file.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let mut command = Command::new(otelcol()?);
        command.arg("--config=config.yaml").current_dir(self.folder.path());
        let log = self.folder.path().join("log");
        self.process = Some(start_server(&mut command, &log, self.port, LIMIT)?);
        Ok(())
    }

    /// Kills the collector; the file is kept.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Base URL of OTLP over HTTP.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The `resourceSpans` that were received, as OTLP has them in JSON, in the order of requests.
    pub fn resource_spans(&self) -> Result<Vec<Value>> {
        let path = self.folder.path().join("traces.json");
        let text = fs::read_to_string(path).context("the collector has received nothing")?;
        let mut all = Vec::new();
        for line in text.lines() {
            let mut request: Value = serde_json::from_str(line)?;
            all.extend(
                request["resourceSpans"].as_array_mut().map(std::mem::take).unwrap_or_default(),
            );
        }
        Ok(all)
    }
}

impl Drop for Otelcol {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
