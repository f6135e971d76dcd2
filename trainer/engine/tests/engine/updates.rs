//! Weight updates from a folder and by broadcast: complete, rejected and interrupted.

use std::time::Duration;

use rljob_collective::{Group, Store};
use rljob_learner::model::hugging_face::named_tensors;
use serde_json::{Value, json};

use crate::harness::{Running, greedy, random_blocks, request, start, tiny_config, write_model};

const TIMEOUT: Duration = Duration::from_secs(60);

async fn output(engine: &Running) -> Vec<i64> {
    engine.generate(&greedy("probe", vec![11, 12, 13, 14], 16)).await.output_ids
}

async fn version(engine: &Running) -> String {
    engine.info().await.weight_version
}

fn from_disk(path: &std::path::Path, version: &str) -> Value {
    json!({"model_path": path, "weight_version": version, "flush_cache": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_replaces_weights_and_version_and_old_weights_restore_the_output() {
    let engine = start(&[]).await;
    let first = output(&engine).await;
    let other = engine.folder.path().join("other");
    write_model(&other, &tiny_config(), 2);
    let answer =
        engine.post("/update_weights_from_disk", &from_disk(&other, "step-1.attempt-0")).await;
    let message = "Succeeded to update model weights. Weight version updated to step-1.attempt-0.";
    assert_eq!(
        answer,
        (200, json!({"success": true, "message": message, "num_paused_requests": 0}))
    );
    let second = engine.generate(&greedy("probe", vec![11, 12, 13, 14], 16)).await;
    assert_ne!(second.output_ids, first);
    assert_eq!(
        (second.meta_info.weight_version.as_str(), second.meta_info.cached_tokens),
        ("step-1.attempt-0", 0)
    );
    assert_eq!(engine.info().await.model_path, other.to_str().unwrap());
    engine.post("/update_weights_from_disk", &from_disk(&engine.model(), "step-2.attempt-0")).await;
    assert_eq!(output(&engine).await, first);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_update_changes_nothing() {
    let engine = start(&[]).await;
    let first = output(&engine).await;
    let (status, body) =
        engine.post("/update_weights_from_disk", &from_disk("/nowhere".as_ref(), "v")).await;
    assert_eq!((status, &body["success"]), (400, &json!(false)));
    assert!(
        body["message"].as_str().unwrap().starts_with("Failed to get weights iterator: "),
        "{body}"
    );

    let unknown = json!({"names": ["a"], "dtypes": ["float32"], "shapes": [[1]],
        "group_name": "none", "flush_cache": true, "weight_version": "v"});
    let message =
        "Failed to update parameter online: group `none` does not exist; initialize it first.";
    assert_eq!(
        engine.post("/update_weights_from_distributed", &unknown).await,
        (400, json!({"success": false, "message": message}))
    );
    let missing =
        engine.post("/destroy_weights_update_group", &json!({"group_name": "none"})).await;
    assert_eq!(
        missing,
        (400, json!({"success": false, "message": "The group to be destroyed does not exist."}))
    );

    let busy = engine.spawn(&request("a", vec![5, 6, 7], 8000, 3));
    engine.until("sglang:num_running_reqs", 1.0).await;
    let rejected = engine.post("/update_weights_from_disk", &from_disk(&engine.model(), "v")).await;
    let message = "Weights change only while no request is running or waiting: pause_generation \
        with mode `abort` first, or with another mode and send flush_cache false.";
    assert_eq!(
        rejected,
        (400, json!({"success": false, "message": message, "num_paused_requests": 0}))
    );
    engine.post("/abort_request", &json!({"abort_all": true})).await;
    busy.await.unwrap();
    assert_eq!((version(&engine).await, output(&engine).await), ("default".to_owned(), first));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_requests_wait_for_the_new_weights() {
    let engine = start(&[]).await;
    let other = engine.folder.path().join("other");
    write_model(&other, &tiny_config(), 2);
    engine.post("/pause_generation", &json!({"mode": "abort"})).await;
    let held = engine.spawn(&greedy("held", vec![11, 12], 4));
    engine.until("sglang:num_queue_reqs", 1.0).await;
    assert_eq!(
        engine.post("/update_weights_from_disk", &from_disk(&other, "step-1.attempt-0")).await.0,
        200
    );
    engine.post("/continue_generation", &json!({})).await;
    assert_eq!(held.await.unwrap().meta_info.weight_version, "step-1.attempt-0");
    engine.stop().await;
}

/// Starts a sender that hosts a store and broadcasts the first `count` tensors of a model with
/// weights of seed 2. It stays in the group until it receives a message.
fn sender(count: usize) -> (u16, Value, std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    let store = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    let port = store.port();
    let (layout, blocks) = random_blocks(&tiny_config(), 2);
    let tensors = named_tensors(&layout, &blocks);
    let field = |of: &dyn Fn(&(String, tch::Tensor)) -> Value| {
        tensors.iter().map(of).collect::<Vec<Value>>()
    };
    let (names, shapes) =
        (field(&|(name, _)| json!(name)), field(&|(_, tensor)| json!(tensor.size())));
    let dtypes = vec!["float32"; tensors.len()];
    let update = json!({"names": names, "dtypes": dtypes, "shapes": shapes, "group_name": "g",
        "flush_cache": true, "weight_version": "step-3.attempt-1"});
    let (release, released) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let group = Group::join_weight_update(&store, "g", 0, 2, "127.0.0.1", TIMEOUT).unwrap();
        for (_, tensor) in tensors.iter().take(count) {
            group.broadcast(tensor, 0).unwrap();
        }
        let _ = released.recv_timeout(TIMEOUT);
    });
    (port, update, release, thread)
}

async fn join(engine: &Running, port: u16) {
    let init = json!({"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1,
        "world_size": 2, "group_name": "g", "backend": "gloo"});
    let joined = engine.post("/init_weights_update_group", &init).await;
    assert_eq!(
        joined,
        (200, json!({"success": true, "message": "Succeeded to initialize custom process group."}))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_gives_the_same_weights_as_the_folder() {
    let engine = start(&[]).await;
    let other = engine.folder.path().join("other");
    write_model(&other, &tiny_config(), 2);
    let (port, update, release, thread) = sender(usize::MAX);
    join(&engine, port).await;
    let answer = engine.post("/update_weights_from_distributed", &update).await;
    let message =
        "Succeeded to update parameter online. Weight version updated to step-3.attempt-1.";
    assert_eq!(answer, (200, json!({"success": true, "message": message})));
    assert_eq!(version(&engine).await, "step-3.attempt-1");
    let by_broadcast = output(&engine).await;
    assert_eq!(
        engine.post("/destroy_weights_update_group", &json!({"group_name": "g"})).await.0,
        200
    );
    release.send(()).unwrap();
    thread.join().unwrap();
    engine.post("/update_weights_from_disk", &from_disk(&other, "v")).await;
    assert_eq!(output(&engine).await, by_broadcast);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_broadcast_resets_the_version() {
    let engine = start(&[]).await;
    engine.post("/update_weights_from_disk", &from_disk(&engine.model(), "step-2.attempt-0")).await;
    let (port, update, release, thread) = sender(3);
    join(&engine, port).await;
    drop(release);
    let (status, body) = engine.post("/update_weights_from_distributed", &update).await;
    thread.join().unwrap();
    let message = body["message"].as_str().unwrap();
    assert!(
        status == 400 && message.starts_with("Failed to update parameter online: tensor `"),
        "{body}"
    );
    assert!(
        message.ends_with(
            "The full weights of the ModelRunner are partially updated. Please \
        discard the whole weights."
        ),
        "{body}"
    );
    assert_eq!(version(&engine).await, "default");
    assert_eq!(
        engine
            .post("/update_weights_from_disk", &from_disk(&engine.model(), "step-2.attempt-0"))
            .await
            .0,
        200
    );
    assert_eq!(version(&engine).await, "step-2.attempt-0");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_can_be_read_by_name() {
    let engine = start(&[]).await;
    let norm = engine.get("/get_weights_by_name?name=model.norm.weight&truncate_size=3").await;
    assert_eq!(norm, (200, "[1.0,1.0,1.0]".to_owned()));
    let (_, blocks) = random_blocks(&tiny_config(), 1);
    let row: Vec<f32> = blocks[0].narrow(0, 0, 64).try_into().unwrap();
    let read = engine
        .post(
            "/get_weights_by_name",
            &json!({"name": "model.embed_tokens.weight", "truncate_size": 1}),
        )
        .await;
    assert_eq!(read, (200, json!([row])));
    let unknown =
        engine.post("/get_weights_by_name", &json!({"name": "x", "truncate_size": 1})).await;
    assert_eq!(unknown, (400, json!({"error": {"message": "Get parameter by name failed"}})));
    engine.stop().await;
}
