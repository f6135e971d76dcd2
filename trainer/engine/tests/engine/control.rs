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
    assert_eq!((engine.get("/health").await.0, engine.get("/model_info").await.0), (200, 200));
    assert_eq!(engine.get("/flush_cache").await.0, 200);
    engine.post("/pause_generation", &json!({"mode": "abort"})).await;
    assert!(!held.is_finished());

    let continued = engine.post("/continue_generation", &json!({})).await;
    assert_eq!(
        continued,
        (200, json!({"message": "Generation continued successfully.", "status": "ok"}))
    );
    assert_eq!(
        held.await.unwrap().meta_info.finish_reason,
        Some(FinishReason::Length { length: 8 })
    );
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
