//! Weight updates from a folder and by broadcast, on either server.

use std::path::Path;

use rljob_collective::{Group, Store};
use rljob_coordinator::engines::EngineClient;
use rljob_coordinator::sync::probes;
use rljob_coordinator::tokens::Token;
use rljob_learner::model::ModelConfig;
use rljob_learner::model::hugging_face::named_tensors;
use rljob_learner::publish::probes::Probes;
use rljob_protocol::probe::WeightProbe;
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

pub async fn load(server: &Server, folder: &Path, version: &str) {
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

/// The coordinator's check after an update: elements that a server holds are those of the weights
/// that it loaded, and others are noticed.
pub async fn elements_tell_the_loaded_weights_from_others(server: &Server, models: &Path) {
    let tokens = tempfile::tempdir().unwrap();
    std::fs::write(tokens.path().join("key"), "any").unwrap();
    let key = || Token::open(tokens.path(), "key").unwrap();
    let client = EngineClient::new(key(), key(), None);
    let published = |seed| {
        let (layout, blocks) = blocks(seed);
        let config = ModelConfig::from_folder(&models.join("first")).unwrap();
        Probes::default().choose(&named_tensors(&layout, &blocks), &config, seed as usize).unwrap()
    };
    let (first, second) = (published(1), published(2));
    load(server, &models.join("second"), "step-20.attempt-0").await;
    assert!(probes::check(&client, &server.url, &second).await.unwrap());
    let error = probes::check(&client, &server.url, &first).await.unwrap_err();
    let (name, sent) = (&first[1].name, first[1].values[0]);
    let row = json!({"name": name, "truncate_size": 1});
    let held = server.post("/get_weights_by_name", &row).await.1[0][0].clone();
    assert_eq!(
        error.to_string(),
        format!("the engine holds {held} at position 0 of `{name}`, the learners sent {sent}")
    );
    assert!(error.needs_replacement());
    let unknown = WeightProbe { name: "model.unknown".to_owned(), ..second[0].clone() };
    assert!(!probes::check(&client, &server.url, &[unknown]).await.unwrap());
    load(server, &models.join("first"), "step-21.attempt-0").await;
    assert!(probes::check(&client, &server.url, &first).await.unwrap());
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

/// Two publications in buckets through one process group, as the learner sends them: the version
/// changes with the last bucket, and the second publication joins nothing.
pub async fn buckets_of_two_publications_share_a_process_group(server: &Server, models: &Path) {
    let mut expected = Vec::new();
    for (folder, label) in [("second", "step-7.attempt-0"), ("first", "step-8.attempt-0")] {
        load(server, &models.join(folder), label).await;
        expected.push((output(server).await, first_weights(server).await));
    }
    let group = BucketSender::start(server, "kept").await;
    for (seed, expected) in [(2, &expected[0]), (1, &expected[1])] {
        let before = version(server).await;
        let label = format!("step-{}.attempt-1", 10 - seed);
        let middle = group.send(server, seed, 0, None).await;
        let message = "Succeeded to update parameter online.";
        assert_eq!(middle, (200, json!({"success": true, "message": message})));
        let between = version(server).await;
        assert!(between == before || between == json!("default"), "{between}");
        let last = group.send(server, seed, 1, Some(&label)).await;
        let message = format!("{message} Weight version updated to {label}.");
        assert_eq!(last, (200, json!({"success": true, "message": message})));
        let updated = (output(server).await, first_weights(server).await);
        assert_eq!((&updated, version(server).await), (expected, json!(label)));
    }
    group.stop();
    let destroyed =
        server.post("/destroy_weights_update_group", &json!({"group_name": "kept"})).await;
    assert_eq!(destroyed.0, 200, "{}", destroyed.1);
}

/// After the sender has left, an update fails and the server continues with another group.
pub async fn a_group_whose_sender_left_is_replaced_by_another(server: &Server, models: &Path) {
    let group = BucketSender::start(server, "left").await;
    group.stop();
    let update = bucket(2, 0, "left", Some("step-9.attempt-0")).0;
    let failed = server.post("/update_weights_from_distributed", &update).await;
    assert_eq!((failed.0, &failed.1["success"]), (400, &json!(false)), "{}", failed.1);
    assert!(failed.1["message"].as_str().unwrap().contains("partially updated"), "{}", failed.1);
    // A server may have left the group at the failure.
    let destroy = json!({"group_name": "left"});
    let destroyed = server.post("/destroy_weights_update_group", &destroy).await;
    assert!([200, 400].contains(&destroyed.0), "{}", destroyed.1);
    let group = BucketSender::start(server, "next").await;
    for (index, label) in [(0, None), (1, Some("step-9.attempt-1"))] {
        assert_eq!(group.send(server, 1, index, label).await.0, 200);
    }
    assert_eq!(version(server).await, json!("step-9.attempt-1"));
    group.stop();
    server.post("/destroy_weights_update_group", &json!({"group_name": "next"})).await;
    load(server, &models.join("first"), "step-10.attempt-0").await;
}

/// Request and content of bucket `index`, half of the model with weights of `seed`.
fn bucket(seed: u64, index: usize, group: &str, version: Option<&str>) -> (Value, tch::Tensor) {
    let (layout, blocks) = blocks(seed);
    let tensors = named_tensors(&layout, &blocks);
    let half = tensors.chunks(tensors.len().div_ceil(2)).nth(index).unwrap();
    let field =
        |of: &dyn Fn(&(String, tch::Tensor)) -> Value| half.iter().map(of).collect::<Vec<Value>>();
    let mut update = json!({
        "names": field(&|(name, _)| json!(name)),
        "shapes": field(&|(_, tensor)| json!(tensor.size())),
        "dtypes": vec!["float32"; half.len()], "group_name": group,
        "flush_cache": version.is_some(), "load_format": "flattened_bucket",
    });
    if let Some(version) = version {
        update["weight_version"] = json!(version);
    }
    let bytes = |(_, tensor): &(String, tch::Tensor)| {
        tensor.contiguous().view([-1]).view_dtype(tch::Kind::Uint8)
    };
    (update, tch::Tensor::cat(&half.iter().map(bytes).collect::<Vec<_>>(), 0))
}

/// Thread with the sender's end of a process group, which a server has joined.
struct BucketSender {
    name: &'static str,
    contents: std::sync::mpsc::Sender<tch::Tensor>,
    thread: std::thread::JoinHandle<()>,
}

impl BucketSender {
    async fn start(server: &Server, name: &'static str) -> Self {
        let store = Store::host("127.0.0.1", 0, LIMIT).unwrap();
        let init = json!({"master_address": "127.0.0.1", "master_port": store.port(),
            "rank_offset": 1, "world_size": 2, "group_name": name, "backend": "gloo"});
        let (contents, received) = std::sync::mpsc::channel::<tch::Tensor>();
        let thread = std::thread::spawn(move || {
            let group = Group::join_weight_update(&store, name, 0, 2, "127.0.0.1", LIMIT).unwrap();
            for content in received {
                group.broadcast(&content, 0).unwrap();
            }
        });
        let joined = server.post("/init_weights_update_group", &init).await;
        assert_eq!(joined.0, 200, "{}", joined.1);
        Self { name, contents, thread }
    }

    /// Broadcasts a bucket while the server receives it; returns its response.
    async fn send(
        &self,
        server: &Server,
        seed: u64,
        index: usize,
        version: Option<&str>,
    ) -> (u16, Value) {
        let (update, content) = bucket(seed, index, self.name, version);
        self.contents.send(content).unwrap();
        server.post("/update_weights_from_distributed", &update).await
    }

    fn stop(self) {
        drop(self.contents);
        self.thread.join().unwrap();
    }
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
