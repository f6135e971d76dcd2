//! Tests of served teachers against servers and engines of their shape.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use rljob_crds::algorithm::teacher::TeacherSpec;
use serde_json::{Value, json};

use super::{Probes, Teacher, TeacherError, check_folder};
use crate::engines::Fleet;
use crate::persistence::journal::{Sample, Segment};
use crate::reward::engines_for_tests::{fleet, refused};
use crate::text::TextTokenizer;

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
    let url = format!("{}/", server(info, scored, texts).await);
    let result = added_by(&json!({"server": {"url": url, "retries": 0}}), None, probes).await;
    result.map_err(|error| error.replace(&url, "URL"))
}

/// URL of a server with these responses, `texts` to each probe, without a slash at the end.
async fn server(info: &'static str, scored: Value, texts: (StatusCode, &'static str)) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
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
    url
}

/// Log-probabilities of the segments by a teacher.
async fn added_by(
    spec: &Value,
    fleet: Option<&Arc<Fleet>>,
    probes: Probes,
) -> Result<Vec<Vec<f32>>, String> {
    let spec: TeacherSpec = serde_json::from_value(spec.clone()).unwrap();
    let teacher = Teacher::new(spec.source(), fleet, 10, probes).unwrap().unwrap();
    let mut sample = sample();
    let result = teacher.add_logprobs(&mut sample).await;
    result.map_err(|error| crate::error_line(&error))?;
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

#[tokio::test]
async fn a_sample_whose_engine_is_lost_gets_the_log_probabilities_of_another_one() {
    let scored = json!([
        [null, 6, null],
        [-1.5, 7, null],
        [-0.25, 8, null],
        [-9.0, 9, null],
        [-2.0, 7, null],
    ]);
    let tokens = r#"{"meta_info": {"input_token_logprobs": [[null, 4, null]]}}"#;
    let url = server("", scored, (StatusCode::OK, tokens)).await;
    let spec = json!({"path": "/no/teacher", "engines": {}, "calls": {"retries": 0}});
    let lost = fleet(&[refused().await, url.clone()]);
    let found = added_by(&spec, Some(&lost), probes(&[4])).await.unwrap();
    assert_eq!(found, [vec![], vec![-1.5, -0.25], vec![], vec![-2.0]]);
    let error = added_by(&spec, Some(&fleet(&[url])), probes(&[5])).await.unwrap_err();
    let expected = "teacher /no/teacher on engines of the job is unavailable: fix it and run the \
        job again; last error: the teacher /no/teacher has another tokenizer than the policy \
        models/policy: the tokens of \"a text\" are [4] there and [5] here; serve a teacher with \
        the tokenizer of the policy";
    assert_eq!(error, expected);
}

#[test]
fn the_folder_of_a_teacher_on_engines_has_a_language_model_with_the_policys_tokenizer() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat");
    let tokenizer = TextTokenizer::open(&fixture).unwrap();
    let policy = Probes::new("models/policy", &tokenizer).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let check = |probes: &Probes| {
        let checked = check_folder(folder.path(), probes);
        let name = folder.path().display().to_string();
        checked.map_err(|error: TeacherError| error.to_string().replace(&name, "FOLDER"))
    };
    assert_eq!(check(&policy), Ok(()), "another job may write it");
    std::fs::copy(fixture.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    assert_eq!(check(&policy), Ok(()));
    let error = check(&Probes::of("models/policy", vec![("a text", vec![1])])).unwrap_err();
    let start = "the teacher FOLDER has another tokenizer than the policy models/policy: the \
        tokens of \"a text\" are ";
    assert!(error.starts_with(start), "{error}");
    let config = r#"{"architectures": ["LlamaForSequenceClassification"]}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let expected = "FOLDER/config.json has the architecture \"LlamaForSequenceClassification\": a \
        teacher is a language model";
    assert_eq!(check(&policy), Err(expected.to_owned()));
}
