//! Tests of calls against a real server.

use axum::Json;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::json;

use super::*;
use crate::rollout::request::Purpose;

const KEY: Key = Key { purpose: Purpose::Rollout, step: 2, position: 7, index: 3, turn: 0 };

/// Answers with the request, or rejects arguments without `a`.
async fn echo(Json(request): Json<Value>) -> (StatusCode, String) {
    match request["arguments"].get("a") {
        Some(_) => (StatusCode::OK, request.to_string()),
        None => (StatusCode::BAD_REQUEST, "a is missing".to_owned()),
    }
}

/// Tools whose server is `echo`.
async fn tools() -> ToolServers {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/echo", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/echo", post(echo));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let spec = json!({"maxTurns": 2, "tools": [
        {"name": "add", "description": "Adds.", "http": {"url": url, "retries": 0}},
        {"name": "halve", "description": "Halves.", "http": {"url": url}},
    ]});
    ToolServers::new(&serde_json::from_value(spec).unwrap(), "Run").unwrap()
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
    let messages = tools().await.execute(KEY, 2, &calls).await.unwrap();
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
}

#[tokio::test]
async fn a_completion_has_a_bounded_number_of_calls() {
    let calls = vec![Ok(call("none", &json!({}))); MAX_CALLS + 5];
    let messages = tools().await.execute(KEY, 1, &calls).await.unwrap();
    assert_eq!(messages.len(), MAX_CALLS + 1);
    let last = messages.last().unwrap();
    assert_eq!(last.content, "error: only the first 32 calls were executed");
}

#[tokio::test]
async fn a_tool_that_fails_rejects_the_sample_and_names_itself() {
    let mut tools = tools().await;
    let server = tools.servers.get_mut("add").unwrap();
    server.url = server.url.replace("/echo", "/missing");
    let error = tools.execute(KEY, 1, &[Ok(call("add", &json!({})))]).await.unwrap_err();
    let line = crate::error_line(&error);
    assert!(line.starts_with("tool add (http://127.0.0.1:"), "{line}");
    let cause = "failed 1 times for a completion; last error: the server returned 404 Not Found: ";
    assert!(line.contains(cause), "{line}");
}

#[tokio::test]
async fn turns_are_limited_and_results_are_text() {
    let tools = tools().await;
    assert_eq!([1, 2].map(|number| tools.may_continue(number)), [true, false]);
    assert_eq!(result_of(Ok(b"{\"sum\": 3}".to_vec())).unwrap(), "{\"sum\": 3}");
    let error = result_of(Ok(vec![0xff])).unwrap_err().to_string();
    assert!(error.contains("expected text or JSON: invalid utf-8 sequence"), "{error}");
}
