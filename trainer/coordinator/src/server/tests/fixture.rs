//! A coordinator behind real HTTP on loopback.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::{Client, Method, StatusCode};
use rljob_crds::RunConfig;
use rljob_protocol::status::CoordinatorStatus;
use rljob_protocol::supervisor::Order;
use rljob_protocol::version::Version;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::coordinator::Coordinator;
use crate::engines::EngineClient;
use crate::persistence::journal::{FixedBatch, Sample, Segment, VersionRun};
use crate::reward::Runner;
use crate::server::router;
use crate::tokens::Token;
use crate::{claim, opening};

pub(super) struct Server {
    pub(super) url: String,
    pub(super) http: Client,
    pub(super) coordinator: Arc<Coordinator>,
    _directory: tempfile::TempDir,
}

pub(super) fn config(directory: &Path, change: impl FnOnce(&mut Value)) -> RunConfig {
    let mut spec = json!({
        "model": {"path": "/models/none"},
        "storage": {"hostPath": {"path": "/tmp"}},
        "dataset": {
            "train": {"path": "/data/none.jsonl", "prompt": "{{question}}", "answer": "answer"},
        },
        "rewards": [{"name": "correct", "math": {}}],
        "algorithm": {"grpo": {"groupSize": 2}},
        "rollout": {"batchSize": 1},
        "training": {"steps": 3},
    });
    change(&mut spec);
    serde_json::from_value(json!({
        "namespace": "default", "name": "job", "uid": "u", "runDirectory": directory,
        "modelDirectory": directory, "spec": spec,
    }))
    .unwrap()
}

pub(super) async fn server() -> Server {
    server_with(|_| ()).await
}

pub(super) async fn server_with(change: impl FnOnce(&mut Value)) -> Server {
    server_of(1, change).await
}

/// A server of a run configuration that needs this protocol version.
pub(super) async fn server_of(protocol: u32, change: impl FnOnce(&mut Value)) -> Server {
    let directory = tempfile::tempdir().unwrap();
    let config = RunConfig { protocol, ..config(directory.path(), change) };
    let coordinator = Arc::new(open(directory.path(), config, 1).await);
    let token = |name| Token::open(directory.path(), name).unwrap();
    let routes = router(Arc::clone(&coordinator), token("operator"), token("learner"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, routes).into_future());
    Server {
        url,
        http: Client::builder().no_proxy().build().unwrap(),
        coordinator,
        _directory: directory,
    }
}

/// Opens the run of a directory, which gets tokens, as the coordinator of an epoch.
pub(super) async fn open(directory: &Path, config: RunConfig, epoch: u64) -> Coordinator {
    let shape = json!({
        "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 1,
    });
    std::fs::write(directory.join("config.json"), shape.to_string()).unwrap();
    for name in ["operator", "learner", "engine-api", "engine-admin"] {
        std::fs::write(directory.join(name), format!("secret-{name}\n")).unwrap();
    }
    let token = |name| Token::open(directory, name).unwrap();
    let client = EngineClient::new(token("engine-api"), token("engine-admin"), None);
    let runner = Runner::Program(PathBuf::new());
    let config = Arc::new(config);
    let journal = claim::claim(&config, 7, epoch, |fault| panic!("{fault}")).await.unwrap();
    opening::open(config, client, runner, 7, journal).await.unwrap()
}

impl Server {
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        token: &str,
        body: Option<Value>,
    ) -> (StatusCode, Vec<u8>) {
        let mut request =
            self.http.request(method, format!("{}{path}", self.url)).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        (response.status(), response.bytes().await.unwrap().to_vec())
    }

    pub(super) async fn get(&self, path: &str) -> (StatusCode, Vec<u8>) {
        self.call(Method::GET, path, "secret-learner", None).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> (StatusCode, Vec<u8>) {
        self.call(Method::POST, path, "secret-learner", Some(body)).await
    }

    pub(super) async fn set_desired(&self, epoch: u64) -> StatusCode {
        let desired = json!({
            "epoch": epoch, "generation": 1, "mode": "Run", "engines": [],
            "checkpoint": {"everySteps": 2, "keepLast": 2},
            "restart": {
                "maxRestarts": 1, "backoffInitialSeconds": 0, "backoffMaxSeconds": 1,
                "hangTimeoutSeconds": 1800,
            },
        });
        self.call(Method::PUT, "/v1/desired", "secret-operator", Some(desired)).await.0
    }

    pub(super) async fn report(&self, attempt: Option<u32>, learners: Value) -> Order {
        let report = json!({
            "instance": "a", "startedAt": 1, "address": "localhost", "rendezvousPort": 7,
            "processes": 1, "attempt": attempt, "learners": learners,
        });
        serde_json::from_slice(&self.post("/v1/supervisors/t-0", report).await.1).unwrap()
    }

    pub(super) async fn status(&self) -> CoordinatorStatus {
        let (_, body) = self.call(Method::GET, "/v1/status", "secret-operator", None).await;
        serde_json::from_slice(&body).unwrap()
    }

    /// Puts the samples of step 1 into the journal and fixes its batch.
    pub(super) async fn fix_first_batch(&self) {
        let sample = |index| Sample {
            position: 0,
            index,
            row: 0,
            segments: vec![
                Segment::given(0, vec![1, 2], "p".to_owned()),
                Segment {
                    turn: 0,
                    tokens: vec![3],
                    trained: true,
                    sampler_logprobs: vec![-0.5],
                    teacher_logprobs: Vec::new(),
                    versions: vec![VersionRun {
                        version: Version { step: 0, attempt: 0 },
                        tokens: 1,
                    }],
                    text: "c".to_owned(),
                },
            ],
            finish_reason: "stop".to_owned(),
            sampling: json!({}),
            reward: f64::from(index),
            turn_rewards: vec![f64::from(index)],
            metadata: serde_json::Map::new(),
            reward_components: std::collections::BTreeMap::new(),
        };
        let samples = vec![sample(0), sample(1)];
        self.coordinator
            .journal
            .call(move |journal| {
                journal.put_samples(&samples)?;
                journal.fix_batch(&FixedBatch {
                    step: 1,
                    positions: vec![0],
                    next_position: 1,
                    ..FixedBatch::default()
                })
            })
            .await
            .unwrap();
        self.coordinator.run.change(|run, _| run.batch_fixed(1)).await.unwrap();
    }
}
