//! API contract tests: the requests of a run are sent to the embedded engine and to SGLang 0.5.12
//! on the CPU, with the same model folder. Without SGLang (tests/sglang/setup.sh), the comparison
//! is skipped with a message.

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
mod metrics;
mod models;
mod openai_client;
mod pause;
mod requests;
mod server;
mod weights;

use models::model_folder;
use server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_engine_meets_the_contract() {
    let models = model_folder();
    let server = Server::embedded(&models.path().join("first")).await;
    meets_the_contract(&server, models.path()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_meets_the_contract_and_the_embedded_engine_responds_like_it() {
    let models = model_folder();
    let Some(sglang) = Server::sglang(&models.path().join("first")).await else { return };
    let embedded = Server::embedded(&models.path().join("first")).await;
    let problems = exchanges::differences(&embedded, &sglang).await;
    assert!(
        problems.is_empty(),
        "the embedded engine differs from SGLang:\n{}",
        problems.join("\n")
    );
    meets_the_contract(&sglang, models.path()).await;
    let problems = metrics::differences(&embedded, &sglang).await;
    assert_eq!(problems, Vec::<String>::new(), "metrics differ from SGLang's");
    embedded.stop().await;
    sglang.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_engine_classifies_like_sglang() {
    let models = model_folder();
    let (model, flags) = (models.path().join("scores"), ["--is-embedding"]);
    let Some(sglang) = Server::sglang_with(&model, "float32", &flags).await else { return };
    let embedded = Server::embedded_with(&model, "float32", &flags).await;
    let problems = exchanges::differences_of_classifiers(&embedded, &sglang).await;
    assert_eq!(problems, Vec::<String>::new(), "the embedded engine differs from SGLang");
    embedded.stop().await;
    sglang.stop().await;
}

/// Runs all checks in sequence; each restores the state of the server.
async fn meets_the_contract(server: &Server, models: &std::path::Path) {
    behaviour::events_of_a_stream_join_to_the_whole_response_and_end_with_done(server).await;
    behaviour::a_batch_response_is_in_order_and_its_stream_has_indexes(server).await;
    behaviour::abort_matches_an_id_and_ids_that_start_with_it(server).await;
    behaviour::pause_abort_finishes_running_requests_and_holds_new_ones(server).await;
    behaviour::health_is_503_while_paused(server).await;
    behaviour::paused_requests_continue_after_retract_and_in_place(server).await;
    behaviour::a_flush_needs_an_idle_server(server).await;
    behaviour::limits_that_leave_one_candidate_are_greedy(server).await;
    pause::a_pause_without_an_abort_ends_requests_too(server).await;
    pause::a_pause_after_an_abort_does_not_sleep(server, models).await;
    weights::a_folder_replaces_weights_and_version(server, models).await;
    weights::elements_tell_the_loaded_weights_from_others(server, models).await;
    weights::a_broadcast_gives_the_same_weights_as_the_folder(server, models).await;
    weights::buckets_of_two_publications_share_a_process_group(server, models).await;
    weights::a_group_whose_sender_left_is_replaced_by_another(server, models).await;
    weights::a_rejected_update_changes_nothing(server).await;
}
