//! Determinism: the bits of a request do not depend on the batch or the order of arrival.

use rljob_protocol::sglang::{GenerateRequest, GenerateResponse};
use serde_json::{Value, json};

use crate::harness::{Running, request, start_with, tiny_config};

type Bits = (Vec<i64>, Vec<u64>);

fn bits(answer: &GenerateResponse) -> Bits {
    (
        answer.output_ids.clone(),
        answer
            .meta_info
            .output_token_logprobs
            .iter()
            .map(|(logprob, _, _)| logprob.to_bits())
            .collect(),
    )
}

/// Requests with prompts and completions of many lengths, so that rows of different buckets share
/// batches.
fn requests(count: u64, vocabulary: u64) -> Vec<GenerateRequest> {
    let one = |index: u64| {
        let length = [3, 17, 62, 63, 64, 90, 130][index as usize % 7];
        let prompt = (0..length)
            .map(|position| ((index * 37 + position * 11) % vocabulary) as i64)
            .collect();
        let mut request =
            request(&format!("r-{index:03}."), prompt, 5 + (index as u32 * 5) % 23, index);
        request.sampling_params.temperature = if index.is_multiple_of(5) { 0.0 } else { 0.7 };
        request
    };
    (0..count).map(one).collect()
}

async fn together(engine: &Running, requests: impl Iterator<Item = &GenerateRequest>) -> Vec<Bits> {
    assert_eq!(engine.post("/flush_cache?timeout=60", &json!({})).await.0, 200);
    let spawned: Vec<_> = requests.map(|request| engine.spawn(request)).collect();
    let mut answers = Vec::new();
    for request in spawned {
        answers.push(bits(&request.await.unwrap()));
    }
    answers
}

async fn bits_are_independent_of_the_batch(config: &Value, count: u64) {
    let engine = start_with(config, &["--deterministic"]).await;
    let requests = requests(count, config["vocab_size"].as_u64().unwrap());
    let mut alone = Vec::new();
    for request in &requests {
        alone.push(bits(&engine.generate(request).await));
    }
    assert_eq!(together(&engine, requests[..8].iter()).await, alone[..8]);
    assert_eq!(together(&engine, requests.iter()).await, alone);
    let mut backwards = together(&engine, requests.iter().rev()).await;
    backwards.reverse();
    assert_eq!(backwards, alone);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tiny_models_bits_are_independent_of_the_batch() {
    bits_are_independent_of_the_batch(&tiny_config(), 90).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bits_at_the_widths_of_smollm2_are_independent_of_the_batch() {
    let mut config = tiny_config();
    let widths = [
        ("hidden_size", 576),
        ("intermediate_size", 1536),
        ("num_attention_heads", 9),
        ("num_key_value_heads", 3),
        ("head_dim", 64),
        ("vocab_size", 4099),
    ];
    for (key, width) in widths {
        config[key] = width.into();
    }
    config["initializer_range"] = json!(0.05);
    bits_are_independent_of_the_batch(&config, 31).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bits_in_bfloat16_are_independent_of_the_batch() {
    let mut config = tiny_config();
    config["dtype"] = json!("bfloat16");
    bits_are_independent_of_the_batch(&config, 31).await;
}
