//! Embedded engine of the benchmark, with a model of two layers and random weights.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rljob_tests::files::binary;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use tempfile::TempDir;

const VOCABULARY: usize = 1024;
const HIDDEN: usize = 64;
const INTERMEDIATE: usize = 128;
const LAYERS: usize = 2;
/// Width of keys and values: 2 heads of 16.
const KEYS: usize = 32;
/// Largest absolute weight.
const SCALE: f32 = 0.3;
/// Time limit of the start.
const LIMIT: Duration = Duration::from_secs(60);

/// A process with weights of step 0, killed on drop.
pub struct Engine {
    pub url: String,
    pub model: TempDir,
    child: Child,
}

impl Engine {
    pub async fn start() -> Self {
        let model = tempfile::tempdir().unwrap();
        write_model(model.path());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let mut command = Command::new(binary("rljob-engine").unwrap());
        command.arg("--model-path").arg(model.path());
        command.args(["--dtype", "float32", "--port", &port, "--incremental-streaming-output"]);
        // As jobs start SGLang.
        command.args(["--stream-interval", "32"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let engine = Self { url: format!("http://127.0.0.1:{port}"), model, child };
        tokio::time::timeout(LIMIT, engine.ready()).await.unwrap();
        engine
    }

    /// Waits for the server and names its weights.
    async fn ready(&self) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let health = format!("{}/health", self.url);
        while !client.get(&health).send().await.is_ok_and(|answer| answer.status().is_success()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let version = json!({"new_version": "step-0.attempt-0"}).to_string();
        let url = format!("{}/update_weight_version", self.url);
        let answer = client.post(url).body(version).send().await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_model(folder: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "torch_dtype": "float32", "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat");
    for file in std::fs::read_dir(tokenizer).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut weight = || random.random_range(-SCALE..SCALE).to_le_bytes();
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .map(|(name, shape)| {
            let bytes = (0..shape.iter().product()).flat_map(|_: usize| weight()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

/// Names and shapes of the weights in the layout of Hugging Face.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let outer = [
        ("model.embed_tokens", vec![VOCABULARY, HIDDEN]),
        ("model.norm", vec![HIDDEN]),
        ("lm_head", vec![VOCABULARY, HIDDEN]),
    ];
    let inner = [
        ("input_layernorm", vec![HIDDEN]),
        ("post_attention_layernorm", vec![HIDDEN]),
        ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
        ("self_attn.k_proj", vec![KEYS, HIDDEN]),
        ("self_attn.v_proj", vec![KEYS, HIDDEN]),
        ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
        ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
        ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
        ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
    ];
    let layers = (0..LAYERS).flat_map(|layer| {
        inner.clone().map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape))
    });
    let outer = outer.map(|(name, shape)| (format!("{name}.weight"), shape));
    outer.into_iter().chain(layers).collect()
}
