//! The two servers, each a process that the test owns, and a client that knows neither.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures::StreamExt as _;
use rljob_learner::model::{ModelConfig, ModelLayout, hugging_face, random};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tch::Kind;
use tempfile::TempDir;

/// Bound of every wait.
pub const LIMIT: Duration = Duration::from_secs(240);

const VERSION: &str = "0.5.12";

/// A server and the client to it.
pub struct Server {
    pub url: String,
    pub client: reqwest::Client,
    child: Child,
}

/// A folder with the models `first` and `second`: one shape, two sets of weights, a tokenizer with a chat template.
pub fn model_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, seed) in [("first", 1), ("second", 2)] {
        write_model(&folder.path().join(name), seed);
    }
    folder
}

/// Weights of a seed, as blocks.
pub fn blocks(seed: u64) -> (ModelLayout, Vec<tch::Tensor>) {
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("config.json"), config().to_string()).unwrap();
    let config = ModelConfig::from_folder(source.path()).unwrap();
    let layout = ModelLayout::new(&config);
    let blocks = random::random(&layout, &config, seed).unwrap();
    (layout, blocks)
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32", "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.2
    })
}

fn write_model(folder: &Path, seed: u64) {
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("config.json"), config().to_string()).unwrap();
    let (layout, blocks) = blocks(seed);
    hugging_face::write_folder(folder, source.path(), &layout, &blocks, Kind::Float).unwrap();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat");
    for file in std::fs::read_dir(tokenizer).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
}

/// Where tests/sglang/setup.sh installs, and whether it has.
pub fn installation() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    let folder = cache.join("rljob").join(format!("sglang-{VERSION}"));
    folder.join("serve.sh").is_file().then_some(folder)
}

impl Server {
    /// The embedded engine in fp32.
    pub async fn embedded(model: &Path) -> Self {
        Self::embedded_of(model, "float32").await
    }

    /// The embedded engine.
    pub async fn embedded_of(model: &Path, dtype: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rljob-engine"));
        let port = free_port();
        command.args(["--model-path", model.to_str().unwrap(), "--dtype", dtype, "--exit-with-parent", "--port", &port.to_string()]);
        Self::start(command, port).await
    }

    /// The real SGLang in fp32, if it is installed.
    pub async fn sglang(model: &Path) -> Option<Self> {
        Self::sglang_of(model, "float32").await
    }

    /// The real SGLang, if it is installed.
    pub async fn sglang_of(model: &Path, dtype: &str) -> Option<Self> {
        let Some(folder) = installation() else {
            eprintln!("skipped: SGLang {VERSION} is not installed; run tests/sglang/setup.sh, then this test asks it the same");
            return None;
        };
        let port = free_port();
        let mut command = Command::new(folder.join("serve.sh"));
        command.args([model.to_str().unwrap(), &port.to_string(), "--dtype", dtype]);
        Some(Self::start(command, port).await)
    }

    /// In a process group of its own, which ends with this value; and with this process, since a shell waits for the end of its input.
    async fn start(command: Command, port: u16) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#""$@" & read -r _; kill -9 0"#, "sh"]).arg(command.get_program()).args(command.get_args());
        let log = std::env::temp_dir().join(format!("rljob-contract-{}-{port}.log", std::process::id()));
        let file = std::fs::File::create(&log).unwrap();
        shell.env("OMP_NUM_THREADS", threads()).stdin(Stdio::piped()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
        let server = Self { url: format!("http://127.0.0.1:{port}"), client: reqwest::Client::new(), child: shell.spawn().unwrap() };
        let ready = async {
            // SGLang answers 200 once it has generated a token.
            while !server.client.get(format!("{}/health", server.url)).send().await.is_ok_and(|response| response.status().is_success()) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let started = tokio::time::timeout(LIMIT, ready).await;
        assert!(started.is_ok(), "the server did not start:\n{}", std::fs::read_to_string(&log).unwrap_or_default());
        let _ = std::fs::remove_file(log);
        server
    }

    /// Ends it.
    pub async fn stop(self) {
        tokio::task::spawn_blocking(move || drop(self)).await.unwrap();
    }

    /// Status and JSON, or text, of an answer.
    pub async fn ask(&self, method: &str, route: &str, body: Option<&Value>) -> (u16, Value) {
        let mut request = self.client.request(method.parse().unwrap(), format!("{}{route}", self.url)).timeout(LIMIT);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub async fn post(&self, route: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", route, Some(body)).await
    }

    /// A generate that must succeed.
    pub async fn generate(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/generate", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// A generate whose first token is there, so that it runs.
    pub async fn running(&self, mut body: Value) -> Running {
        body["stream"] = json!(true);
        let response = self.client.post(format!("{}/generate", self.url)).timeout(LIMIT).json(&body).send().await.unwrap();
        let mut stream = response.bytes_stream().boxed();
        let first = stream.next().await.unwrap().unwrap();
        Running { text: first.to_vec(), stream }
    }

    /// A generate that may wait.
    pub fn spawn(&self, body: &Value) -> tokio::task::JoinHandle<Value> {
        let request = self.client.post(format!("{}/generate", self.url)).timeout(LIMIT).json(body);
        tokio::spawn(async move { request.send().await.unwrap().json().await.unwrap() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_raw(self.child.id() as i32).unwrap(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A stream that has begun.
pub struct Running {
    text: Vec<u8>,
    stream: futures::stream::BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
}

impl Running {
    /// All events, up to `[DONE]`.
    pub async fn events(mut self) -> Vec<Value> {
        while let Some(bytes) = self.stream.next().await {
            self.text.extend(bytes.unwrap());
        }
        let text = String::from_utf8(self.text).unwrap();
        let mut events: Vec<&str> = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The last answer.
    pub async fn answer(self) -> Value {
        self.events().await.pop().unwrap()
    }
}

/// Threads of a server that computes; several run at once.
fn threads() -> String {
    std::env::var("OMP_NUM_THREADS").unwrap_or_else(|_| "1".to_owned())
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A greedy request that goes on past the end-of-sequence token.
pub fn greedy(rid: &str, input_ids: &[i64], max_new_tokens: u32) -> Value {
    json!({"rid": rid, "input_ids": input_ids, "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": true}})
}
