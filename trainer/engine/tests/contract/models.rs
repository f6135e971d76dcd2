//! Models served by both servers: one shape, two sets of random weights, a tokenizer with a chat
//! template.

use std::path::Path;

use rljob_learner::model::{Head, ModelConfig, ModelLayout, hugging_face, random};
use serde_json::{Value, json};
use tch::Kind;
use tempfile::TempDir;

/// Creates a folder with the models `first` and `second`, and the classifier `scores`.
pub fn model_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, seed) in [("first", 1), ("second", 2)] {
        write_model(&folder.path().join(name), &blocks(seed));
    }
    write_model(&folder.path().join("scores"), &blocks_with_head(3, Head::Scalar));
    folder
}

/// Random weights as blocks.
pub fn blocks(seed: u64) -> (ModelLayout, Vec<tch::Tensor>) {
    blocks_with_head(seed, Head::LanguageModel)
}

fn blocks_with_head(seed: u64, head: Head) -> (ModelLayout, Vec<tch::Tensor>) {
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("config.json"), config().to_string()).unwrap();
    let config = ModelConfig::from_folder(source.path()).unwrap();
    let layout = ModelLayout::with_head(&config, head);
    let blocks = random::random(&layout, &config, seed).unwrap();
    (layout, blocks)
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024,
        "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "torch_dtype": "float32", "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.2
    })
}

fn write_model(folder: &Path, (layout, blocks): &(ModelLayout, Vec<tch::Tensor>)) {
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("config.json"), config().to_string()).unwrap();
    hugging_face::write_folder(folder, source.path(), layout, blocks, Kind::Float).unwrap();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat");
    for file in std::fs::read_dir(tokenizer).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
}
