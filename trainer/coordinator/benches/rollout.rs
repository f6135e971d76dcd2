//! Requests per second and core of the rollout client, compared with Python's aiohttp at the same
//! server, in alternation.
//!
//! ```text
//!  this process: Sampler, Fleet, EngineClient ─┬─▶ `rollout serve`: immediate responses
//!  rollout_peer.py: aiohttp ───────────────────┘    in a separate process
//! ```
//! Core time is the processor time of the client process only. Both clients stream, check weight
//! versions, ids and lengths of responses, and keep tokens and log-probabilities.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, post};
use futures::StreamExt as _;
use prometheus::IntCounter;
use rljob_coordinator::clock::Clock;
use rljob_coordinator::engines::{EngineClient, Fleet, Place, Wanted, Weights};
use rljob_coordinator::persistence::fence::Fence;
use rljob_coordinator::rollout::request::{Key, Purpose};
use rljob_coordinator::rollout::sampler::{SampleRequest, Sampler};
use rljob_coordinator::rollout::stop::Stops;
use rljob_coordinator::tokens::Token;
use rljob_crds::roles::InferenceSpec;
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::sglang::SGLANG_RELEASE;
use rljob_protocol::version::Version;
use rljob_tests::bench::{Aim, Peer, in_turn, row, skipped};
use rljob_tests::files::python;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Requests of a round, in groups, and concurrent groups.
const REQUESTS: u32 = 16384;
const GROUP: u32 = 64;
const GROUPS: u32 = 4;
const ROUNDS: usize = 5;
const PROMPT: i64 = 64;
const COMPLETION: u32 = 64;
const VOCABULARY: i64 = 50_000;
const AIM: f64 = 10.0;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if std::env::args().any(|argument| argument == "serve") {
        runtime.block_on(serve());
        return;
    }
    let python = match python() {
        Ok(python) => python,
        Err(error) => return skipped("rollout-requests", &format!("{error:#}")),
    };
    let (mut server, url) = start_server();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/rollout_peer.py");
    let mut peer = Peer::start(
        Command::new(python)
            .arg(script)
            .args([&url, &GROUP.to_string(), &GROUPS.to_string()])
            .arg(body().to_string()),
    )
    .unwrap();
    let fleet = runtime.block_on(fleet(&url));
    let ours = || runtime.block_on(requests_per_core_second(&fleet));
    let (ours, theirs) = in_turn(ROUNDS, ours, || peer.ask(&REQUESTS.to_string()).unwrap());
    let figures =
        format!("{ours:.0} requests/s of a core; aiohttp {theirs:.0} requests/s of a core");
    row("rollout-requests", &figures, ours / theirs, Aim::AtLeast(AIM));
    drop(server.stdin.take());
    server.wait().unwrap();
}

/// The server process, which exits when its standard input closes, and its URL.
fn start_server() -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child =
        command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

/// Engine with weights of step 0 and immediate, constant completions.
async fn serve() {
    let ids: Vec<i64> = (0..i64::from(COMPLETION)).map(|position| 100 + position * 17).collect();
    let logprobs: Vec<_> =
        ids.iter().map(|id| json!([-0.123_456_789 - *id as f64 / 1000.0, id, null])).collect();
    let meta = json!({
        "id": "r", "finish_reason": {"type": "length", "length": COMPLETION},
        "prompt_tokens": PROMPT, "completion_tokens": COMPLETION, "cached_tokens": 0,
        "weight_version": "step-0.attempt-0", "output_token_logprobs": logprobs,
        "e2e_latency": 0.01,
    });
    let event = json!({"text": "", "output_ids": ids, "meta_info": meta});
    let info = json!({
        "model_path": "/model", "is_generation": true, "weight_version": "step-0.attempt-0",
    })
    .to_string();
    let server_info = json!({
        "version": SGLANG_RELEASE, "incremental_streaming_output": true,
        "internal_states": [{"effective_max_running_requests_per_dp": GROUP * GROUPS}],
    })
    .to_string();
    let generate = move |body: axum::body::Bytes| async move {
        let samples = serde_json::from_slice::<Asked>(&body).unwrap().rid;
        let samples = samples.as_array().map_or(0, Vec::len);
        ([(CONTENT_TYPE, "text/event-stream")], stream(&event, samples))
    };
    let routes = Router::new()
        .route("/generate", post(generate))
        .route("/model_info", get(move || async move { info }))
        .route("/server_info", get(move || async move { server_info }))
        .route("/continue_generation", post(|| async { "{}" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    axum::serve(listener, routes)
        .with_graceful_shutdown(async { drop(closed.await) })
        .await
        .unwrap();
}

/// Ids of the samples of a request.
#[derive(serde::Deserialize)]
struct Asked {
    rid: serde_json::Value,
}

/// A stream with the event of one sample, or of each of several.
fn stream(event: &serde_json::Value, samples: usize) -> String {
    let of = |index: usize| {
        let mut event = event.clone();
        event["index"] = index.into();
        event
    };
    let events = if samples == 0 { vec![event.clone()] } else { (0..samples).map(of).collect() };
    let events: Vec<_> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    events.concat() + "data: [DONE]\n\n"
}

fn prompt() -> Vec<i64> {
    (0..PROMPT).map(|position| 1000 + position * 7).collect()
}

/// Request of rollout_peer.py, with the same fields as the rollout client's.
fn body() -> serde_json::Value {
    let sampling = json!({
        "max_new_tokens": COMPLETION, "temperature": 1.0, "top_p": 1.0, "top_k": -1,
        "stop_token_ids": [2], "ignore_eos": false, "skip_special_tokens": true,
        "sampling_seed": 1_234_567_890,
    });
    json!({
        "rid": "", "input_ids": prompt(), "sampling_params": sampling, "return_logprob": true,
        "stream": true,
    })
}

/// Fleet of one ready engine.
async fn fleet(url: &str) -> Fleet {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "secret").unwrap();
    let token = Token::open(folder.path(), "token").unwrap();
    let fence = Fence::claim(folder.path(), "bench", 1, 1).unwrap();
    let client = EngineClient::new(token.clone(), token, None);
    let fleet = Fleet::new(&InferenceSpec::default(), client, Clock::start());
    fleet.set(&[EngineEndpoint { name: "engine-0".to_owned(), url: url.to_owned(), uid: None }]);
    let weights = Weights::Since(0);
    let any = Wanted { preferred: None, weights, requests: 1, tokens: 1 };
    let ready = fleet.lease(Place::default(), any);
    tokio::select! {
        lease = tokio::time::timeout(Duration::from_secs(60), ready) => drop(lease.unwrap()),
        () = fleet.monitor(&fence, CancellationToken::new()) => {}
    }
    fleet
}

async fn requests_per_core_second(fleet: &Fleet) -> f64 {
    let sampler = Sampler {
        fleet,
        run_seed: 1,
        seeded: true,
        vocabulary: VOCABULARY,
        stops: Stops {
            token_ids: vec![2],
            strings: Vec::new(),
            tokenizer: None,
            min_new_tokens: 0,
        },
        deterministic: false,
        keeps_cache: false,
        clock: Clock::start(),
        nonce: AtomicU64::new(0),
        interrupted: IntCounter::new("interrupted", "Interruptions.").unwrap(),
    };
    let (prompt, weights) = (prompt(), Weights::Exactly(Version { step: 0, attempt: 0 }));
    let before = core_seconds();
    let group = async |position| {
        let key = |index| Key { purpose: Purpose::Rollout, step: 1, position, index, turn: 0 };
        let wanted: Vec<_> = (0..GROUP)
            .map(|index| SampleRequest {
                stop: Vec::new(),
                live: None,
                top_p: 1.0,
                key: key(index),
                temperature: 1.0,
                max_new_tokens: COMPLETION,
            })
            .collect();
        let lease = sampler.lease(weights, &prompt, &wanted).await;
        let tokens = sampler
            .group(lease, weights, &prompt, &wanted)
            .map(|(_, sampled)| sampled.unwrap().completion.tokens.len());
        assert_eq!(tokens.collect::<Vec<_>>().await, vec![COMPLETION as usize; GROUP as usize]);
    };
    futures::stream::iter(0..u64::from(REQUESTS / GROUP))
        .for_each_concurrent(GROUPS as usize, group)
        .await;
    f64::from(REQUESTS) / (core_seconds() - before)
}

/// Processor time of this process in units of 10 ms.
fn core_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Fields 14 and 15, user and system time; counted after the name, which may contain spaces.
    let ticks = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}
