//! Pause, abort, flush, health and authentication.

use rljob_protocol::sglang::FinishReason;
use serde_json::json;

use crate::harness::{request, start};

fn aborted(message: &str) -> FinishReason {
    FinishReason::Abort { message: message.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_finishes_requests_in_flight_and_holds_new_ones_until_continue() {
    let engine = start(&["--max-running-requests", "1"]).await;
    let running = engine.spawn(&request("a", vec![5, 6, 7], 8000, 3));
    engine.until("sglang:num_running_reqs", 1.0).await;
    let waiting = engine.spawn(&request("b", vec![5], 8, 3));
    engine.until("sglang:num_queue_reqs", 1.0).await;

    let paused = engine.post("/pause_generation", &json!({"mode": "abort"})).await;
    assert_eq!(
        paused,
        (200, json!({"message": "Generation paused successfully.", "status": "ok"}))
    );
    let (running, waiting) = (running.await.unwrap(), waiting.await.unwrap());
    assert_eq!(running.meta_info.finish_reason, Some(aborted("Aborted")));
    assert!((1..8000).contains(&running.output_ids.len()));
    assert_eq!(
        (waiting.meta_info.finish_reason, waiting.output_ids),
        (Some(aborted("Abort in waiting queue")), vec![])
    );

    let held = engine.spawn(&request("c", vec![5], 8, 3));
    engine.until("sglang:num_queue_reqs", 1.0).await;
    let (client, url) = (engine.client.clone(), format!("{}/health", engine.url));
    let health = tokio::spawn(async move { client.get(url).send().await.unwrap().status() });
    assert_eq!(engine.get("/model_info").await.0, 200);
    assert_eq!(engine.get("/flush_cache").await.0, 200);
    engine.post("/pause_generation", &json!({"mode": "abort"})).await;
    assert!(!held.is_finished() && !health.is_finished());

    let continued = engine.post("/continue_generation", &json!({})).await;
    assert_eq!(
        continued,
        (200, json!({"message": "Generation continued successfully.", "status": "ok"}))
    );
    assert_eq!(
        held.await.unwrap().meta_info.finish_reason,
        Some(FinishReason::Length { length: 8 })
    );
    assert_eq!(health.await.unwrap(), 200);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_matches_an_id_and_ids_that_start_with_it() {
    let engine = start(&[]).await;
    let mut requests = Vec::new();
    for rid in ["x-1", "x-10", "x-2"] {
        requests.push(engine.spawn(&request(rid, vec![5, 6, 7], 8000, 3)));
    }
    engine.until("sglang:num_running_reqs", 3.0).await;
    assert_eq!(engine.post("/abort_request", &json!({"rid": "x-"})).await, (200, json!("")));
    assert_eq!(engine.post("/abort_request", &json!({"rid": "x-1"})).await, (200, json!("")));
    engine.until("sglang:num_running_reqs", 1.0).await;
    assert_eq!(engine.post("/abort_request", &json!({"abort_all": true})).await, (200, json!("")));
    for request in requests {
        assert_eq!(request.await.unwrap().meta_info.finish_reason, Some(aborted("Aborted")));
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_needs_an_idle_engine_and_drops_cached_prompts() {
    let engine = start(&[]).await;
    let busy = engine.spawn(&request("a", vec![5, 6, 7], 8000, 3));
    engine.until("sglang:num_running_reqs", 1.0).await;
    assert_eq!(engine.get("/flush_cache").await, (400, "Flush cache failed.\n".to_owned()));
    assert_eq!(
        engine.get("/flush_cache?timeout=0.01").await,
        (400, "Timed out waiting for idle state.".to_owned())
    );
    engine.post("/abort_request", &json!({"rid": "a"})).await;
    busy.await.unwrap();
    assert_eq!(engine.get("/flush_cache?timeout=10").await.0, 200);
    assert_eq!(
        engine.generate(&request("b", vec![5, 6, 7], 1, 3)).await.meta_info.cached_tokens,
        0
    );
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_generate_generates_a_token() {
    let engine = start(&[]).await;
    assert_eq!(engine.get("/health_generate").await.0, 200);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_and_admin_keys_guard_separate_routes() {
    let keys = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = keys.path().join(name);
        std::fs::write(&path, format!("{name}-key\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let engine =
        start(&["--api-key-file", &file("api"), "--admin-api-key-file", &file("admin")]).await;
    let status = async |route: &str, key: Option<&str>| {
        let request = engine.client.post(format!("{}{route}", engine.url)).body("{}");
        key.map_or(request.try_clone().unwrap(), |key| request.bearer_auth(key))
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    let control = "/continue_generation";
    assert_eq!(
        [
            status(control, None).await,
            status(control, Some("api-key")).await,
            status(control, Some("admin-key")).await
        ],
        [401, 401, 200]
    );
    let generate = "/generate";
    assert_eq!(
        [
            status(generate, None).await,
            status(generate, Some("admin-key")).await,
            status(generate, Some("api-key")).await
        ],
        [401, 401, 400]
    );
    assert_eq!(engine.get("/model_info").await, (401, r#"{"error":"Unauthorized"}"#.to_owned()));
    assert_eq!([engine.get("/health").await.0, engine.get("/metrics").await.0], [200, 200]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_sglang_can_send_its_defaults_read_the_server_and_rename_the_weights() {
    let engine = start(&[]).await;
    let body = json!({
        "input_ids": [5, 6], "lora_path": null, "log_metrics": true,
        "sampling_params": {"max_new_tokens": 2, "repetition_penalty": 1.0, "regex": null},
    });
    assert_eq!(engine.post("/generate", &body).await.0, 200);
    let adapter = json!({"input_ids": [5, 6], "lora_path": "adapter"});
    let (status, error) = engine.post("/generate", &adapter).await;
    let message = error["message"].as_str().unwrap();
    assert!(status == 400 && message.starts_with("unknown field `lora_path`"), "{error}");

    let renamed = engine.post("/update_weight_version", &json!({"new_version": "v7"})).await;
    let expected = json!({
        "success": true, "message": "Weight version updated to v7", "new_version": "v7",
    });
    assert_eq!(renamed, (200, expected));
    for route in ["/server_info", "/get_server_info"] {
        let (status, info) = engine.get(route).await;
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        assert_eq!((status, &info["weight_version"]), (200, &json!("v7")), "{info}");
    }
    assert_eq!(engine.get("/nowhere").await, (404, r#"{"detail":"Not Found"}"#.to_owned()));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_is_the_models_or_that_of_the_flag_and_a_longer_request_is_rejected() {
    let request = |tokens: usize, new: u32| {
        let sampling = json!({"max_new_tokens": new});
        json!({"input_ids": vec![5; tokens], "sampling_params": sampling})
    };
    let error = async |engine: &crate::harness::Running, body| {
        let (status, answer) = engine.post("/generate", &body).await;
        assert_eq!(status, 400, "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    let engine = start(&["--max-total-tokens", "2048"]).await;
    engine.until("sglang:context_len", 8192.0).await;
    assert_eq!(engine.post("/generate", &request(2000, 48)).await.0, 200);
    let message = error(&engine, request(2000, 49)).await;
    assert!(message.contains("KV cache (2048 tokens)"), "{message}");
    let message = error(&engine, request(8192, 1)).await;
    assert!(message.contains("longer than the model's context length (8192 tokens)"), "{message}");
    engine.stop().await;

    let engine = start(&["--context-length", "64"]).await;
    engine.until("sglang:context_len", 64.0).await;
    let message = error(&engine, request(64, 1)).await;
    assert!(message.contains("longer than the model's context length (64 tokens)"), "{message}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_have_an_event_every_stream_interval_tokens() {
    let engine = start(&["--stream-interval", "4"]).await;
    let lengths = async |interval: Option<u32>| {
        let mut body = json!({"input_ids": [5, 6], "stream": true, "sampling_params": {
            "max_new_tokens": 12, "ignore_eos": true, "temperature": 0}});
        if let Some(interval) = interval {
            body["sampling_params"]["stream_interval"] = json!(interval);
        }
        let (status, text) = engine.post("/generate", &body).await;
        assert_eq!(status, 200, "{text}");
        let events = text.as_str().unwrap().split_terminator("\n\n");
        let ids = events.filter_map(|event| {
            let event: serde_json::Value =
                serde_json::from_str(event.strip_prefix("data: ")?).ok()?;
            Some(event["output_ids"].as_array()?.len())
        });
        ids.collect::<Vec<_>>()
    };
    // A client that reads slowly misses events, but never gets others.
    for (interval, allowed) in [(None, &[1, 5, 9, 12][..]), (Some(6), &[1, 7, 12])] {
        let found = lengths(interval).await;
        assert!(found.iter().all(|length| allowed.contains(length)), "{found:?}");
        assert_eq!(found.last(), Some(&12));
    }
    let body = json!({"input_ids": [5], "sampling_params": {"stream_interval": 0}});
    assert_eq!(engine.post("/generate", &body).await.0, 400);
    engine.stop().await;
}
