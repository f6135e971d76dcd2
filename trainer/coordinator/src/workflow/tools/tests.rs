//! Tests of calls against a real server.

use std::path::PathBuf;

use axum::Json;
use axum::http::StatusCode;
use axum::routing::post;
use prometheus::Registry;
use prometheus::proto::MetricFamily;
use serde_json::{Value, json};

use super::*;
use crate::rollout::request::Purpose;

/// Turn `number` of a sample of a row that offers all tools.
fn turn(number: u32) -> ToolTurn<'static> {
    ToolTurn { key: KEY, number, offered: None }
}

const KEY: Key = Key { purpose: Purpose::Rollout, step: 2, position: 7, index: 3, turn: 0 };

/// Answers with the request, or rejects arguments without `a`.
async fn echo(Json(request): Json<Value>) -> (StatusCode, String) {
    match request["arguments"].get("a") {
        Some(_) => (StatusCode::OK, request.to_string()),
        None => (StatusCode::BAD_REQUEST, "a is missing".to_owned()),
    }
}

/// Tools whose server is `echo`.
async fn tools() -> ToolSet {
    tools_at("/echo").await
}

async fn tools_at(path: &str) -> ToolSet {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{path}", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/echo", post(echo));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let spec = json!({"maxTurns": 2, "tools": [
        {"name": "add", "description": "Adds.", "http": {"url": url, "retries": 0}},
        {"name": "halve", "description": "Halves.", "http": {"url": url}},
    ]});
    ToolSet::new(&serde_json::from_value(spec).unwrap(), "Run", &Runner::Program(PathBuf::new()))
        .unwrap()
}

fn counts() -> (Registry, ToolCalls) {
    let registry = Registry::new();
    let counts = ToolCalls::new(&registry).unwrap();
    (registry, counts)
}

/// Tools, outcomes and numbers of counted calls.
fn counted(registry: &Registry) -> Vec<(String, String, u64)> {
    let families = registry.gather();
    let of = |metric: &prometheus::proto::Metric| {
        let label = |name: &str| {
            let label = metric.get_label().iter().find(|label| label.name() == name);
            label.unwrap().value().to_owned()
        };
        (label("tool"), label("outcome"), metric.get_counter().get_value() as u64)
    };
    let mut found: Vec<_> = families.iter().flat_map(MetricFamily::get_metric).map(of).collect();
    found.sort();
    found
}

fn owned((tool, outcome, number): (&str, &str, u64)) -> (String, String, u64) {
    (tool.to_owned(), outcome.to_owned(), number)
}

fn call(name: &str, arguments: &Value) -> ToolCall {
    let arguments = arguments.as_object().unwrap().clone();
    ToolCall { name: name.to_owned(), arguments }
}

#[tokio::test]
async fn results_and_errors_follow_in_the_order_of_the_calls() {
    let calls = [
        Ok(call("add", &json!({"a": 1}))),
        Err(ToolCallError::NoName),
        Ok(call("add", &json!({}))),
        Ok(call("subtract", &json!({}))),
    ];
    let (registry, counts) = counts();
    let messages = tools().await.execute(turn(2), &calls, &counts).await.unwrap();
    assert!(messages.iter().all(|message| message.role == "tool"));
    let request = json!({
        "name": "add", "arguments": {"a": 1}, "session": "run-rollout-2-7-3", "turn": 2, "call": 0,
    });
    let request = request.to_string();
    let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
    let expected = [
        request.as_str(),
        "error: the tool call has no name: add \"name\"",
        "error: a is missing",
        "error: no tool subtract; the tools are add, halve",
    ];
    assert_eq!(contents, expected);
    let outcomes =
        [("", "malformed", 1), ("", "unknown", 1), ("add", "error", 1), ("add", "result", 1)];
    assert_eq!(counted(&registry), outcomes.map(owned));
}

/// A tool that the row does not offer is answered as one that does not exist.
#[tokio::test]
async fn a_row_offers_its_own_tools_only() {
    let all = tools().await;
    let add: Tools = all.described().iter().filter(|tool| tool.name() == "add").cloned().collect();
    let calls = ["add", "halve", "other"].map(|name| Ok(call(name, &json!({"a": 1}))));
    let (registry, counts) = counts();
    let offered = ToolTurn { offered: Some(&add), ..turn(1) };
    let messages = all.execute(offered, &calls, &counts).await.unwrap();
    assert!(messages[0].content.starts_with('{'), "{messages:?}");
    let unknown = messages[1..].iter().map(|message| message.content.as_str());
    let expected =
        ["error: no tool halve; the tools are add", "error: no tool other; the tools are add"];
    assert_eq!(unknown.collect::<Vec<_>>(), expected);
    assert_eq!(counted(&registry), [("", "unknown", 2), ("add", "result", 1)].map(owned));

    let none = ToolTurn { offered: Some(&Tools::default()), ..turn(1) };
    let messages = all.execute(none, &calls[..1], &counts).await.unwrap();
    assert_eq!(messages[0].content, "error: no tool add; there are no tools");
}

#[tokio::test]
async fn a_completion_has_a_bounded_number_of_calls() {
    let calls = vec![Ok(call("none", &json!({}))); MAX_CALLS + 5];
    let (registry, counts) = counts();
    let messages = tools().await.execute(turn(1), &calls, &counts).await.unwrap();
    assert_eq!(messages.len(), MAX_CALLS + 1);
    let last = messages.last().unwrap();
    assert_eq!(last.content, "error: only the first 32 calls were executed");
    let outcomes = [("", "skipped", 5), ("", "unknown", MAX_CALLS as u64)];
    assert_eq!(counted(&registry), outcomes.map(owned));
}

#[tokio::test]
async fn a_tool_that_fails_rejects_the_sample_and_names_itself() {
    let tools = tools_at("/missing").await;
    let (registry, counts) = counts();
    let calls = [Ok(call("add", &json!({})))];
    let error = tools.execute(turn(1), &calls, &counts).await.unwrap_err();
    assert_eq!(counted(&registry), [owned(("add", "failed", 1))]);
    let line = crate::error_line(&error);
    assert!(line.starts_with("tool add (http://127.0.0.1:"), "{line}");
    let cause = "failed 1 times for a completion; last error: the server returned 404 Not Found: ";
    assert!(line.contains(cause), "{line}");
}

#[tokio::test]
async fn turns_are_limited() {
    let tools = tools().await;
    assert_eq!([1, 2].map(|number| tools.may_continue(number)), [true, false]);
}
