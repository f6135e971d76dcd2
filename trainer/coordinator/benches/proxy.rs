//! Proxy of agents: latency that it adds to a turn, compared with the same turns straight to the
//! engine, in alternation; and memory of a coordinator with 10,000 open sessions.
//!
//! ```text
//!  this process: agents ─┬─▶ `proxy serve`: Proxy, sessions, Fleet ─▶ rljob-engine
//!                        └──────────── straight ────────────────────▶     ▲
//! ```
//! All turns use the same client, one connection per conversation, and the same lengths. Sessions
//! have a reader of calls as those of a run, but no program: the agents of this process use their
//! keys. Connections stay open, as those of clients with a pool do.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

#[path = "proxy/agent.rs"]
mod agent;
#[path = "proxy/coordinator.rs"]
mod coordinator;
#[path = "proxy/engine.rs"]
mod engine;

use std::path::Path;

use agent::Conversation;
use coordinator::Coordinator;
use engine::Engine;
use futures::StreamExt as _;
use rljob_tests::bench::{Aim, row};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Measured conversations of each side, after those of the warm-up, and turns of each.
const CONVERSATIONS: usize = 300;
const WARM_UP: usize = 30;
const TURNS: usize = 2;
/// Maximum tokens of a completion.
const TOKENS: u32 = 16;
/// Milliseconds that the proxy may add to the median of a turn.
const ADDED: f64 = 2.0;
/// Open sessions, those whose agents request completions at the same time, and the memory of all in
/// GiB.
const SESSIONS: usize = 10_000;
const AT_ONCE: usize = 32;
const MEMORY: f64 = 1.0;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, serve, engine, model] = arguments.as_slice()
        && serve == "serve"
    {
        runtime.block_on(coordinator::serve(engine, Path::new(model)));
        return;
    }
    allow_open_files();
    runtime.block_on(async {
        let engine = Engine::start().await;
        let mut coordinator = Coordinator::start(&engine.url, engine.model.path());
        latency(&mut coordinator, &engine.url).await;
        memory(&mut coordinator).await;
    });
}

/// Allows as many open files as the hard limit, for this process and those that it starts.
fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// Measures turns of one conversation at a time, straight to the engine and through the proxy. The
/// side that begins alternates.
async fn latency(coordinator: &mut Coordinator, engine: &str) {
    let keys = coordinator.open(WARM_UP + CONVERSATIONS);
    let engine = format!("{engine}/v1");
    let mut times = [Vec::new(), Vec::new()];
    for (number, key) in keys.into_iter().enumerate() {
        let mut sides = [
            Conversation::open(&engine, "none").await,
            Conversation::open(&coordinator.url, &key).await,
        ];
        for turn in 0..TURNS {
            for place in 0..sides.len() {
                let side = (number + place) % sides.len();
                let question = question(2 * number + side, turn);
                let time = sides[side].turn(question, TOKENS).await.milliseconds;
                if number >= WARM_UP {
                    times[side].push(time);
                }
            }
        }
    }
    let [straight, proxy] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        [0.5, 0.99].map(|share| times[(times.len() as f64 * share) as usize])
    });
    let added = proxy[0] - straight[0];
    let figures = format!(
        "proxy p50 {:.2} ms, p99 {:.2} ms; straight p50 {:.2} ms, p99 {:.2} ms; added p50 \
         {added:.2} ms, p99 {:.2} ms; {:.2} x at p50; {} turns each",
        proxy[0],
        proxy[1],
        straight[0],
        straight[1],
        proxy[1] - straight[1],
        proxy[0] / straight[0],
        CONVERSATIONS * TURNS,
    );
    row("proxy-added-ms", &figures, added, Aim::AtMost(ADDED));
}

/// Opens the sessions, records all turns of each, and measures the memory of the coordinator.
async fn memory(coordinator: &mut Coordinator) {
    let before = coordinator.resident();
    let keys = coordinator.open(SESSIONS);
    let opened = coordinator.resident();
    let url = coordinator.url.clone();
    let play = |(number, key): (usize, String)| {
        let url = &url;
        async move {
            let mut conversation = Conversation::open(url, &key).await;
            let mut so_far = 0;
            for turn in 0..TURNS {
                let turn = conversation.turn(question(number, turn), TOKENS).await;
                assert!(turn.prompt_tokens > so_far, "a turn does not continue the exact tokens");
                so_far = turn.total_tokens;
            }
            conversation
        }
    };
    let conversations: Vec<Conversation> = futures::stream::iter(keys.into_iter().enumerate())
        .map(play)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    assert_eq!(conversations.len(), SESSIONS);
    let after = coordinator.resident();
    let (gib, mib) = (f64::from(1 << 30), f64::from(1 << 20));
    let figures = format!(
        "{SESSIONS} sessions of {TURNS} turns, {} connections open: resident memory {:.0} MiB, \
         {:.0} MiB before them, {:.0} MiB before their turns; {:.0} bytes a session",
        coordinator.connections(),
        after / mib,
        before / mib,
        opened / mib,
        (after - before) / SESSIONS as f64,
    );
    row("proxy-sessions-gib", &figures, after / gib, Aim::AtMost(MEMORY));
}

fn question(number: usize, turn: usize) -> String {
    format!("What is {number} + {turn}? Think about it, and answer with the number only.")
}
