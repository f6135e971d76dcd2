//! Server processes of tests and benchmarks, and an HTTP client for either server.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rljob_tests::files::{required, sglang};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

/// Time limit of every wait.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Flag of the engines of a run.
const INCREMENTAL: &str = "--incremental-streaming-output";

pub struct Server {
    pub url: String,
    pub client: reqwest::Client,
    /// Shell that leads the process group.
    pub child: Child,
}

impl Server {
    pub async fn embedded_of(model: &Path, dtype: &str) -> Self {
        Self::embedded_with(model, dtype, &[]).await
    }

    pub async fn embedded_with(model: &Path, dtype: &str, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rljob-engine"));
        let port = free_port();
        command.args([
            "--model-path",
            model.to_str().unwrap(),
            "--dtype",
            dtype,
            "--port",
            &port.to_string(),
            INCREMENTAL,
        ]);
        command.args(flags);
        Self::start(command, port).await
    }

    /// `None` if SGLang is not installed.
    pub async fn sglang_of(model: &Path, dtype: &str) -> Option<Self> {
        Self::sglang_with(model, dtype, &[]).await
    }

    /// As `sglang_of`, with further flags.
    pub async fn sglang_with(model: &Path, dtype: &str, flags: &[&str]) -> Option<Self> {
        let folder = required(sglang())?;
        let port = free_port();
        let mut command = Command::new(folder.join("serve.sh"));
        command.args([model.to_str().unwrap(), &port.to_string(), "--dtype", dtype, INCREMENTAL]);
        command.args(flags);
        Some(Self::start(command, port).await)
    }

    /// Starts a separate process group. It is killed when this value is dropped or this process
    /// exits: the shell then reads the end of its input.
    async fn start(command: Command, port: u16) -> Self {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", r#""$@" & read -r _; kill -9 0"#, "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        let log =
            std::env::temp_dir().join(format!("rljob-contract-{}-{port}.log", std::process::id()));
        let file = std::fs::File::create(&log).unwrap();
        shell
            .env("OMP_NUM_THREADS", threads())
            .stdin(Stdio::piped())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .process_group(0);
        // SGLang closes idle connections, possibly while one is reused.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        let server =
            Self { url: format!("http://127.0.0.1:{port}"), client, child: shell.spawn().unwrap() };
        let ready = async {
            // SGLang returns 200 once it has generated a token.
            while !server
                .client
                .get(format!("{}/health", server.url))
                .send()
                .await
                .is_ok_and(|response| response.status().is_success())
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let started = tokio::time::timeout(LIMIT, ready).await;
        assert!(
            started.is_ok(),
            "the server did not start:\n{}",
            std::fs::read_to_string(&log).unwrap_or_default()
        );
        let _ = std::fs::remove_file(log);
        server
    }

    pub async fn stop(self) {
        tokio::task::spawn_blocking(move || drop(self)).await.unwrap();
    }

    /// Sends a request; returns status and JSON or text.
    pub async fn ask(&self, method: &str, route: &str, body: Option<&Value>) -> (u16, Value) {
        let mut request = self
            .client
            .request(method.parse().unwrap(), format!("{}{route}", self.url))
            .timeout(LIMIT);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub async fn post(&self, route: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", route, Some(body)).await
    }

    /// Sends a `/generate` request that must succeed.
    pub async fn generate(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/generate", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_raw(self.child.id() as i32).unwrap(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Number of compute threads per server; several servers run at once.
fn threads() -> String {
    std::env::var("OMP_NUM_THREADS").unwrap_or_else(|_| "1".to_owned())
}

/// Returns an unused port.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
