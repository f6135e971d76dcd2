//! Tests of rewards with real HTTP servers and real processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use rljob_crds::reward::RewardSpec;
use serde_json::{Value, json};

use crate::reward::{Question, Reward, RewardError, Rewards, Runner, UnusableAnswer};

mod failures;

const QUESTION: Question<'static> =
    Question { prompt: "1 + 1?", completion: "2", answer: Some("two"), fields: None };

/// No test of this file runs a command (trainer/coordinator/tests/command_rewards.rs).
fn runner() -> Runner {
    Runner::Program(PathBuf::new())
}

/// Rewards of (name, weight, kind with settings).
fn rewards(specs: &[(&str, f64, Value)]) -> Rewards {
    let specs: Vec<RewardSpec> =
        specs.iter().map(|(name, weight, kind)| spec(name, *weight, kind)).collect();
    Rewards::new(&specs, &runner(), None).unwrap()
}

fn spec(name: &str, weight: f64, kind: &Value) -> RewardSpec {
    let mut json = kind.clone();
    json["name"] = name.into();
    json["weight"] = weight.into();
    serde_json::from_value(json).unwrap()
}

fn math() -> Rewards {
    rewards(&[("correct", 1.0, json!({"math": {}}))])
}

fn exact_match() -> Rewards {
    rewards(&[("same", 1.0, json!({"exactMatch": {}}))])
}

fn http_spec(url: &str, timeout_seconds: u32, retries: u32) -> Value {
    json!({"http": {
        "url": url, "timeoutSeconds": timeout_seconds, "retries": retries, "concurrency": 2,
        "maxOutageSeconds": 0,
    }})
}

fn http(url: &str, timeout_seconds: u32, retries: u32) -> Rewards {
    rewards(&[("judge", 1.0, http_spec(url, timeout_seconds, retries))])
}

fn reward(value: f64, components: &[(&str, f64)]) -> Reward {
    let components = components.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    Reward { value, components, ..Reward::default() }
}

async fn score(rewards: &Rewards, completion: &str, answer: &str) -> Reward {
    let question = Question { prompt: "", completion, answer: Some(answer), fields: None };
    rewards.score(question).await.unwrap()
}

async fn error(rewards: &Rewards) -> String {
    crate::error_line(&rewards.score(QUESTION).await.unwrap_err())
}

#[tokio::test]
async fn the_reward_is_the_weighted_sum_and_records_every_component() {
    let url = serve(|_, _| {
        let body = r#"{"reward": 3, "components": {"style": 2}, "answer": "two"}"#;
        (StatusCode::OK, body.to_owned())
    })
    .await;
    let rewards = rewards(&[
        ("correct", 1.0, json!({"exactMatch": {}})),
        ("format", 0.25, json!({"regex": {"pattern": "^t"}})),
        ("judge", -0.5, http_spec(&url, 5, 0)),
    ]);
    let components = [("correct", 1.0), ("format", 1.0), ("judge", 3.0), ("judge/style", 2.0)];
    let expected = Reward { answer: Some("two".to_owned()), ..reward(-0.25, &components) };
    let question = Question { completion: "two", ..QUESTION };
    assert_eq!(rewards.score(question).await.unwrap(), expected);
}

#[tokio::test]
async fn a_failed_verifier_rejects_the_sample_whatever_the_others_score() {
    let url = serve(|_, _| (StatusCode::FORBIDDEN, String::new())).await;
    let rewards = rewards(&[
        ("format", 1.0, json!({"regex": {"pattern": "2"}})),
        ("judge", 0.0, http_spec(&url, 5, 0)),
    ]);
    let error = rewards.score(QUESTION).await.unwrap_err();
    assert!(matches!(error, RewardError::Rejected { tries: 1, .. }), "{error}");
}

#[tokio::test]
async fn regex_scores_a_match_anywhere_in_the_completion() {
    let spec = |pattern: &str| rewards(&[("format", 1.0, json!({"regex": {"pattern": pattern}}))]);
    for (pattern, value) in [("####", 1.0), ("^####", 0.0), (r"(?s)^So.*\d$", 1.0)] {
        let expected = reward(value, &[("format", value)]);
        assert_eq!(score(&spec(pattern), "So\n#### 7", "").await, expected, "{pattern}");
    }
    assert!(!spec("x").needs_answers());
    let invalid = super::tests::spec("format", 1.0, &json!({"regex": {"pattern": "("}}));
    let error = Rewards::new(&[invalid], &runner(), None).unwrap_err();
    let message = crate::error_line(&error);
    let expected = "failed to create the verifier of reward format: regex parse error";
    assert!(message.starts_with(expected), "{message}");
}

#[tokio::test]
async fn repetition_is_the_share_of_repeated_ngrams_times_the_largest_penalty() {
    // Values of Open-R1's get_repetition_penalty_reward.
    let default = json!({});
    let pairs = json!({"ngramSize": 2, "maxPenalty": -0.5});
    let words = json!({"ngramSize": 1, "maxPenalty": -2.0});
    for (settings, completion, value) in [
        (&default, "", 0.0),
        (&default, "no no", 0.0),
        (&default, "one two three four", 0.0),
        (&default, "a b c a b c", -0.25),
        (&default, " So\n\nit  IS so\u{2003}it is so", -0.4),
        (&default, "wait, wait, wait, wait, wait, wait,", -0.75),
        (&pairs, "a b a b a", -0.25),
        (&words, "no no no no", -1.5),
    ] {
        let rewards = rewards(&[("loops", 1.0, json!({"repetition": settings}))]);
        let expected = reward(value, &[("loops", value)]);
        assert_eq!(score(&rewards, completion, "").await, expected, "{completion}");
        assert!(!rewards.needs_answers());
    }
}

#[test]
fn answer_classes_come_from_the_first_verifier_that_extracts_answers() {
    let completions = ["#### 1/2", "so \\boxed{0.5}", "nothing", "#### 3", "#### 1/2"];
    assert_eq!(
        math().answer_classes(&completions, &[None; 5]),
        Some(vec![Some(0), Some(0), None, Some(3), Some(0)])
    );
    assert_eq!(
        exact_match().answer_classes(&["5", " 5\n", "6"], &[None; 3]),
        Some(vec![Some(0), Some(0), Some(2)])
    );
    let mixed = rewards(&[
        ("format", 0.1, json!({"regex": {"pattern": "x"}})),
        ("same", 1.0, json!({"exactMatch": {}})),
    ]);
    assert_eq!(
        mixed.answer_classes(&["5", "5"], &[Some("a"), Some("b")]),
        Some(vec![Some(0), Some(0)])
    );
}

#[test]
fn answer_classes_of_external_verifiers_need_reported_answers() {
    let http = http("http://localhost:1", 5, 0);
    assert_eq!(http.answer_classes(&["5", "6"], &[None, None]), None);
    let reported = [Some("b"), None, Some("a"), Some("b")];
    assert_eq!(
        http.answer_classes(&["1", "2", "3", "4"], &reported),
        Some(vec![Some(0), None, Some(2), Some(0)])
    );
}

/// Starts a server that answers request n with `answer(n, body)`; returns its URL.
async fn serve<F>(answer: F) -> String
where
    F: Fn(u32, String) -> (StatusCode, String) + Clone + Send + Sync + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/score", listener.local_addr().unwrap());
    let handler = move |State(count): State<Arc<AtomicU32>>, body: String| {
        let answer = answer(count.fetch_add(1, Ordering::SeqCst), body);
        async move { answer }
    };
    let router =
        Router::new().route("/score", post(handler)).with_state(Arc::new(AtomicU32::new(0)));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test]
async fn math_compares_final_answers_by_value() {
    let answer = "Natalia sold 48/2 = 24 clips in May.\nAltogether 72.\n#### 72";
    for (completion, value) in
        [("48 + 24 = 72.00", 1.0), (r"\boxed{144/2}", 1.0), ("72 in all, so 73", 0.0), ("", 0.0)]
    {
        let expected = reward(value, &[("correct", value)]);
        assert_eq!(score(&math(), completion, answer).await, expected, "{completion}");
    }
    let question = Question { prompt: "", completion: "\\to", answer: Some("\\to"), fields: None };
    assert_eq!(math().score(question).await.unwrap(), reward(0.0, &[("correct", 0.0)]));
}

#[tokio::test]
async fn exact_match_ignores_surrounding_white_space_only() {
    for (completion, value) in [(" a b\n", 1.0), ("a  b", 0.0), ("A b", 0.0)] {
        let expected = reward(value, &[("same", value)]);
        assert_eq!(score(&exact_match(), completion, "a b").await, expected, "{completion}");
    }
}

#[test]
fn an_unusable_reference_answer_is_an_error_with_its_end() {
    let long = format!("{} = 1/0", "é".repeat(100));
    let excerpt = format!("{} = 1/0", "é".repeat(74));
    let reason = "the answer has no defined value";
    let expected = UnusableAnswer { reward: "correct".to_owned(), excerpt, reason };
    assert_eq!(math().check_answer(&long, false), Err(expected));
    let message = "reward correct does not support the answer `1/2x`: \
                   the divisor of a product is ambiguous";
    assert_eq!(math().check_answer("1/2x", false).unwrap_err().to_string(), message);
    assert_eq!(math().check_answer("#### 5", false), Ok(()));
    assert_eq!(exact_match().check_answer("no", false), Ok(()));
}

#[tokio::test]
async fn a_server_receives_the_question_and_returns_the_reward() {
    let url = serve(|_, body| {
        assert_eq!(body, r#"{"prompt":"1 + 1?","completion":"2","answer":"two"}"#);
        (StatusCode::OK, r#"{"reward": -0.5, "components": {"style": 2}}"#.to_owned())
    });
    let expected = reward(-0.5, &[("judge", -0.5), ("judge/style", 2.0)]);
    assert_eq!(http(&url.await, 5, 0).score(QUESTION).await.unwrap(), expected);
}

#[tokio::test]
async fn a_failed_request_is_retried() {
    let url = serve(|request, _| match request {
        0 => (StatusCode::INTERNAL_SERVER_ERROR, "loading".to_owned()),
        _ => (StatusCode::OK, r#"{"reward": 1}"#.to_owned()),
    });
    assert_eq!(
        http(&url.await, 5, 1).score(QUESTION).await.unwrap(),
        reward(1.0, &[("judge", 1.0)])
    );
}

#[tokio::test]
async fn errors_of_servers_name_the_url_and_the_cause() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/score");
    let down = error(&http(&url, 5, 1)).await;
    let expected = format!(
        "reward judge (http {url}) is unavailable: fix it and run the job again; \
         last error: failed to reach the server: "
    );
    assert!(down.starts_with(&expected) && down.contains("onnection refused"), "{down}");

    let broken = serve(|_, _| (StatusCode::INTERNAL_SERVER_ERROR, "no\nmodel".to_owned())).await;
    let failed = |url: &str| {
        format!("reward judge (http {url}) failed 1 times for a completion; last error")
    };
    assert_eq!(
        error(&http(&broken, 5, 0)).await,
        format!("{}: the server returned 500 Internal Server Error: no model", failed(&broken))
    );

    for (answer, why) in [
        ("ok", "expected value at line 1 column 1"),
        (
            r#"{"score": 1}"#,
            "unknown field `score`, expected one of `id`, `reward`, `components`, `answer` \
             at line 1 column 8",
        ),
        (r#"{"reward": "1"}"#, "invalid type: string \"1\", expected f64 at line 1 column 14"),
        (r#"{"reward": NaN}"#, "expected value at line 1 column 12"),
        ("", "EOF while parsing a value at line 1 column 0"),
    ] {
        let url = serve(move |_, _| (StatusCode::OK, answer.to_owned())).await;
        let expected = format!(
            "{}: invalid response `{answer}`, expected {{\"reward\": number}}: {why}",
            failed(&url)
        );
        assert_eq!(error(&http(&url, 5, 0)).await, expected);
    }

    // The listener never reads.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/score", silent.local_addr().unwrap());
    assert_eq!(error(&http(&url, 1, 0)).await, format!("{}: no response within 1 s", failed(&url)));
}

#[tokio::test]
async fn errors_omit_credentials_and_query_of_the_url() {
    let url = serve(|_, _| (StatusCode::FORBIDDEN, String::new())).await;
    let secret = url.replace("http://", "http://me:hidden@") + "?key=hidden";
    let expected = format!(
        "reward judge (http {url}) failed 1 times for a completion; last error: \
         the server returned 403 Forbidden: "
    );
    assert_eq!(error(&http(&secret, 5, 0)).await, expected);
}
