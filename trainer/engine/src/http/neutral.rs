//! Fields of requests that this engine does not support, at the values at which SGLang behaves as
//! this engine does. Clients send them by default; they are removed before a body is parsed, and
//! other values of them are errors.

use serde_json::Value;

/// Removes neutral fields of a `/generate` body and of its sampling parameters.
pub fn strip_generate(body: &mut Value) {
    strip(body, is_neutral_in_generate);
    match body.get_mut("sampling_params") {
        Some(Value::Array(many)) => {
            for one in many {
                strip(one, is_neutral_in_sampling);
            }
        }
        Some(one) => strip(one, is_neutral_in_sampling),
        None => {}
    }
}

/// Removes neutral fields of a body of the OpenAI routes.
pub fn strip_openai(body: &mut Value) {
    strip(body, |name, value| {
        is_neutral_in_openai(name, value) || is_neutral_in_sampling(name, value)
    });
}

fn strip(object: &mut Value, is_neutral: impl Fn(&str, &Value) -> bool) {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|name, value| !is_neutral(name, value));
    }
}

fn is_neutral_in_generate(name: &str, value: &Value) -> bool {
    match name {
        "image_data"
        | "video_data"
        | "audio_data"
        | "modalities"
        | "input_embeds"
        | "lora_path"
        | "session_params"
        | "custom_logit_processor"
        | "token_ids_logprob"
        | "priority"
        | "routing_key"
        | "custom_labels"
        | "routed_dp_rank"
        | "data_parallel_rank"
        | "bootstrap_host"
        | "bootstrap_port"
        | "bootstrap_room" => value.is_null(),
        "return_hidden_states"
        | "return_routed_experts"
        | "return_indexer_topk"
        | "return_entropy"
        | "no_logs"
        | "background" => is_null_or(value, &false.into()),
        "log_metrics" => value.is_boolean(),
        // The cache has nothing of earlier weights.
        "extra_key" => value.is_null() || value.is_string(),
        _ => false,
    }
}

fn is_neutral_in_sampling(name: &str, value: &Value) -> bool {
    match name {
        "json_schema" | "regex" | "ebnf" | "structural_tag" | "stop_regex" | "custom_params" => {
            value.is_null()
        }
        "repetition_penalty" => value.is_null() || value.as_f64() == Some(1.0),
        "spaces_between_special_tokens" => is_null_or(value, &true.into()),
        "logit_bias" => is_null_or_empty(value),
        _ => false,
    }
}

fn is_neutral_in_openai(name: &str, value: &Value) -> bool {
    match name {
        "tools" | "metadata" => is_null_or_empty(value),
        "tool_choice" => value.is_null() || value == "none" || value == "auto",
        "response_format" => {
            value.is_null() || value.get("type").is_some_and(|kind| kind == "text")
        }
        "user" => value.is_null() || value.is_string(),
        "parallel_tool_calls" => value.is_null() || value.is_boolean(),
        "store" | "echo" | "return_hidden_states" => is_null_or(value, &false.into()),
        "service_tier" => value.is_null() || value == "auto",
        "best_of" => is_null_or(value, &1.into()),
        "suffix" | "lora_path" | "reasoning_effort" | "session_params" | "priority" => {
            value.is_null()
        }
        _ => false,
    }
}

fn is_null_or(value: &Value, neutral: &Value) -> bool {
    value.is_null() || value == neutral
}

fn is_null_or_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(entries) => entries.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{strip_generate, strip_openai};

    fn stripped(mut body: Value, strip: fn(&mut Value)) -> Value {
        strip(&mut body);
        body
    }

    #[test]
    fn fields_at_their_defaults_are_removed_and_other_values_stay() {
        let defaults = json!({
            "text": "a", "lora_path": null, "return_hidden_states": false, "log_metrics": true,
            "sampling_params": {"repetition_penalty": 1.0, "regex": null, "top_p": 1.0},
        });
        let expected = json!({"text": "a", "sampling_params": {"top_p": 1.0}});
        assert_eq!(stripped(defaults, strip_generate), expected);
        let other = json!({
            "lora_path": "adapter", "sampling_params": [{"repetition_penalty": 1.1}],
        });
        assert_eq!(stripped(other.clone(), strip_generate), other);
        let openai = json!({
            "tools": [], "response_format": {"type": "text"}, "user": "u", "logit_bias": {},
            "repetition_penalty": 1, "tool_choice": "auto",
        });
        assert_eq!(stripped(openai, strip_openai), json!({}));
        let other = json!({
            "tools": [{}], "response_format": {"type": "json_object"}, "logit_bias": {"1": 2},
        });
        assert_eq!(stripped(other.clone(), strip_openai), other);
    }
}
