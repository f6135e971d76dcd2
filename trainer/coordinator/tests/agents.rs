//! Proxy and runner of agents: keys, limits, and what a program of an agent can do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use reqwest::{Response, StatusCode};
use rljob_coordinator::proxy::request::Rules;
use rljob_coordinator::proxy::{Call, LIMITS, LoopbackPort, Proxy, Session};
use rljob_coordinator::reward::session::Start;
use rljob_coordinator::reward::{Pool, Question, Rewards, Runner, run_agent};
use rljob_http::Limits;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// A served proxy that stops when it is dropped.
struct Served {
    proxy: &'static Proxy,
    base_url: String,
    _stop: tokio_util::sync::DropGuard,
}

fn serve() -> Served {
    serve_with(LIMITS)
}

fn serve_with(limits: Limits) -> Served {
    let proxy: &Proxy = Box::leak(Box::new(Proxy::new(Rules { temperature: 1.0 })));
    let (port, stop) = (LoopbackPort::open().unwrap(), CancellationToken::new());
    let (base_url, stopped) = (port.base_url(), stop.clone());
    tokio::spawn(async move { port.serve(proxy, limits, stopped).await });
    Served { proxy, base_url, _stop: stop.drop_guard() }
}

impl Served {
    async fn post(&self, key: &str, route: &str, body: String) -> (StatusCode, Value) {
        let answer = self.send(key, route, body).await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    /// Sends a request on a new connection.
    async fn send(&self, key: &str, route: &str, body: String) -> reqwest::Result<Response> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let url = format!("{}/{route}", self.base_url);
        client.post(url).bearer_auth(key).body(body).send().await
    }
}

fn runner() -> PathBuf {
    env!("CARGO_BIN_EXE_rljob-reward-runner").into()
}

/// Accepts every call.
async fn accept(mut session: Session) {
    while let Some(call) = session.calls.recv().await {
        if let Call::Reward(_, _, reply) | Call::Finish(_, reply) = call {
            // The client may have gone.
            let _ = reply.send(Ok(()));
        }
    }
}

#[tokio::test]
async fn a_key_gives_access_while_its_session_is_open() {
    let served = serve();
    let (one, other) = (served.proxy.session([1; 32]), served.proxy.session([2; 32]));
    let keys = [one.api_key.clone(), other.api_key.clone()];
    assert_ne!(keys[0], keys[1]);
    tokio::spawn(accept(one));
    let reward = || json!({"reward": 1}).to_string();
    assert_eq!(served.post(&keys[0], "rljob/reward", reward()).await.0, StatusCode::OK);
    drop(other);
    for key in [&keys[1], "rljob-", ""] {
        let (status, error) = served.post(key, "rljob/reward", reward()).await;
        assert_eq!(
            (status, &error["error"]["code"]),
            (StatusCode::UNAUTHORIZED, &json!("invalid_api_key"))
        );
    }
}

#[tokio::test]
async fn floods_and_large_bodies_are_rejected() {
    let served = serve();
    let session = served.proxy.session([1; 32]);
    let key = session.api_key.clone();
    let large = " ".repeat((8 << 20) + 1);
    let (status, error) = served.post(&key, "chat/completions", large).await;
    assert_eq!(
        (status, &error["error"]["type"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &json!("invalid_request_error"))
    );
    let flood = join_all((0..80).map(|_| served.post(&key, "rljob/finish", "{}".to_owned())));
    let (answers, ()) = tokio::join!(flood, async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(session);
    });
    let count = |status| answers.iter().filter(|answer| answer.0 == status).count();
    assert_eq!((count(StatusCode::TOO_MANY_REQUESTS), count(StatusCode::GONE)), (16, 64));
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once_and_those_with_a_request_are_answered() {
    const LIMIT: usize = 4;
    let served = serve_with(Limits { connections: LIMIT, ..LIMITS });
    let sessions: Vec<Session> = (0..12).map(|secret| served.proxy.session([secret; 32])).collect();
    let keys: Vec<String> = sessions.iter().map(|session| session.api_key.clone()).collect();
    let finish = async |key: &str| {
        let answer = served.send(key, "rljob/finish", "{}".to_owned()).await;
        answer.map(|answer| answer.status())
    };
    let mut flood: FuturesUnordered<_> = keys.iter().map(|key| finish(key)).collect();
    // The others wait for their sessions.
    for _ in LIMIT..keys.len() {
        let refused = flood.next().await.unwrap();
        assert!(refused.is_err(), "{refused:?}");
    }
    for session in sessions {
        tokio::spawn(accept(session));
    }
    let answers: Vec<StatusCode> = flood.map(Result::unwrap).collect().await;
    assert_eq!(answers, [StatusCode::OK; LIMIT]);
    for key in &keys {
        assert_eq!(finish(key).await.unwrap(), StatusCode::OK, "a session is still open");
    }
}

/// Fails unless the program can connect to the proxy, has read its input to the end, and does not
/// have the environment of the runner.
const PROGRAM: &str = r#"
import json, os, sys, urllib.request
assert json.load(sys.stdin) == {"question": "1+1"}
assert "SECRET" not in os.environ
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/rljob/reward", data=b'{"reward": 1}',
    headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
print(urllib.request.urlopen(request).read())
"#;

#[tokio::test]
async fn agents_reach_the_proxy_and_commands_of_rewards_in_the_same_container_do_not() {
    let served = serve();
    let session = served.proxy.session([1; 32]);
    let variables = BTreeMap::from([
        ("OPENAI_BASE_URL".to_owned(), served.base_url.clone()),
        ("OPENAI_API_KEY".to_owned(), session.api_key.clone()),
    ]);
    tokio::spawn(accept(session));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut command = Command::new(runner());
    command.arg("serve").arg("--socket").arg(&socket).arg("--network").kill_on_drop(true);
    let _server = command.env("SECRET", "x").spawn().unwrap();
    while !socket.exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let command = ["python3", "-c", PROGRAM].map(str::to_owned).to_vec();
    let start = Start::Agent { command, variables, is_forwarded: false };
    for runner in [Runner::Socket(socket.clone()), Runner::Program(runner())] {
        let (pool, router) = (Pool::new(&runner, 1), served.proxy.router());
        let (slot, input) = (pool.acquire().await.unwrap(), json!({"question": "1+1"}));
        run_agent(&slot, &start, &input, router, Duration::from_secs(60)).await.unwrap();
    }
    let connects = "import json, socket, sys\nid = json.loads(sys.stdin.readline())['id']\n\
        try: socket.socket(socket.AF_INET); reward = 1\nexcept PermissionError: reward = 0\n\
        print(json.dumps({'id': id, 'reward': reward}), flush=True)\nsys.stdin.read()";
    let spec = json!({"name": "net", "command": {"command": ["python3", "-c", connects]}});
    let rewards =
        Rewards::new(&[serde_json::from_value(spec).unwrap()], &Runner::Socket(socket), None);
    let question = Question { prompt: "", completion: "", answer: None, fields: None };
    let reward = rewards.unwrap().score(question).await.unwrap();
    assert!(reward.value.abs() < 0.5, "a command of a reward has an IP socket");
}
