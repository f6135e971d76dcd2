//! Weight updates from a folder and by broadcast, on either server.

use std::path::Path;

use rljob_collective::{Group, Store};
use rljob_learner::model::hugging_face::named_tensors;
use serde_json::{Value, json};

use crate::models::blocks;
use crate::requests::greedy;
use crate::server::{LIMIT, Server};

async fn output(server: &Server) -> Value {
    server.generate(&greedy("probe", &[11, 12, 13, 14], 16)).await["output_ids"].clone()
}

async fn version(server: &Server) -> Value {
    server.ask("GET", "/model_info", None).await.1["weight_version"].clone()
}

async fn first_weights(server: &Server) -> Value {
    let (status, row) = server
        .post(
            "/get_weights_by_name",
            &json!({"name": "model.layers.1.self_attn.o_proj.weight", "truncate_size": 2}),
        )
        .await;
    assert_eq!(status, 200, "{row}");
    row
}

async fn load(server: &Server, folder: &Path, version: &str) {
    let body = json!({"model_path": folder, "weight_version": version, "flush_cache": true});
    let message =
        format!("Succeeded to update model weights. Weight version updated to {version}.");
    let expected = json!({"success": true, "message": message, "num_paused_requests": 0});
    assert_eq!(server.post("/update_weights_from_disk", &body).await, (200, expected));
}

pub async fn a_folder_replaces_weights_and_version(server: &Server, models: &Path) {
    let (first, row) = (output(server).await, first_weights(server).await);
    load(server, &models.join("second"), "step-1.attempt-0").await;
    assert_eq!(version(server).await, json!("step-1.attempt-0"));
    assert_ne!(output(server).await, first);
    assert_ne!(first_weights(server).await, row);
    let answer = server.generate(&greedy("stamped", &[5], 2)).await;
    assert_eq!(answer["meta_info"]["weight_version"], json!("step-1.attempt-0"));
    load(server, &models.join("first"), "step-2.attempt-0").await;
    assert_eq!((output(server).await, first_weights(server).await), (first, row));
}

/// Publishes like the learner: this process hosts the store and is rank 0.
pub async fn a_broadcast_gives_the_same_weights_as_the_folder(server: &Server, models: &Path) {
    load(server, &models.join("second"), "step-3.attempt-0").await;
    let (by_folder, row) = (output(server).await, first_weights(server).await);
    load(server, &models.join("first"), "step-4.attempt-0").await;

    let (layout, blocks) = blocks(2);
    let tensors = named_tensors(&layout, &blocks);
    let field = |of: &dyn Fn(&(String, tch::Tensor)) -> Value| {
        tensors.iter().map(of).collect::<Vec<Value>>()
    };
    let update = json!({
        "names": field(&|(name, _)| json!(name)), "shapes": field(&|(_,
        tensor)| json!(tensor.size())), "dtypes": vec!["float32"; tensors.len()],
        "group_name": "contract", "flush_cache": true, "weight_version": "step-5.attempt-0"
    });
    let store = Store::host("127.0.0.1", 0, LIMIT).unwrap();
    let port = store.port();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let sender = std::thread::spawn(move || {
        let group =
            Group::join_weight_update(&store, "contract", 0, 2, "127.0.0.1", LIMIT).unwrap();
        for (_, tensor) in &tensors {
            group.broadcast(tensor, 0).unwrap();
        }
        let _ = released.recv_timeout(LIMIT);
    });
    let init = json!({"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1,
        "world_size": 2, "group_name": "contract", "backend": "gloo"});
    let joined = server.post("/init_weights_update_group", &init).await;
    assert_eq!(
        joined,
        (200, json!({"success": true, "message": "Succeeded to initialize custom process group."}))
    );
    let updated = server.post("/update_weights_from_distributed", &update).await;
    let message =
        "Succeeded to update parameter online. Weight version updated to step-5.attempt-0.";
    assert_eq!(updated, (200, json!({"success": true, "message": message})));
    assert_eq!(
        (output(server).await, first_weights(server).await, version(server).await),
        (by_folder, row, json!("step-5.attempt-0"))
    );
    let destroyed =
        server.post("/destroy_weights_update_group", &json!({"group_name": "contract"})).await;
    assert_eq!(
        destroyed,
        (200, json!({"success": true, "message": "Succeeded to destroy custom process group."}))
    );
    release.send(()).unwrap();
    tokio::task::spawn_blocking(move || sender.join().unwrap()).await.unwrap();
    load(server, &models.join("first"), "step-6.attempt-0").await;
}

pub async fn a_rejected_update_changes_nothing(server: &Server) {
    let (first, before) = (output(server).await, version(server).await);
    let (status, body) = server
        .post(
            "/update_weights_from_disk",
            &json!({"model_path": "/nowhere", "weight_version": "v", "flush_cache": true}),
        )
        .await;
    assert_eq!((status, &body["success"]), (400, &json!(false)));
    assert!(
        body["message"].as_str().unwrap().starts_with("Failed to get weights iterator: "),
        "{body}"
    );
    let missing =
        server.post("/destroy_weights_update_group", &json!({"group_name": "none"})).await;
    assert_eq!(
        missing,
        (400, json!({"success": false, "message": "The group to be destroyed does not exist."}))
    );
    assert_eq!((output(server).await, version(server).await), (first, before));
}
