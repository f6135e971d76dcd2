//! Small models with random weights, biases and norms, of every architecture.

use std::path::{Path, PathBuf};

use rljob_learner::model::{ModelConfig, ModelLayout, hugging_face, random};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

/// Writes a model folder with random weights, biases and norms; `change` modifies the configuration
/// of a small Llama.
pub fn random_model(folder: &Path, change: impl FnOnce(&mut Value)) -> PathBuf {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 101,
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
        "tie_word_embeddings": false, "initializer_range": 0.2, "eos_token_id": 2,
    });
    change(&mut config);
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig::from_folder(folder).unwrap();
    let layout = ModelLayout::new(&config);
    let wave = |block: &Tensor| {
        block
            + (Tensor::arange(block.numel() as i64, (Kind::Float, tch::Device::Cpu)) * 0.37).sin()
                * 0.1
    };
    let blocks: Vec<Tensor> =
        random::random(&layout, &config, 3).unwrap().iter().map(wave).collect();
    let export = folder.join("export");
    hugging_face::write_folder(&export, folder, &layout, &blocks, Kind::Float).unwrap();
    export
}

/// Changes the small Llama's configuration to a Qwen2 with tied embeddings.
pub fn qwen2(config: &mut Value) {
    config["architectures"] = json!(["Qwen2ForCausalLM"]);
    config["model_type"] = "qwen2".into();
    config["tie_word_embeddings"] = true.into();
    if let Some(fields) = config.as_object_mut() {
        fields.remove("head_dim");
    }
}

/// Changes the small Llama's configuration to a Qwen3.
pub fn qwen3(config: &mut Value) {
    config["architectures"] = json!(["Qwen3ForCausalLM"]);
    config["model_type"] = "qwen3".into();
}
