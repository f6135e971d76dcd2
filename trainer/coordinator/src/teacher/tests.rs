//! Tests of served teachers against servers of their shape.

use std::collections::BTreeMap;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use rljob_crds::algorithm::distillation::TeacherServer;
use serde_json::{Value, json};

use super::{Probes, Teacher};
use crate::persistence::journal::{Sample, Segment};

fn segment(tokens: &[i64], trained: bool) -> Segment {
    Segment { tokens: tokens.to_vec(), trained, ..Segment::default() }
}

fn sample() -> Sample {
    let parts: [(&[i64], bool); 4] =
        [(&[5, 6], false), (&[7, 8], true), (&[9], false), (&[7], true)];
    Sample {
        position: 0,
        index: 0,
        row: 0,
        segments: parts.map(|(tokens, trained)| segment(tokens, trained)).into(),
        finish_reason: "stop".to_owned(),
        sampling: Value::Null,
        reward: 0.0,
        reward_components: BTreeMap::new(),
        turn_rewards: vec![0.0, 0.0],
        metadata: serde_json::Map::new(),
    }
}

/// Log-probabilities of the segments by a server with these responses, without probes.
async fn added(info: &'static str, scored: Value) -> Result<Vec<Vec<f32>>, String> {
    added_after(info, scored, Probes::default(), (StatusCode::BAD_REQUEST, "")).await
}

/// As [`added`]; `texts` is the response to each probe.
async fn added_after(
    info: &'static str,
    scored: Value,
    probes: Probes,
    texts: (StatusCode, &'static str),
) -> Result<Vec<Vec<f32>>, String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let generate = async move |body: String| {
        let expected = json!({
            "input_ids": [5, 6, 7, 8, 9, 7], "return_logprob": true, "logprob_start_len": 1,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        });
        let request: Value = serde_json::from_str(&body).unwrap();
        if request.get("text").is_some() {
            return (texts.0, texts.1.to_owned());
        }
        assert_eq!(request, expected);
        let response = json!({"meta_info": {"input_token_logprobs": scored, "id": "1"}});
        (StatusCode::OK, response.to_string())
    };
    let routes = Router::new()
        .route("/model_info", get(async move || info))
        .route("/generate", post(generate));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let spec: TeacherServer = serde_json::from_value(json!({"url": url, "retries": 0})).unwrap();
    let mut sample = sample();
    let result = Teacher::new(&spec, 10, probes).unwrap().add_logprobs(&mut sample).await;
    result.map_err(|error| crate::error_line(&error).replace(&url, "URL"))?;
    Ok(sample.segments.into_iter().map(|segment| segment.teacher_logprobs).collect())
}

#[tokio::test]
async fn trained_segments_get_the_log_probabilities_of_their_tokens() {
    let scored = json!([
        [null, 6, null],
        [-1.5, 7, null],
        [-0.25, 8, null],
        [-9.0, 0, null],
        [-2.0, 7, null],
    ]);
    let found = added(r#"{"is_generation": true, "model_path": "m"}"#, scored).await.unwrap();
    assert_eq!(found, [vec![], vec![-1.5, -0.25], vec![], vec![-2.0]]);
}

#[tokio::test]
async fn responses_about_other_tokens_and_servers_without_a_language_model_are_errors() {
    let model = r#"{"is_generation": true}"#;
    let other = json!([[null, 6, null], [-1.5, 4, null]]);
    let error = added(model, other).await.unwrap_err();
    assert!(error.starts_with("teacher URL failed 1 times for a completion; "), "{error}");
    assert!(error.ends_with(": it has other tokens than the request"), "{error}");
    let missing = json!([
        [null, 6, null],
        [null, 7, null],
        [-0.25, 8, null],
        [-9.0, 9, null],
        [-2.0, 7, null],
    ]);
    let error = added(model, missing).await.unwrap_err();
    assert!(error.ends_with(": a token has no log-probability"), "{error}");
    let error = added(r#"{"is_generation": false}"#, json!([])).await.unwrap_err();
    let expected = "the server scores text and has no log-probabilities: serve the teacher as \
        a language model (SGLang and rljob-engine: without --is-embedding)";
    assert!(error.ends_with(expected), "{error}");
}

/// Probes of one text with these tokens.
fn probes(tokens: &[i64]) -> Probes {
    Probes::of("models/policy", vec![("a text", tokens.to_vec())])
}

/// The server adds token 1 before a text, and returns token 9, the last one, as 0.
#[tokio::test]
async fn a_teacher_has_the_tokenizer_of_the_policy() {
    let model = r#"{"is_generation": true, "model_path": "models/teacher"}"#;
    let scored = json!([
        [null, 6, null],
        [-1.5, 7, null],
        [-0.25, 8, null],
        [-9.0, 9, null],
        [-2.0, 7, null],
    ]);
    let tokens = r#"{"meta_info": {"input_token_logprobs": [[null, 1, null], [-1, 4, null],
        [-1, 0, null]]}}"#;
    let after = async |tokens: &[i64], texts: (StatusCode, &'static str)| {
        added_after(model, scored.clone(), probes(tokens), texts).await
    };
    assert!(after(&[4, 9], (StatusCode::OK, tokens)).await.is_ok());
    let error = after(&[4, 5], (StatusCode::OK, tokens)).await.unwrap_err();
    let expected = "the teacher models/teacher has another tokenizer than the policy \
        models/policy: the tokens of \"a text\" are [1, 4, 0] there and [4, 5] here; serve a \
        teacher with the tokenizer of the policy";
    assert!(error.ends_with(expected), "{error}");
    let without_tokenizer = (StatusCode::BAD_REQUEST, "skip_tokenizer_init");
    assert!(after(&[4, 5], without_tokenizer).await.is_ok());
}
