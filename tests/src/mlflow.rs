//! MLflow tracking server with an own database. Dropping the value stops the server and
//! removes the database.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::{Client, Method};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::files::mlflow;
use crate::process::{logged, wait_until};

/// Time limit of a start, which imports much Python, and creates tables the first time.
const LIMIT: Duration = Duration::from_secs(240);
/// Time limit of a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// A server.
#[derive(Debug)]
pub struct Mlflow {
    folder: TempDir,
    port: u16,
    server: Option<Child>,
}

impl Mlflow {
    /// Starts a server with an empty database.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir().context("failed to create a folder for MLflow")?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut mlflow = Self { folder, port, server: None };
        mlflow.restart()?;
        Ok(mlflow)
    }

    /// Starts the server on the same port with the same database.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let log = self.folder.path().join("log");
        let database = self.folder.path().join("mlflow.db");
        let mut command = Command::new(mlflow()?);
        command
            .args(["server", "--host=127.0.0.1", "--workers=1"])
            .arg(format!("--port={}", self.port))
            .arg(format!("--backend-store-uri=sqlite:///{}", database.display()))
            .current_dir(self.folder.path())
            // It has worker processes.
            .process_group(0);
        let server = logged(&mut command, &log)?.spawn();
        self.server = Some(server.context("failed to start MLflow")?);
        wait_until("MLflow to respond", LIMIT, || {
            Ok(self.request(Method::GET, "/health", &Value::Null).is_ok())
        })
        .with_context(|| fs::read_to_string(&log).unwrap_or_default())
    }

    /// Kills the server; the database is kept.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            kill_process_group(Pid::from_child(&server), Signal::KILL)?;
            server.wait()?;
        }
        Ok(())
    }

    /// URL of the server.
    pub fn uri(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Response to a GET of the REST API.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.json(Method::GET, path, &Value::Null)
    }

    /// Response to a POST of the REST API.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(Method::POST, path, body)
    }

    fn json(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let answer = self.request(method, &format!("/api/2.0/mlflow/{path}"), body)?;
        serde_json::from_str(&answer).with_context(|| format!("the answer to {path}: {answer}"))
    }

    fn request(&self, method: Method, path: &str, body: &Value) -> Result<String> {
        let request = Client::new().request(method, format!("{}{path}", self.uri()));
        let request = if body.is_null() { request } else { request.json(body) };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let response = request.timeout(REQUEST_LIMIT).send().await?;
            Ok(response.error_for_status()?.text().await?)
        })
    }
}

impl Drop for Mlflow {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
