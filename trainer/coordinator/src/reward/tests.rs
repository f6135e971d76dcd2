//! What `reward` promises, one sentence a test. HTTP verifiers are real servers here and commands
//! real programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use rljob_crds::reward::{CommandReward, ExactMatchReward, HttpReward, MathReward, RewardSpec};

use super::{Question, Reward, RewardError, UnusableAnswer, Verifier};

const QUESTION: Question<'static> =
    Question { prompt: "1 + 1?", completion: "2", answer: Some("two") };

fn verifier(spec: &RewardSpec) -> Verifier {
    Verifier::new(spec).unwrap()
}

fn math() -> Verifier {
    verifier(&RewardSpec { math: Some(MathReward::default()), ..RewardSpec::default() })
}

fn exact_match() -> Verifier {
    verifier(&RewardSpec { exact_match: Some(ExactMatchReward {}), ..RewardSpec::default() })
}

fn http(url: &str, timeout_seconds: u32, retries: u32) -> Verifier {
    let http = HttpReward { url: url.to_owned(), timeout_seconds, retries, concurrency: 2 };
    verifier(&RewardSpec { http: Some(http), ..RewardSpec::default() })
}

fn command(command: &[&str], timeout_seconds: u32, retries: u32) -> Verifier {
    let command = CommandReward {
        command: command.iter().map(|&part| part.to_owned()).collect(),
        timeout_seconds,
        retries,
        processes: 1,
    };
    verifier(&RewardSpec { command: Some(command), ..RewardSpec::default() })
}

fn reward(name: &str, value: f64) -> Reward {
    Reward { value, components: BTreeMap::from([(name.to_owned(), value)]) }
}

async fn score(verifier: &Verifier, completion: &str, answer: &str) -> Reward {
    verifier.score(Question { prompt: "", completion, answer: Some(answer) }).await.unwrap()
}

async fn refusal(verifier: &Verifier) -> String {
    crate::error_line(&verifier.score(QUESTION).await.unwrap_err())
}

/// A server that answers request n with what `answer` says of n; its address.
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
async fn math_compares_the_final_answers_by_value() {
    let answer = "Natalia sold 48/2 = 24 clips in May.\nAltogether 72.\n#### 72";
    assert_eq!(score(&math(), "48 + 24 = 72.00", answer).await, reward("math", 1.0));
    assert_eq!(score(&math(), r"\boxed{144/2}", answer).await, reward("math", 1.0));
    assert_eq!(score(&math(), "72 in all, so 73", answer).await, reward("math", 0.0));
    assert_eq!(score(&math(), "", answer).await, reward("math", 0.0));
    assert_eq!(score(&math(), "none", "none").await, reward("math", 0.0));
}

#[tokio::test]
async fn exact_match_ignores_only_the_white_space_around() {
    for (completion, value) in [(" a b\n", 1.0), ("a  b", 0.0), ("A b", 0.0)] {
        assert_eq!(score(&exact_match(), completion, "a b").await, reward("exactMatch", value));
    }
}

#[test]
fn an_answer_that_nothing_could_match_is_refused_with_its_end() {
    let long = format!("{} the end", "é".repeat(100));
    let excerpt = format!("{} the end", "é".repeat(72));
    assert_eq!(math().check_answer(&long), Err(UnusableAnswer { excerpt }));
    let message =
        "the answer `no` is no number, tuple, interval or set, which reward.math compares with";
    assert_eq!(math().check_answer("no").unwrap_err().to_string(), message);
    assert_eq!(math().check_answer("#### 5"), Ok(()));
    assert_eq!(exact_match().check_answer("no"), Ok(()));
}

#[tokio::test]
async fn a_server_gets_the_question_and_its_reward_is_taken() {
    let url = serve(|_, body| {
        assert_eq!(body, r#"{"prompt":"1 + 1?","completion":"2","answer":"two"}"#);
        (StatusCode::OK, r#"{"reward": -0.5, "components": {"style": 2}}"#.to_owned())
    });
    let expected = Reward { value: -0.5, components: BTreeMap::from([("style".to_owned(), 2.0)]) };
    assert_eq!(http(&url.await, 5, 0).score(QUESTION).await.unwrap(), expected);
}

#[tokio::test]
async fn a_server_that_fails_is_asked_again() {
    let url = serve(|request, _| match request {
        0 => (StatusCode::SERVICE_UNAVAILABLE, "loading".to_owned()),
        _ => (StatusCode::OK, r#"{"reward": 1}"#.to_owned()),
    });
    assert_eq!(
        http(&url.await, 5, 1).score(QUESTION).await.unwrap(),
        Reward { value: 1.0, components: BTreeMap::new() }
    );
}

#[tokio::test]
async fn a_server_that_is_down_slow_or_answers_nonsense_is_named() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/score");
    let down = refusal(&http(&url, 5, 1)).await;
    let expected = format!(
        "reward.http {url} failed 2 times for one completion; the last time: it cannot be reached: "
    );
    assert!(down.starts_with(&expected) && down.contains("onnection refused"), "{down}");

    let broken = serve(|_, _| (StatusCode::INTERNAL_SERVER_ERROR, "no\nmodel".to_owned())).await;
    let failed =
        |url: &str| format!("reward.http {url} failed 1 times for one completion; the last time");
    assert_eq!(
        refusal(&http(&broken, 5, 0)).await,
        format!("{}: it answered 500 Internal Server Error: no model", failed(&broken))
    );

    for (answer, why) in [
        ("ok", "expected value at line 1 column 1"),
        (
            r#"{"score": 1}"#,
            "unknown field `score`, expected one of `id`, `reward`, `components` at line 1 column 8",
        ),
        (r#"{"reward": "1"}"#, "invalid type: string \"1\", expected f64 at line 1 column 14"),
        (r#"{"reward": NaN}"#, "expected value at line 1 column 12"),
        ("", "EOF while parsing a value at line 1 column 0"),
    ] {
        let url = serve(move |_, _| (StatusCode::OK, answer.to_owned())).await;
        let expected = format!(
            "{}: it answered nonsense, `{answer}`, instead of {{\"reward\": number}}: {why}",
            failed(&url)
        );
        assert_eq!(refusal(&http(&url, 5, 0)).await, expected);
    }

    // It takes the connection and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/score", silent.local_addr().unwrap());
    assert_eq!(
        refusal(&http(&url, 1, 0)).await,
        format!("{}: it did not answer within 1 s", failed(&url))
    );
}

#[tokio::test]
async fn what_is_secret_in_an_address_is_not_in_errors() {
    let url = serve(|_, _| (StatusCode::FORBIDDEN, String::new())).await;
    let secret = url.replace("http://", "http://me:hidden@") + "?key=hidden";
    let expected = format!(
        "reward.http {url} failed 1 times for one completion; the last time: it answered 403 Forbidden: "
    );
    assert_eq!(refusal(&http(&secret, 5, 0)).await, expected);
}

#[tokio::test]
async fn a_verifier_that_scores_nothing_any_more_is_taken_for_broken() {
    let url = serve(|request, _| match request {
        3 => (StatusCode::OK, r#"{"reward": 1}"#.to_owned()),
        _ => (StatusCode::BAD_GATEWAY, String::new()),
    })
    .await;
    let verifier = http(&url, 5, 0);
    let mut kinds = Vec::new();
    for _ in 0..20 {
        kinds.push(match verifier.score(QUESTION).await {
            Ok(_) => 's',
            Err(RewardError::Rejected { .. }) => 'r',
            Err(_) => 'D',
        });
    }
    assert_eq!(kinds.iter().collect::<String>(), "rrrsrrrrrrrrrrrrrrrD");
    let expected = format!(
        "reward.http {url} scored none of the last 17 completions: mend it and resume; the last error: it answered 502 Bad Gateway: "
    );
    assert_eq!(refusal(&verifier).await, expected);
}

/// Answers each line with its id and the number of lines before it as reward.
const COUNTING: &str = r#"n=0; while read -r line; do id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/'); echo "{\"id\": $id, \"reward\": $n}"; n=$((n+1)); done"#;

#[tokio::test]
async fn a_command_is_started_once_and_asked_line_by_line() {
    let verifier = command(&["sh", "-c", COUNTING], 10, 0);
    for expected in [0.0, 1.0, 2.0] {
        let question = Question { completion: "two\nlines", ..QUESTION };
        assert_eq!(
            verifier.score(question).await.unwrap(),
            Reward { value: expected, components: BTreeMap::new() }
        );
    }
}

#[tokio::test]
async fn questions_at_once_wait_for_the_one_copy() {
    let verifier = command(&["sh", "-c", COUNTING], 10, 0);
    let scored =
        futures::future::try_join_all((0..8).map(|_| verifier.score(QUESTION))).await.unwrap();
    let mut values: Vec<f64> = scored.into_iter().map(|reward| reward.value).collect();
    values.sort_by(f64::total_cmp);
    assert_eq!(values, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
}

#[tokio::test]
async fn a_command_that_ends_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("started-before");
    let script = format!("[ -e {0} ] || {{ touch {0}; exit 3; }}; {COUNTING}", mark.display());
    assert_eq!(
        command(&["sh", "-c", &script], 10, 1).score(QUESTION).await.unwrap(),
        Reward { value: 0.0, components: BTreeMap::new() }
    );
}

#[tokio::test]
async fn a_command_that_ends_hangs_or_answers_nonsense_is_named() {
    let failed = |script: &str| {
        format!("reward.command sh -c {script} failed 1 times for one completion; the last time")
    };
    for (script, why) in [
        (
            "echo no such model >&2; exit 3",
            "it ended with exit status: 3 and the last words `no such model`",
        ),
        ("exit 0", "it ended with exit status: 0"),
        ("kill -9 $$", "it ended with signal: 9 (SIGKILL)"),
        (
            "echo loading; cat",
            "it answered nonsense, `loading`, instead of {\"reward\": number}: expected value at line 1 column 1",
        ),
        (
            r#"echo '{"reward": 1}'; cat"#,
            "it answered nonsense, `{\"reward\": 1}`, instead of {\"reward\": number}: expected id 0, found none",
        ),
        (
            r#"echo '{"id": 7, "reward": 1}'; cat"#,
            "it answered nonsense, `{\"id\": 7, \"reward\": 1}`, instead of {\"reward\": number}: expected id 0, found 7",
        ),
        ("exec sleep 1000", "it did not answer within 1 s"),
    ] {
        assert_eq!(
            refusal(&command(&["sh", "-c", script], 1, 0)).await,
            format!("{}: {why}", failed(script))
        );
    }
    let missing = refusal(&command(&["/nowhere/verify", "--fast"], 1, 0)).await;
    let expected = "reward.command /nowhere/verify --fast failed 1 times for one completion; the last time: it cannot be started: No such file or directory (os error 2)";
    assert_eq!(missing, expected);
}
