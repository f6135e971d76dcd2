//! `/generate` with and without streaming.

use futures::StreamExt as _;
use rljob_protocol::sglang::{FinishReason, GenerateResponse};

use crate::harness::{greedy, request, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_response_has_tokens_log_probabilities_and_the_weight_version() {
    let engine = start(&[]).await;
    let answer = engine.generate(&request("a", vec![5, 6, 7], 4, 3)).await;
    let meta = &answer.meta_info;
    assert_eq!((answer.output_ids.len(), answer.text.as_str()), (4, ""));
    assert_eq!(
        (meta.id.as_str(), meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens),
        ("a", 3, 4, 0)
    );
    assert_eq!(
        (meta.finish_reason.clone(), meta.weight_version.as_str()),
        (Some(FinishReason::Length { length: 4 }), "default")
    );
    let ids: Vec<i64> = meta.output_token_logprobs.iter().map(|(_, id, _)| *id).collect();
    assert_eq!(ids, answer.output_ids);
    assert!(
        meta.output_token_logprobs
            .iter()
            .all(|(logprob, _, text)| *logprob < 0.0 && text.is_none())
    );
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_fixes_a_sample_and_samples_of_one_prompt_share_its_prefill() {
    let engine = start(&[]).await;
    let first = engine.generate(&request("a", vec![5, 6, 7], 16, 3)).await;
    let second = engine.generate(&request("b", vec![5, 6, 7], 16, 3)).await;
    let other = engine.generate(&request("c", vec![5, 6, 7], 16, 4)).await;
    assert_eq!(first.output_ids, second.output_ids);
    assert_ne!(first.output_ids, other.output_ids);
    assert_eq!([first.meta_info.cached_tokens, second.meta_info.cached_tokens], [0, 3]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_token_ends_the_completion_unless_eos_is_ignored() {
    let engine = start(&[]).await;
    let free = engine.generate(&greedy("a", vec![9, 8, 7], 12)).await;
    let mut stopped = greedy("b", vec![9, 8, 7], 12);
    let token = free.output_ids[3];
    let end = free.output_ids.iter().position(|id| *id == token).unwrap();
    stopped.sampling_params.stop_token_ids = vec![token];
    assert_eq!(engine.generate(&stopped).await.output_ids, free.output_ids);
    stopped.sampling_params.ignore_eos = false;
    let answer = engine.generate(&stopped).await;
    assert_eq!(answer.output_ids, free.output_ids[..=end]);
    assert_eq!(answer.meta_info.finish_reason, Some(FinishReason::Stop { matched: token.into() }));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_cumulative_and_ends_with_the_final_response_and_done() {
    let engine = start(&[]).await;
    let mut streamed = request("a", vec![5, 6, 7], 300, 3);
    let whole = engine.generate(&streamed).await;
    streamed.stream = true;
    let response = engine
        .client
        .post(format!("{}/generate", engine.url))
        .json(&streamed)
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let text = response.text().await.unwrap();
    let events: Vec<&str> =
        text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
    let (done, answers) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let answers: Vec<GenerateResponse> =
        answers.iter().map(|answer| serde_json::from_str(answer).unwrap()).collect();
    assert!(answers.len() > 1 && answers.is_sorted_by_key(|answer| answer.output_ids.len()));
    assert!(answers.iter().all(|answer| whole.output_ids.starts_with(&answer.output_ids)));
    let (last, partial) = answers.split_last().unwrap();
    assert!(partial.iter().all(|answer| answer.meta_info.finish_reason.is_none()));
    assert_eq!(
        (&last.output_ids, &last.meta_info.output_token_logprobs),
        (&whole.output_ids, &whole.meta_info.output_token_logprobs)
    );
    assert_eq!(last.meta_info.finish_reason, Some(FinishReason::Length { length: 300 }));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_client_aborts_its_request() {
    let engine = start(&[]).await;
    let mut streamed = request("a", vec![5, 6, 7], 8000, 3);
    streamed.stream = true;
    let response = engine
        .client
        .post(format!("{}/generate", engine.url))
        .json(&streamed)
        .send()
        .await
        .unwrap();
    let mut events = response.bytes_stream();
    events.next().await.unwrap().unwrap();
    drop(events);
    engine.until("sglang:num_aborted_requests_total", 1.0).await;
    engine.until("sglang:num_running_reqs", 0.0).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_and_tokens() {
    let engine = start(&[]).await;
    for seed in 0..3 {
        engine.generate(&request("a", vec![5, 6, 7], 10, seed)).await;
    }
    engine.until("sglang:gen_throughput", 0.0).await;
    for (name, value) in [
        ("num_requests_total", 3.0),
        ("prompt_tokens_total", 9.0),
        ("cached_tokens_total", 6.0),
        ("generation_tokens_total", 30.0),
    ] {
        assert!((engine.metric(&format!("sglang:{name}")).await - value).abs() < 0.5, "{name}");
    }
    engine.stop().await;
}
