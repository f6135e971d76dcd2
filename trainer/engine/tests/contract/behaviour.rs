//! Streams, aborts, pauses and flushes.

use serde_json::{Value, json};

use crate::requests::{greedy, joined};
use crate::server::{LIMIT, Server};

const PROMPT: [i64; 4] = [11, 12, 13, 14];

/// Completion length that outlasts every wait of a test.
const LONG: u32 = 3000;

fn ids(answer: &Value) -> Vec<i64> {
    serde_json::from_value(answer["output_ids"].clone()).unwrap()
}

fn aborted() -> Value {
    json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null})
}

pub async fn events_of_a_stream_join_to_the_whole_response_and_end_with_done(server: &Server) {
    let mut body = greedy("stream", &PROMPT, 40);
    body["return_logprob"] = json!(true);
    let whole = server.generate(&body).await;
    let events = server.running(body.clone()).await.events().await;
    body["sampling_params"]["stream_interval"] = json!(20);
    let rare = server.running(body).await.events().await;
    assert!(events.len() > 1 && rare.len() <= 3, "{} events, {rare:?}", events.len());
    let mut tokens = 0;
    for event in &events {
        let meta = &event["meta_info"];
        let rows = meta["output_token_logprobs"].as_array().unwrap();
        let with_logprobs: Vec<_> = rows.iter().map(|row| row[1].as_i64().unwrap()).collect();
        assert_eq!(with_logprobs, ids(event), "{event}");
        tokens += ids(event).len();
        assert_eq!(meta["completion_tokens"], json!(tokens), "{event}");
    }
    let (last, before) = events.split_last().unwrap();
    assert!(before.iter().all(|event| event["meta_info"]["finish_reason"].is_null()));
    assert_eq!(last["meta_info"]["finish_reason"], json!({"type": "length", "length": 40}));
    let joined = joined(&events);
    assert_eq!((ids(&joined), &joined["text"]), (ids(&whole), &whole["text"]));
}

pub async fn a_batch_response_is_in_order_and_its_stream_has_indexes(server: &Server) {
    let one = async |prompt: &[i64]| ids(&server.generate(&greedy("one", prompt, 6)).await);
    let expected = [one(&[21, 22]).await, one(&[31]).await];
    let mut body = greedy("batch", &[], 6);
    body["input_ids"] = json!([[21, 22], [31]]);
    let answers = server.generate(&body).await;
    assert_eq!([ids(&answers[0]), ids(&answers[1])], expected);
    assert_eq!(
        [&answers[0]["meta_info"]["id"], &answers[1]["meta_info"]["id"]],
        [&json!("batch_0"), &json!("batch_1")]
    );
    let events = server.running(body).await.events().await;
    for (index, expected) in expected.iter().enumerate() {
        let own = events.iter().filter(|event| event["index"] == json!(index));
        assert_eq!(ids(&joined(&own.cloned().collect::<Vec<_>>())), *expected);
    }
}

pub async fn abort_matches_an_id_and_ids_that_start_with_it(server: &Server) {
    let mut running = Vec::new();
    for rid in ["x-1", "x-10", "x-2"] {
        running.push(server.running(greedy(rid, &PROMPT, LONG)).await);
    }
    assert_eq!(server.post("/abort_request", &json!({"rid": "x-"})).await, (200, json!("")));
    assert_eq!(server.post("/abort_request", &json!({"rid": "x-1"})).await, (200, json!("")));
    let mut running = running.into_iter();
    for _ in 0..2 {
        let answer = running.next().unwrap().answer().await;
        assert_eq!(answer["meta_info"]["finish_reason"], aborted());
        assert!((1..LONG as usize).contains(&ids(&answer).len()));
    }
    assert_eq!(server.post("/abort_request", &json!({"abort_all": true})).await, (200, json!("")));
    assert_eq!(running.next().unwrap().answer().await["meta_info"]["finish_reason"], aborted());
}

pub async fn pause_abort_finishes_running_requests_and_holds_new_ones(server: &Server) {
    let running = server.running(greedy("runs.", &PROMPT, LONG)).await;
    let paused = json!({"message": "Generation paused successfully.", "status": "ok"});
    assert_eq!(server.post("/pause_generation", &json!({"mode": "abort"})).await, (200, paused));
    assert_eq!(running.answer().await["meta_info"]["finish_reason"], aborted());
    let held = server.spawn(&greedy("held.", &PROMPT, 5));
    assert_eq!(server.ask("GET", "/model_info", None).await.0, 200);
    assert_eq!(server.ask("GET", "/flush_cache", None).await.0, 200);
    assert!(!held.is_finished());
    let continued = json!({"message": "Generation continued successfully.", "status": "ok"});
    assert_eq!(server.post("/continue_generation", &json!({})).await, (200, continued));
    let answer = tokio::time::timeout(LIMIT, held).await.unwrap().unwrap();
    assert_eq!(answer["meta_info"]["finish_reason"], json!({"type": "length", "length": 5}));
}

pub async fn health_is_503_while_paused(server: &Server) {
    assert_eq!(server.ask("GET", "/health", None).await.0, 200);
    assert_eq!(server.post("/pause_generation", &json!({"mode": "abort"})).await.0, 200);
    assert_eq!(server.ask("GET", "/health", None).await.0, 503);
    assert_eq!(server.ask("GET", "/model_info", None).await.0, 200);
    assert_eq!(server.post("/continue_generation", &json!({})).await.0, 200);
    assert_eq!(server.ask("GET", "/health", None).await.0, 200);
}

pub async fn paused_requests_continue_after_retract_and_in_place(server: &Server) {
    let expected = ids(&server.generate(&greedy("whole", &PROMPT, 600)).await);
    for (mode, retractions) in [("retract", 1), ("in_place", 0)] {
        let running = server.running(greedy(mode, &PROMPT, 600)).await;
        assert_eq!(server.post("/pause_generation", &json!({"mode": mode})).await.0, 200);
        assert_eq!(server.ask("GET", "/flush_cache", None).await.0, 400, "{mode}");
        assert_eq!(server.post("/continue_generation", &json!({})).await.0, 200);
        let answer = running.answer().await;
        assert_eq!(answer["meta_info"]["num_retractions"], json!(retractions), "{mode}");
        assert_eq!(ids(&answer).len(), expected.len());
        assert_eq!(ids(&answer)[..20], expected[..20], "{mode}");
    }
}

pub async fn a_flush_needs_an_idle_server(server: &Server) {
    let running = server.running(greedy("busy.", &PROMPT, LONG)).await;
    let (status, message) = server.ask("GET", "/flush_cache", None).await;
    assert_eq!((status, message.as_str().unwrap().trim_end()), (400, "Flush cache failed."));
    let (status, message) = server.ask("GET", "/flush_cache?timeout=0.05", None).await;
    assert_eq!(
        (status, message.as_str().unwrap().trim_end()),
        (400, "Timed out waiting for idle state.")
    );
    server.post("/abort_request", &json!({"rid": "busy."})).await;
    running.answer().await;
    assert_eq!(server.ask("POST", "/flush_cache?timeout=10", None).await.0, 200);
}

/// Limits that leave one candidate make any temperature greedy. Top-p and min-p report the
/// log-probability of the whole distribution at that temperature; top-k 1 reports the unscaled one.
pub async fn limits_that_leave_one_candidate_are_greedy(server: &Server) {
    let greedy_ids = ids(&server.generate(&greedy("greedy", &PROMPT, 12)).await);
    let mut body = greedy("limited", &PROMPT, 12);
    body["return_logprob"] = json!(true);
    let mut logprobs = Vec::new();
    for (key, value, temperature) in [
        ("top_p", json!(1e-6), 2.0),
        ("min_p", json!(1.0), 2.0),
        ("top_k", json!(1), 2.0),
        ("top_k", json!(1), 1.0),
    ] {
        body["sampling_params"] = json!({"temperature": temperature, "max_new_tokens": 12,
            "ignore_eos": true, key: value});
        let answer = server.generate(&body).await;
        assert_eq!(ids(&answer), greedy_ids, "{key}");
        logprobs.push(answer["meta_info"]["output_token_logprobs"][0][0].as_f64().unwrap());
    }
    let [top_p, min_p, top_k, plain] = logprobs[..] else { unreachable!() };
    assert!(
        (top_p - min_p).abs() < 1e-4 && (top_k - plain).abs() < 1e-4 && top_p < plain,
        "{logprobs:?}"
    );
}
