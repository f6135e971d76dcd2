//! Configurations of supported models, and rejected ones.

use super::{Head, ModelConfig, Raw};

fn json(change: impl FnOnce(&mut serde_json::Value)) -> Result<ModelConfig, String> {
    let mut value = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048, "rope_theta": 10000.0, "eos_token_id": [2, 3],
    });
    change(&mut value);
    read(value, Head::LanguageModel)
}

fn read(value: serde_json::Value, head: Head) -> Result<ModelConfig, String> {
    serde_json::from_value::<Raw>(value).map_err(|error| error.to_string())?.into_config(head, None)
}

#[test]
fn rope_theta_is_read_from_the_keys_of_transformers_4_and_5() {
    let four = json(|_| ()).unwrap();
    let five = json(|value| {
        value["rope_theta"].take();
        value["rope_parameters"] =
            serde_json::json!({"rope_theta": 10000.0, "rope_type": "default"});
    });
    assert_eq!(five.unwrap(), four);
    assert_eq!((four.head_dim, four.rope_theta, four.eos_token_ids), (16, 10000.0, vec![2, 3]));
}

#[test]
fn the_architectures_differ_in_biases_head_norms_and_default_head_size() {
    let read =
        |name: &str| json(|config| config["architectures"] = serde_json::json!([name])).unwrap();
    let parts = |config: ModelConfig| (config.qkv_bias, config.qk_norm, config.head_dim);
    assert_eq!(parts(read("LlamaForCausalLM")), (false, false, 16));
    assert_eq!(parts(read("Qwen2ForCausalLM")), (true, false, 16));
    assert_eq!(parts(read("Qwen3ForCausalLM")), (false, true, 128));
}

#[test]
fn unsupported_settings_are_rejected() {
    let error =
        |key: &str, value: serde_json::Value| json(|config| config[key] = value).unwrap_err();
    assert_eq!(
        error("architectures", serde_json::json!(["MixtralForCausalLM"])),
        "architecture [\"MixtralForCausalLM\"] is not supported, only LlamaForCausalLM, \
         Qwen2ForCausalLM and Qwen3ForCausalLM"
    );
    assert_eq!(
        error("rope_scaling", serde_json::json!({"type": "yarn", "factor": 4.0})),
        "rope_type `yarn` is not supported, only `default` and `llama3`"
    );
    assert_eq!(
        error("attention_bias", true.into()),
        "attention_bias and mlp_bias are not supported"
    );
    assert_eq!(
        error("attention_dropout", 0.1.into()),
        "attention_dropout 0.1 is not supported, only 0"
    );
    assert_eq!(
        error("use_sliding_window", true.into()),
        "use_sliding_window is not supported, only attention over the whole sequence"
    );
    let layers = serde_json::json!(["full_attention", "sliding_attention"]);
    assert_eq!(
        error("layer_types", layers),
        "layer_types has `sliding_attention`, which is not supported, only `full_attention`"
    );
    assert_eq!(
        error("partial_rotary_factor", 0.5.into()),
        "partial_rotary_factor is not supported, only rotary embeddings of whole heads"
    );
    let quantized = "quantization_config is not supported: use a model with floating-point weights";
    assert_eq!(error("quantization_config", serde_json::json!({"quant_method": "fp8"})), quantized);
    assert_eq!(
        error("num_key_value_heads", 3.into()),
        "num_key_value_heads 3 does not divide num_attention_heads 4"
    );
    assert_eq!(error("vocab_size", 0.into()), "vocab_size is 0, expected at least 1");
}

#[test]
fn the_error_of_a_missing_key_names_it() {
    let error = json(|value| {
        value.as_object_mut().unwrap().remove("hidden_size");
    });
    assert_eq!(error.unwrap_err(), "missing field `hidden_size`");
}

#[test]
fn absurd_sizes_are_rejected_before_anything_is_allocated() {
    let error =
        |key: &str, value: serde_json::Value| json(|config| config[key] = value).unwrap_err();
    assert_eq!(error("hidden_size", (-4).into()), "hidden_size is -4, expected at least 1");
    let layers = error("num_hidden_layers", serde_json::json!(u64::MAX));
    let expected = format!("num_hidden_layers is {}, which is too large: at most 65536", i64::MAX);
    assert_eq!(layers, expected);
    let large = error("max_position_embeddings", serde_json::json!(i64::MAX));
    assert!(large.contains("max_position_embeddings is 9223372036854775807, which is too large"));
    let product = json(|config| {
        for key in ["hidden_size", "intermediate_size"] {
            config[key] = (1 << 24).into();
        }
        config["num_hidden_layers"] = (1 << 16).into();
        config["head_dim"] = 128.into();
    });
    let expected = "the model would have more than 8796093022208 parameters: is the file damaged?";
    assert_eq!(product.unwrap_err(), expected);
    assert!(error("vocab_size", serde_json::json!(1e300)).contains("invalid type"));
}
