//! Throughput of SmolLM2-135M, 8 concurrent requests of 128 tokens, compared with SGLang 0.5.12 on
//! the same CPU with the same prompts, dtype and threads, in alternation. Prints `bench NAME RATIO
//! AIM holds|short` for fp32 and bf16; it asserts nothing about speed.
//!
//! SGLang runs with torch attention and replacements for its CPU kernels (tests/sglang/setup.sh),
//! that is, on torch operations as on any machine without AMX. `OMP_NUM_THREADS` sets the threads
//! of both. Startup and first requests are not measured.

#![expect(
    clippy::unwrap_used,
    reason = "a benchmark fails by panicking and prints missing prerequisites"
)]

#[path = "../tests/contract/server.rs"]
mod server;

use std::path::Path;
use std::time::Instant;

use futures::future::join_all;
use rljob_tests::bench::{Aim, median, row, skipped};
use rljob_tests::files::sglang;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use server::Server;

const REQUESTS: usize = 8;
const TOKENS: u32 = 128;
/// Measured rounds per server, after one warm-up round.
const ROUNDS: usize = 3;
const AIM: f64 = 1.5;

/// Eight prompts of 16 tokens, different in every round, so that none is cached.
fn bodies(round: usize) -> Vec<Value> {
    let prompt = |request: usize| {
        (0..16)
            .map(|position| (1000 + (round * REQUESTS + request) * 131 + position * 17) % 49000)
            .collect::<Vec<_>>()
    };
    let body = |request| {
        let sampling = json!({"temperature": 1.0, "top_p": 1.0, "top_k": -1,
            "max_new_tokens": TOKENS, "ignore_eos": true});
        json!({"rid": format!("{round}-{request}."), "input_ids": prompt(request),
            "sampling_params": sampling, "return_logprob": true})
    };
    (0..REQUESTS).map(body).collect()
}

fn signal(server: &Server, signal: Signal) {
    kill_process_group(Pid::from_child(&server.child), signal).unwrap();
}

/// Tokens per second of a round with the other server stopped: SGLang's idle scheduler uses a core.
async fn round(server: &Server, other: &Server, round: usize) -> f64 {
    signal(other, Signal::STOP);
    let start = Instant::now();
    let bodies = bodies(round);
    let answers = join_all(bodies.iter().map(|body| server.generate(body))).await;
    let seconds = start.elapsed().as_secs_f64();
    signal(other, Signal::CONT);
    let tokens: usize =
        answers.iter().map(|answer| answer["output_ids"].as_array().unwrap().len()).sum();
    assert_eq!(tokens, REQUESTS * TOKENS as usize);
    tokens as f64 / seconds
}

async fn measure(name: &str, model: &Path, dtype: &str) {
    let Some(theirs) = Server::sglang_of(model, dtype).await else { return };
    let ours = Server::embedded_of(model, dtype).await;
    let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
    for index in 0..=ROUNDS {
        let rates = (round(&ours, &theirs, index).await, round(&theirs, &ours, index).await);
        if index > 0 {
            our_rates.push(rates.0);
            their_rates.push(rates.1);
        }
    }
    let (our_rate, their_rate) = (median(our_rates), median(their_rates));
    row(
        name,
        &format!("{our_rate:.0} tok/s; SGLang {their_rate:.0} tok/s"),
        our_rate / their_rate,
        Aim::AtLeast(AIM),
    );
    ours.stop().await;
    theirs.stop().await;
}

fn main() {
    let models = match sglang() {
        Ok(installation) => installation.join("models"),
        Err(error) => return skipped("generation-tokens", &format!("{error:#}")),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        measure("generation-tokens", &models.join("smollm2-135m-f32"), "float32").await;
        measure("generation-tokens-bf16", &models.join("smollm2-135m"), "bfloat16").await;
    });
}
