//! Servers that are down, and servers with wrong answers.

use axum::http::StatusCode;
use serde_json::json;

use super::{QUESTION, error, http, reward, rewards, score, serve};
use crate::reward::RewardError;

#[tokio::test]
async fn completions_wait_for_a_server_that_is_down_and_the_run_fails_past_the_limit() {
    let url = serve(|request, _| match request {
        1 => (StatusCode::OK, r#"{"reward": 1}"#.to_owned()),
        _ => (StatusCode::BAD_GATEWAY, String::new()),
    })
    .await;
    let spec = |seconds| json!({"http": {"url": url, "retries": 0, "maxOutageSeconds": seconds}});
    let patient = rewards(&[("judge", 1.0, spec(60))]);
    let scored = score(&patient, "any", "any");
    assert_eq!(scored.await, reward(1.0, &[("judge", 1.0)]), "the first try failed");
    let impatient = rewards(&[("judge", 1.0, spec(1))]);
    let expected = format!(
        "reward judge (http {url}) is unavailable for 1 s: fix it and run the job again; \
         last error: the server returned 502 Bad Gateway: "
    );
    assert_eq!(error(&impatient).await, expected);
    let outage = impatient.outage().unwrap();
    let cause = "the server returned 502 Bad Gateway; the run fails if this lasts 1 s";
    assert_eq!(
        (outage.reward, outage.cause),
        (format!("reward judge (http {url})"), cause.to_owned())
    );
}

#[tokio::test]
async fn a_server_with_wrong_answers_is_no_outage_and_fails_the_run() {
    let url = serve(|_, _| (StatusCode::OK, r#"{"score": 1}"#.to_owned())).await;
    let rewards = http(&url, 5, 5);
    for _ in 1..16 {
        let error = rewards.score(QUESTION).await.unwrap_err();
        assert!(matches!(error, RewardError::Rejected { tries: 1, .. }), "{error}");
    }
    let error = rewards.score(QUESTION).await.unwrap_err().of_row(7);
    let expected = format!(
        "reward judge (http {url}) failed for 16 completions in a row, the last one of row 7: fix \
         it and run the job again; last error: invalid response `{{\"score\": 1}}`, expected \
         {{\"reward\": number}}: unknown field `score`, expected one of `id`, `reward`, \
         `components`, `answer` at line 1 column 8"
    );
    assert_eq!((crate::error_line(&error), rewards.outage()), (expected, None));
    assert!(error.is_permanent());
}
