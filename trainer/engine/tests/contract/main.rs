//! One contract, two servers: what a run asks of SGLang 0.5.12 is asked of the real one (on CPU,
//! where tests/sglang/setup.sh has installed it) and of the embedded engine, over HTTP, with the
//! same model folder. Where SGLang is missing its half says that it is skipped, and why.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail the test"
)]

mod agreement;
mod behaviour;
mod exchanges;
mod models;
mod openai_client;
mod requests;
mod server;
mod weights;

use models::model_folder;
use server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_engine_keeps_the_contract() {
    let models = model_folder();
    let server = Server::embedded(&models.path().join("first")).await;
    keeps_the_contract(&server, models.path()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_keeps_the_contract_and_the_embedded_engine_answers_as_it_does() {
    let models = model_folder();
    let Some(sglang) = Server::sglang(&models.path().join("first")).await else { return };
    let embedded = Server::embedded(&models.path().join("first")).await;
    let problems = exchanges::differences(&embedded, &sglang).await;
    assert!(
        problems.is_empty(),
        "the embedded engine differs from SGLang:\n{}",
        problems.join("\n")
    );
    embedded.stop().await;
    keeps_the_contract(&sglang, models.path()).await;
    sglang.stop().await;
}

/// Everything, one after the other: each leaves the server as it found it.
async fn keeps_the_contract(server: &Server, models: &std::path::Path) {
    behaviour::streams_are_cumulative_and_end_with_done(server).await;
    behaviour::a_batch_is_answered_in_order_and_streamed_with_indexes(server).await;
    behaviour::abort_takes_a_live_id_and_what_begins_with_it(server).await;
    behaviour::pause_abort_answers_what_runs_and_holds_what_comes(server).await;
    behaviour::pause_retract_and_in_place_go_on_where_they_were(server).await;
    behaviour::a_flush_needs_an_idle_server(server).await;
    behaviour::limits_that_leave_one_token_are_greedy(server).await;
    weights::a_folder_replaces_weights_and_version(server, models).await;
    weights::a_broadcast_gives_the_same_weights_as_the_folder(server, models).await;
    weights::what_is_refused_changes_nothing(server).await;
}
