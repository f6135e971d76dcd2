//! Rejected requests with their exact bodies.

use serde_json::json;

use crate::harness::{random_blocks, request, start, tiny_config, write_blocks};

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_get_sglangs_errors() {
    let engine = start(&[]).await;
    let rejected = async |ids: Vec<i64>, new: u32| {
        engine.post("/generate", &serde_json::to_value(request("a", ids, new, 1)).unwrap()).await
    };
    let error = |message: &str| (400, json!({"error": {"message": message}}));
    assert_eq!(rejected(vec![], 4).await, error("input_ids cannot be empty."));
    assert_eq!(
        rejected(vec![1, 320], 4).await,
        error("The input_ids contain 320, which is outside the vocabulary (0 to 319).")
    );
    assert_eq!(
        rejected(vec![1; 8192], 4).await,
        error("The input (8192 tokens) is longer than the model's context length (8192 tokens).")
    );
    let mut unknown = serde_json::to_value(request("a", vec![1], 1, 1)).unwrap();
    unknown["return_logprobs"] = json!(true);
    let (status, body) = engine.post("/generate", &unknown).await;
    let message = body["message"].as_str().unwrap();
    assert!(status == 400 && message.starts_with("unknown field `return_logprobs`"), "{body}");
    assert_eq!(
        body,
        json!({
            "object": "error", "message": message, "type": "Bad Request", "param": null, "code": 400
        })
    );
    let (status, body) = engine.post("/pause_generation", &json!({"mode": "other"})).await;
    let message = body["message"].as_str().unwrap();
    assert!(
        status == 400
            && message.starts_with(
                "unknown variant `other`, expected one of `abort`, `retract`, `in_place`"
            ),
        "{body}"
    );
    let many =
        engine.post("/generate", &json!({"input_ids": [1], "sampling_params": {"n": 5000}})).await;
    assert_eq!(many, error("A request must ask for 1 to 4096 completions, got 5000."));
    let text = engine.post("/generate", &json!({"text": "Hi"})).await;
    assert_eq!(text, error("texts cannot be empty and tokenizer must be initialized"));
    let (status, body) =
        engine.post("/generate", &json!({"input_ids": [1], "sampling_params": {"top_q": 1}})).await;
    assert!(
        status == 400 && body["message"].as_str().unwrap().starts_with("unknown field `top_q`"),
        "{body}"
    );
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_returns_503_immediately() {
    let engine = start(&["--max-running-requests", "1", "--max-queued-requests", "1"]).await;
    engine.post("/pause_generation", &json!({"mode": "abort"})).await;
    let held =
        [engine.spawn(&request("a", vec![1], 1, 1)), engine.spawn(&request("b", vec![1], 1, 1))];
    engine.until("sglang:num_queue_reqs", 2.0).await;
    let full =
        engine.post("/generate", &serde_json::to_value(request("c", vec![1], 1, 1)).unwrap()).await;
    assert_eq!(
        full,
        (
            503,
            json!({
                "object": "error", "message": "The request queue is full.", "type": "503",
                "param": null, "code": 503
            })
        )
    );
    engine.post("/continue_generation", &json!({})).await;
    for held in held {
        assert_eq!(held.await.unwrap().output_ids.len(), 1);
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn non_finite_logits_fail_the_request_but_not_the_engine() {
    let engine = start(&[]).await;
    let (layout, blocks) = random_blocks(&tiny_config(), 1);
    let broken = engine.folder.path().join("broken");
    let not_a_number: Vec<tch::Tensor> = blocks.iter().map(|block| block * f64::NAN).collect();
    write_blocks(&broken, &tiny_config(), &layout, &not_a_number);
    let update = |folder: &std::path::Path| {
        json!({
            "model_path": folder, "weight_version": "v", "flush_cache": true
        })
    };
    assert_eq!(engine.post("/update_weights_from_disk", &update(&broken)).await.0, 200);
    let failed =
        engine.post("/generate", &serde_json::to_value(request("a", vec![1], 3, 1)).unwrap()).await;
    let message = "the model's logits are not finite";
    assert_eq!(
        failed,
        (
            500,
            json!({
                "object": "error", "message": message, "type": "500", "param": null, "code": 500
            })
        )
    );
    assert_eq!(engine.post("/update_weights_from_disk", &update(&engine.model())).await.0, 200);
    assert_eq!(engine.generate(&request("a", vec![1], 3, 1)).await.output_ids.len(), 3);
    engine.stop().await;
}
