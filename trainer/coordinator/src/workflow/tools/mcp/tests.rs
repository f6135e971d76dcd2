//! Tests of calls against the Python SDK of MCP, and against servers that do not follow the
//! protocol.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use axum::routing::post;
use rljob_tests::files::{mcp_python, required, workspace};
use serde_json::Map;

use super::*;

/// `tests/mcp/server.py`, as a process of the test.
struct Python {
    process: Child,
    url: String,
}

impl Python {
    /// `None` on machines without the SDK.
    fn start() -> Option<Self> {
        Self::start_program("tests/mcp/server.py")
    }

    /// A program of the SDK, whose token is `good-token` if it demands one.
    fn start_program(program: &str) -> Option<Self> {
        let python = required(mcp_python())?;
        let mut command = Command::new(python);
        command.arg(workspace().join(program)).arg("0").env("TOKEN", "good-token");
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Some(Self { process, url: url.trim().to_owned() })
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn server(url: &str, tool: &str) -> McpServer {
    server_within(url, tool, 30)
}

fn server_within(url: &str, tool: &str, seconds: u32) -> McpServer {
    let spec = json!({"url": url, "timeoutSeconds": seconds});
    McpServer::new(&serde_json::from_value(spec).unwrap(), tool).unwrap()
}

async fn call(server: &McpServer, arguments: &serde_json::Value) -> Result<Answer, VerifierError> {
    let empty = Map::new();
    let arguments = arguments.as_object().unwrap_or(&empty);
    let name = "tool";
    server.call(&Request { name, arguments, session: "run-1", turn: 2, call: 3 }).await
}

/// The error of a call, on one line.
async fn error(url: &str, tool: &str) -> String {
    crate::error_line(&call(&server(url, tool), &json!({})).await.unwrap_err())
}

#[tokio::test]
async fn results_and_errors_of_a_server_are_those_of_the_call() {
    let Some(python) = Python::start() else { return };
    let add = server(&python.url, "add");
    let result = call(&add, &json!({"a": 27, "b": 58})).await.unwrap();
    assert_eq!(result, (Outcome::Result, "85".to_owned()));
    let again = call(&add, &json!({"a": 1, "b": 1})).await.unwrap();
    assert_eq!(again, (Outcome::Result, "2".to_owned()));
    let (outcome, message) = call(&add, &json!({"a": 27})).await.unwrap();
    assert_eq!(outcome, Outcome::Error);
    assert!(message.starts_with("error: ") && message.contains("validation error"), "{message}");
    let metadata = call(&server(&python.url, "metadata"), &json!({})).await.unwrap();
    assert_eq!(metadata, (Outcome::Result, "run-1 2 3".to_owned()));
}

#[tokio::test]
async fn tools_that_are_missing_slow_or_flood_are_errors_with_their_cause() {
    let Some(python) = Python::start() else { return };
    assert_eq!(
        error(&python.url, "subtract").await,
        "the MCP server has no tool subtract; its tools are add, metadata, slow, flood, picture"
    );
    let slow = call(&server_within(&python.url, "slow", 2), &json!({})).await.unwrap_err();
    assert_eq!(crate::error_line(&slow), "no response within 2 s");
    let flood = call(&server(&python.url, "flood"), &json!({})).await.unwrap_err();
    let line = crate::error_line(&flood);
    assert!(!flood.is_outage() && line.contains("of at most 1 MiB"), "{line}");
    let picture = error(&python.url, "picture").await;
    assert!(picture.contains("the result has an image, audio or a link"), "{picture}");
    // A server that restarts has no sessions.
    let add = server(&python.url, "add");
    call(&add, &json!({"a": 1, "b": 1})).await.unwrap();
    drop(python);
    let error = crate::error_line(&call(&add, &json!({"a": 1, "b": 1})).await.unwrap_err());
    assert!(error.starts_with("failed to reach the MCP server: "), "{error}");
}

#[tokio::test]
async fn only_servers_that_are_away_are_outages_and_errors_have_no_secrets() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let url = |route: &str| format!("http://{address}/{route}?key=secret");
    let garbage = || async { ([("content-type", "application/json")], "{\"jsonrpc\": ") };
    let page = || async { "<html>" };
    let router = axum::Router::new().route("/json", post(garbage)).route("/page", post(page));
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    for route in ["json", "page", "missing"] {
        let failed = call(&server(&url(route), "add"), &json!({})).await.unwrap_err();
        let line = crate::error_line(&failed);
        assert!(!failed.is_outage() && !line.contains("secret"), "{route}: {line}");
    }
    serving.abort();
    let _ = serving.await;
    let away = call(&server(&url("json"), "add"), &json!({})).await.unwrap_err();
    assert!(away.is_outage());
    let away = crate::error_line(&away);
    let reached = away.starts_with("failed to reach the MCP server: ");
    assert!(reached && !away.contains("secret"), "{away}");
}

#[tokio::test]
async fn a_session_has_the_token_that_the_file_has_at_its_start() {
    let Some(python) = Python::start_program("manifests/samples/tools/mcp_adder.py") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("lab")).unwrap();
    let write = |token| std::fs::write(folder.path().join("lab/token"), token).unwrap();
    let reference = serde_json::from_value(json!({"name": "lab"})).unwrap();
    let token = Some(SecretToken::in_folder(&reference, folder.path()));
    let add = McpServer { token, ..server(&python.url, "add") };
    write("wrong-token");
    let failed = call(&add, &json!({"a": "1", "b": "2"})).await.unwrap_err();
    let line = crate::error_line(&failed);
    assert!(failed.is_outage() && !line.contains("wrong-token"), "{line}");
    let expected = "the server returned 401 Unauthorized to the token in key token of Secret lab: ";
    assert!(line.starts_with(expected), "{line}");
    write("good-token");
    let sum = call(&add, &json!({"a": "1", "b": "2"})).await.unwrap();
    assert_eq!(sum, (Outcome::Result, "003".to_owned()));
    let anonymous = call(&server(&python.url, "add"), &json!({})).await.unwrap_err();
    assert!(!anonymous.is_outage() && anonymous.kind() == "status", "{anonymous}");
}

#[tokio::test]
async fn a_server_that_repeats_a_rejected_token_does_not_put_it_into_the_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let echo = async |headers: axum::http::HeaderMap| {
        let sent = headers["authorization"].to_str().unwrap().to_owned();
        (axum::http::StatusCode::UNAUTHORIZED, format!("invalid: {sent}"))
    };
    let router = axum::Router::new().route("/", post(echo));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("lab")).unwrap();
    std::fs::write(folder.path().join("lab/token"), "wrong-token").unwrap();
    let reference = serde_json::from_value(json!({"name": "lab"})).unwrap();
    let token = Some(SecretToken::in_folder(&reference, folder.path()));
    let add = McpServer { token, ..server(&url, "add") };
    let line = crate::error_line(&call(&add, &json!({})).await.unwrap_err());
    let expected = "the server returned 401 Unauthorized to the token in key token of Secret lab: ";
    assert!(line.starts_with(expected) && line.ends_with("invalid: Bearer [token]"), "{line}");
}
