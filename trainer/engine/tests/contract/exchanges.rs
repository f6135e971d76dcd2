//! Requests whose responses must be equal, field by field, between the embedded engine and SGLang.

use serde_json::{Value, json};

use crate::agreement;
use crate::server::Server;

/// Method, route, body.
type Exchange = (&'static str, &'static str, Option<Value>);

fn generate(body: Value) -> Exchange {
    ("POST", "/generate", Some(body))
}

fn greedy(new: u32) -> Value {
    json!({"temperature": 0, "max_new_tokens": new, "ignore_eos": true})
}

fn of_generate() -> Vec<Exchange> {
    vec![
        generate(json!({"rid": "a", "input_ids": [5, 6, 7], "sampling_params": greedy(12)})),
        generate(json!({"rid": "b", "input_ids": [5, 6, 7], "sampling_params": greedy(6),
                "return_logprob": true})),
        generate(
            json!({"input_ids": [5, 6, 7, 8], "sampling_params": greedy(4), "return_logprob": true,
                "logprob_start_len": 0, "top_logprobs_num": 3}),
        ),
        generate(json!({
            "input_ids": [5, 6, 7, 9], "sampling_params": greedy(4), "return_logprob": true,
            "logprob_start_len": 2, "top_logprobs_num": 2,
            "return_text_in_logprobs": true
        })),
        generate(json!({"input_ids": [9, 10, 11], "sampling_params": {"max_new_tokens": 0},
                "return_logprob": true, "logprob_start_len": 0})),
        generate(json!({"text": "What is 12 + 30?", "sampling_params": greedy(20)})),
        generate(json!({"text": ["What", "is"], "sampling_params": greedy(5), "rid": "c"})),
        generate(
            json!({"text": ["What", "is"], "sampling_params": [greedy(5), greedy(3)], "rid": ["d",
                "e"], "return_logprob": [true, false]}),
        ),
        generate(json!({"text": "What", "sampling_params": {"temperature": 0, "max_new_tokens": 5,
                "ignore_eos": true, "n": 2}})),
        generate(json!({"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0,
                "max_new_tokens": 30, "stop": ["e", "a"]}})),
        generate(json!({"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0,
                "max_new_tokens": 30, "stop": "t", "no_stop_trim": true}})),
        generate(
            json!({"input_ids": [5, 6], "sampling_params": {"temperature": 0, "max_new_tokens": 30,
                "frequency_penalty": 1.5, "presence_penalty": 0.5}}),
        ),
        generate(
            json!({"input_ids": [4], "sampling_params": {"temperature": 0, "max_new_tokens": 4,
                "top_k": null, "stop": null}}),
        ),
    ]
}

/// A stop token that the model generates, and a minimum length that prevents it.
fn of_stop_token(token: i64) -> Vec<Exchange> {
    let stop = |extra: Value| {
        let mut sampling =
            json!({"temperature": 0, "max_new_tokens": 12, "stop_token_ids": [token]});
        sampling.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        generate(
            json!({"input_ids": [5, 6, 7], "sampling_params": sampling, "return_logprob": true}),
        )
    };
    vec![
        stop(json!({})),
        stop(json!({"no_stop_trim": true})),
        stop(json!({"min_new_tokens": 9})),
        stop(json!({"ignore_eos": true})),
        stop(json!({"min_new_tokens": 9, "stop": ["e", "a"]})),
        stop(json!({"stop": ["zzz"], "stop_token_ids": [token, token + 1]})),
    ]
}

fn of_errors() -> Vec<Exchange> {
    let with = |sampling: Value| generate(json!({"input_ids": [4], "sampling_params": sampling}));
    vec![
        generate(json!({"input_ids": [], "sampling_params": {}})),
        generate(json!({"sampling_params": {}})),
        generate(json!({"text": ""})),
        generate(json!({"input_ids": vec![4; 4096]})),
        generate(json!({"input_ids": [4, 4], "sampling_params": {"max_new_tokens": 9999}})),
        with(json!({"top_p": 0.0})),
        with(json!({"min_p": 2.0})),
        with(json!({"temperature": -1.0})),
        with(json!({"top_k": 0})),
        with(json!({"max_new_tokens": 4, "min_new_tokens": 9})),
        with(json!({"frequency_penalty": 3.0})),
        ("GET", "/model_info", None),
        ("GET", "/get_model_info", None),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/none", None),
        (
            "POST",
            "/get_weights_by_name",
            Some(json!({"name": "model.norm.weight", "truncate_size": 3})),
        ),
        ("POST", "/get_weights_by_name", Some(json!({"name": "none", "truncate_size": 3}))),
        ("POST", "/destroy_weights_update_group", Some(json!({"group_name": "none"}))),
        ("POST", "/abort_request", Some(json!({"rid": "unknown"}))),
        ("POST", "/abort_request", Some(json!({}))),
    ]
}

fn of_openai() -> Vec<Exchange> {
    let complete = |body: Value| ("POST", "/v1/completions", Some(body));
    let chat = |body: Value| ("POST", "/v1/chat/completions", Some(body));
    let messages = json!([{"role": "user", "content": "hello"}]);
    vec![
        complete(json!({"model": "m", "prompt": "hello", "max_tokens": 4, "temperature": 0,
                "ignore_eos": true, "logprobs": 2})),
        complete(
            json!({"model": "m", "prompt": ["hello", "you"], "max_tokens": 3, "temperature": 0,
                "ignore_eos": true}),
        ),
        complete(json!({"model": "m", "prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0,
                "ignore_eos": true, "n": 2})),
        complete(json!({"model": "m", "prompt": ""})),
        chat(json!({"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0,
                "ignore_eos": true, "logprobs": true, "top_logprobs": 2})),
        chat(json!({"model": "m", "max_tokens": 3, "temperature": 0, "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hello"}]}]})),
        complete(json!({"model": "m", "prompt": "hello", "max_tokens": 3, "temperature": 0,
                "ignore_eos": true, "user": "u", "stop": ["zzz"], "min_tokens": 2})),
        chat(json!({"model": "m", "messages": messages, "max_tokens": 3, "temperature": 0,
                "tools": [], "response_format": {"type": "text"}, "user": "u"})),
        chat(json!({"model": "m", "messages": []})),
        chat(json!({"model": "m", "messages": messages, "max_tokens": 99999})),
    ]
}

/// Malformed requests, compared by status and kind of body because the messages come from each
/// server's parser.
fn of_malformed() -> Vec<Exchange> {
    vec![
        generate(json!({"input_ids": "x"})),
        ("POST", "/pause_generation", Some(json!({"mode": "other"}))),
        ("POST", "/update_weights_from_disk", Some(json!({}))),
        ("POST", "/v1/completions", Some(json!({"model": "m", "prompt": 7}))),
        ("POST", "/continue_generation", None),
    ]
}

/// Lists differences between the responses of the two servers.
/// As [`differences`], of servers of a classifier.
pub async fn differences_of_classifiers(embedded: &Server, sglang: &Server) -> Vec<String> {
    let classify = |body: Value| ("POST", "/classify", Some(body));
    let exchanges = [
        classify(json!({"input_ids": [5, 6, 7]})),
        classify(json!({"input_ids": [[9], [5, 6, 7, 2]]})),
        classify(json!({"text": "What is 12 + 30?"})),
        classify(json!({"text": ["What", "is"]})),
        classify(json!({"text": ""})),
        classify(json!({})),
        ("GET", "/model_info", None),
    ];
    let mut problems = Vec::new();
    for exchange in exchanges {
        problems.extend(compare(embedded, sglang, &exchange).await);
    }
    problems
}

async fn compare(embedded: &Server, sglang: &Server, exchange: &Exchange) -> Vec<String> {
    let (method, route, body) = exchange;
    let ours = embedded.ask(method, route, body.as_ref()).await;
    let theirs = sglang.ask(method, route, body.as_ref()).await;
    let body = body.as_ref().map(Value::to_string).unwrap_or_default();
    let place = format!("{method} {route} {}", body.chars().take(160).collect::<String>());
    let mut problems = agreement::differences(&place, &ours.1, &theirs.1);
    if ours.0 != theirs.0 {
        problems.push(format!(
            "{place}: status {}, SGLang {}: {} against {}",
            ours.0, theirs.0, ours.1, theirs.1
        ));
    }
    problems
}

pub async fn differences(embedded: &Server, sglang: &Server) -> Vec<String> {
    let probe =
        embedded.generate(&json!({"input_ids": [5, 6, 7], "sampling_params": greedy(12)})).await;
    let token = probe["output_ids"][4].as_i64().unwrap();
    let mut problems = Vec::new();
    for (method, route, body) in
        [of_generate(), of_stop_token(token), of_errors(), of_openai()].concat()
    {
        problems.extend(compare(embedded, sglang, &(method, route, body)).await);
    }
    for (method, route, body) in of_malformed() {
        let (ours, theirs) = (
            embedded.ask(method, route, body.as_ref()).await,
            sglang.ask(method, route, body.as_ref()).await,
        );
        let shape = |(status, answer): &(u16, Value)| {
            (*status, answer["object"].clone(), answer["type"].clone(), answer["code"].clone())
        };
        if shape(&ours) != shape(&theirs) {
            problems.push(format!("{method} {route} {body:?}: {ours:?}, SGLang {theirs:?}"));
        }
    }
    problems
}
