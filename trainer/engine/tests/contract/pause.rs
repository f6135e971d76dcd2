//! The pause of a run before a weight update: requests are aborted first.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::requests::greedy;
use crate::server::{LIMIT, Server};
use crate::weights::load;

/// Requests at the time of the pause, each longer than the test.
const REQUESTS: usize = 4;
const LONG: u32 = 3000;
const ROUNDS: u32 = 5;

/// Sleep of SGLang's pause while a request runs.
const SLEEP: Duration = Duration::from_secs(1);

/// Aborts all requests, pauses once their streams have ended, and changes the weights. The pause
/// then finds no request and does not sleep, and the update finds none that it would lose. Requests
/// sent during the pause are held, and get the new weights.
pub async fn a_pause_after_an_abort_does_not_sleep(server: &Server, models: &Path) {
    let mut paused = Vec::new();
    for round in 0..ROUNDS {
        let mut running = Vec::new();
        for index in 0..REQUESTS {
            let mut body = greedy(&format!("paused-{index}."), &[11, 12, 13, 14], LONG);
            body["return_logprob"] = json!(true);
            running.push(server.running(body).await);
        }
        let start = Instant::now();
        let aborted = server.post("/abort_request", &json!({"rid": "", "abort_all": true})).await;
        assert_eq!(aborted, (200, json!("")));
        for running in running {
            keeps_its_tokens(&running.answer().await);
        }
        assert_eq!(server.post("/pause_generation", &json!({"mode": "abort"})).await.0, 200);
        paused.push(start.elapsed());
        let held = server.spawn(&greedy("held.", &[11, 12, 13, 14], 5));
        let version = format!("step-{round}.attempt-7");
        load(server, &models.join(["second", "first"][round as usize % 2]), &version).await;
        assert!(!held.is_finished());
        assert_eq!(server.post("/continue_generation", &json!({})).await.0, 200);
        let answer = tokio::time::timeout(LIMIT, held).await.unwrap().unwrap();
        assert_eq!(answer["meta_info"]["weight_version"], json!(version));
    }
    eprintln!("{}: from abort to paused {paused:.1?}", server.url);
    assert!(paused.iter().all(|paused| *paused < SLEEP), "{paused:?}");
    load(server, &models.join("first"), "step-9.attempt-7").await;
}

fn keeps_its_tokens(answer: &Value) {
    let (tokens, meta) = (answer["output_ids"].as_array().unwrap(), &answer["meta_info"]);
    let aborted =
        json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null});
    assert_eq!(meta["finish_reason"], aborted);
    assert!((1..LONG as usize).contains(&tokens.len()));
    let logprobs = meta["output_token_logprobs"].as_array().unwrap();
    let ids: Vec<_> = logprobs.iter().map(|row| row[1].clone()).collect();
    assert_eq!(ids, *tokens);
}

/// While a request runs, the pause alone ends it too; SGLang sleeps then.
pub async fn a_pause_without_an_abort_ends_requests_too(server: &Server) {
    let running = server.running(greedy("runs.", &[11, 12, 13, 14], LONG)).await;
    let start = Instant::now();
    assert_eq!(server.post("/pause_generation", &json!({"mode": "abort"})).await.0, 200);
    eprintln!("{}: pause alone {:.1?}", server.url, start.elapsed());
    assert_eq!(running.answer().await["meta_info"]["finish_reason"]["type"], json!("abort"));
    assert_eq!(server.post("/continue_generation", &json!({})).await.0, 200);
}
