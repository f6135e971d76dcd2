//! Test fixture: a tiny model in a temporary folder and an engine in this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser as _;
use rljob_engine::arguments::Arguments;
use rljob_engine::server::Server;
use rljob_learner::model::{ModelConfig, ModelLayout, hugging_face, random};
use rljob_protocol::sglang::{GenerateRequest, GenerateResponse, ModelInfo, SamplingParams};
use serde_json::{Value, json};
use tch::Kind;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Time limit of every wait.
const LIMIT: Duration = Duration::from_secs(120);

/// `config.json` with two layers and hidden size 64.
pub fn tiny_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320,
        "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "dtype": "float32", "eos_token_id": 2,
        "initializer_range": 0.2
    })
}

pub fn random_blocks(config: &Value, seed: u64) -> (ModelLayout, Vec<tch::Tensor>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig::from_folder(folder.path()).unwrap();
    let layout = ModelLayout::new(&config);
    let blocks = random::random(&layout, &config, seed).unwrap();
    (layout, blocks)
}

pub fn write_model(folder: &Path, config: &Value, seed: u64) {
    let (layout, blocks) = random_blocks(config, seed);
    write_blocks(folder, config, &layout, &blocks);
}

pub fn write_blocks(folder: &Path, config: &Value, layout: &ModelLayout, blocks: &[tch::Tensor]) {
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("config.json"), config.to_string()).unwrap();
    hugging_face::write_folder(folder, source.path(), layout, blocks, Kind::Float).unwrap();
}

pub struct Running {
    pub url: String,
    pub client: reqwest::Client,
    pub folder: TempDir,
    stop: CancellationToken,
    serving: JoinHandle<anyhow::Result<()>>,
}

/// Serves the tiny model with weights of seed 1.
pub async fn start(flags: &[&str]) -> Running {
    start_with(&tiny_config(), flags).await
}

/// Serves a model with this configuration and weights of seed 1.
pub async fn start_with(config: &Value, flags: &[&str]) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    write_model(&model, config, 1);
    serve(folder, &model, flags).await
}

pub async fn serve(folder: TempDir, model: &Path, flags: &[&str]) -> Running {
    tch::set_num_threads(1);
    let model = model.to_str().unwrap();
    let arguments = Arguments::parse_from(
        [&["rljob-engine", "--port", "0", "--model-path", model], flags].concat(),
    );
    let server = Server::start(arguments).await.unwrap();
    let url = format!("http://{}", server.address().unwrap());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let serving = tokio::spawn(server.serve(async move { stopped.cancelled().await }));
    Running { url, client: reqwest::Client::new(), folder, stop, serving }
}

impl Running {
    pub fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    /// Posts JSON; returns status and JSON or text.
    pub async fn post(&self, route: &str, body: &Value) -> (u16, Value) {
        let response =
            self.client.post(format!("{}{route}", self.url)).json(body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub async fn get(&self, route: &str) -> (u16, String) {
        let response = self.client.get(format!("{}{route}", self.url)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Sends a request that must succeed.
    pub async fn generate(&self, request: &GenerateRequest) -> GenerateResponse {
        let (status, body) = self.post("/generate", &serde_json::to_value(request).unwrap()).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_value(body).unwrap()
    }

    /// Sends a request in the background.
    pub fn spawn(&self, request: &GenerateRequest) -> JoinHandle<GenerateResponse> {
        let (client, url, request) =
            (self.client.clone(), format!("{}/generate", self.url), request.clone());
        tokio::spawn(async move {
            client.post(url).json(&request).send().await.unwrap().json().await.unwrap()
        })
    }

    pub async fn info(&self) -> ModelInfo {
        serde_json::from_str(&self.get("/model_info").await.1).unwrap()
    }

    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.1;
        let value = |line: &str| {
            let labels = line.strip_prefix(name)?.strip_prefix('{')?;
            Some(labels.rsplit_once("} ")?.1.to_owned())
        };
        let line = text.lines().find_map(value);
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    pub async fn until(&self, name: &str, value: f64) {
        let seen = async {
            while (self.metric(name).await - value).abs() > 0.0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, seen)
            .await
            .unwrap_or_else(|_| panic!("{name} did not become {value}"));
    }

    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, self.serving).await.unwrap().unwrap().unwrap();
    }
}

/// A request at temperature 1 that ignores the end-of-sequence token.
pub fn request(rid: &str, input_ids: Vec<i64>, max_new_tokens: u32, seed: u64) -> GenerateRequest {
    let sampling_params = SamplingParams {
        max_new_tokens,
        min_new_tokens: 0,
        stop: vec![],
        temperature: 1.0,
        top_p: 1.0,
        top_k: -1,
        stop_token_ids: vec![],
        ignore_eos: true,
        skip_special_tokens: false,
        sampling_seed: Some(seed),
        stream_interval: None,
    };
    GenerateRequest {
        rid: rid.to_owned(),
        input_ids,
        sampling_params,
        return_logprob: true,
        stream: false,
        extra_key: None,
    }
}

pub fn greedy(rid: &str, input_ids: Vec<i64>, max_new_tokens: u32) -> GenerateRequest {
    let mut request = request(rid, input_ids, max_new_tokens, 0);
    request.sampling_params.temperature = 0.0;
    request
}
