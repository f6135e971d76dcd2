//! Comparison of responses: the embedded engine sends no field that SGLang lacks, and common fields
//! are equal up to rounding.

use serde_json::Value;

/// Fields that differ between starts: ids, times, paths.
const VOLATILE: [&str; 6] =
    ["id", "created", "e2e_latency", "root", "model_path", "tokenizer_path"];

/// SGLang caches prefixes; the embedded engine caches whole prompts.
const CACHES: [&str; 1] = ["cached_tokens"];

/// Fields that only SGLang sends and no run reads.
const SGLANG_ONLY: [&str; 11] = [
    "queue_time",
    "reasoning_tokens",
    "cached_tokens_details",
    "dp_rank",
    "request_received_ts",
    "api_server_dispatch_finish_ts",
    "request_finished_ts",
    "decode_throughput",
    "response_sent_to_client_ts",
    "prompt_tokens_details",
    "has_image_understanding",
];

/// Tolerance of log-probabilities, in nats.
const TOLERANCE: f64 = 2e-4;

/// Lists the differences with their JSON paths.
pub fn differences(place: &str, ours: &Value, theirs: &Value) -> Vec<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let missing = b
                .keys()
                .filter(|key| !a.contains_key(*key) && !SGLANG_ONLY.contains(&key.as_str()))
                .map(|key| format!("{place}: `{key}` is missing"));
            let each = a.iter().flat_map(|(key, value)| match b.get(key) {
                None => vec![format!("{place}: SGLang has no `{key}`")],
                Some(_) if VOLATILE.contains(&key.as_str()) || CACHES.contains(&key.as_str()) => {
                    Vec::new()
                }
                Some(other) => differences(&format!("{place}.{key}"), value, other),
            });
            missing.chain(each).collect()
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .flat_map(|(index, (a, b))| differences(&format!("{place}[{index}]"), a, b))
            .collect(),
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            if (a - b).abs() <= TOLERANCE {
                Vec::new()
            } else {
                vec![format!("{place}: {a}, SGLang {b}")]
            }
        }
        _ if ours == theirs => Vec::new(),
        _ => vec![format!("{place}: {ours}, SGLang {theirs}")],
    }
}
