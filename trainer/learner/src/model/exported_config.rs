//! `config.json` of exports: the model's own with the type of the weights; with a scalar head, that
//! of transformers' sequence classifiers.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::path::Path;

use serde_json::{Map, Value, json};
use tch::Kind;

use super::config::read_json;
use super::layout::SCORE;
use super::{Layout, ModelError, ModelLayout};

/// Whether the head is a scalar.
pub fn is_scalar(layout: &ModelLayout) -> bool {
    let mut tensors = layout.blocks().iter().flat_map(Layout::tensors);
    tensors.any(|spec| spec.name == SCORE)
}

/// The source's `config.json` with the type of the weights, under `torch_dtype` if that key exists
/// (transformers 4), else under `dtype`; of a scalar head, as a sequence classifier.
///
/// # Errors
/// The file cannot be read or is not an object.
pub fn exported_config(
    path: &Path,
    layout: &ModelLayout,
    dtype: Kind,
) -> Result<Vec<u8>, ModelError> {
    let mut config: Map<String, Value> = read_json(path)?;
    let name = match dtype {
        Kind::BFloat16 => "bfloat16",
        Kind::Half => "float16",
        _ => "float32",
    };
    let key = if config.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
    config.insert(key.to_owned(), name.into());
    if is_scalar(layout) {
        classify(&mut config);
    }
    serde_json::to_vec_pretty(&config)
        .map_err(|source| ModelError::Json { path: path.to_owned(), source })
}

/// Changes the configuration of a language model to that of a classifier with one label, whose
/// score is that of the last token before padding. A padding token that also ends sequences is
/// removed, because transformers would take the score of the token before it.
fn classify(config: &mut Map<String, Value>) {
    if let Some(names) = config.get_mut("architectures").and_then(Value::as_array_mut) {
        for name in names {
            if let Some(family) = name.as_str().and_then(|name| name.strip_suffix("ForCausalLM")) {
                *name = format!("{family}ForSequenceClassification").into();
            }
        }
    }
    config.insert("id2label".to_owned(), json!({"0": "LABEL_0"}));
    config.insert("label2id".to_owned(), json!({"LABEL_0": 0}));
    let is_end = |pad: &Value| match config.get("eos_token_id") {
        Some(Value::Array(ends)) => ends.contains(pad),
        Some(end) => end == pad,
        None => false,
    };
    if config.get("pad_token_id").is_some_and(is_end) {
        config.insert("pad_token_id".to_owned(), Value::Null);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::classify;

    #[test]
    fn a_classifier_has_one_label_and_its_padding_ends_no_sequence() {
        let classified = |ends: Value, pad: Value| {
            let config = json!({
                "architectures": ["Qwen3ForCausalLM"], "eos_token_id": ends, "pad_token_id": pad,
            });
            let mut config = config.as_object().unwrap().clone();
            classify(&mut config);
            assert_eq!(config["architectures"], json!(["Qwen3ForSequenceClassification"]));
            assert_eq!(config["id2label"], json!({"0": "LABEL_0"}));
            config["pad_token_id"].clone()
        };
        assert_eq!(classified(json!(2), json!(0)), json!(0));
        assert_eq!(classified(json!([2, 3]), json!(0)), json!(0));
        assert_eq!(classified(json!(2), json!(2)), Value::Null);
        assert_eq!(classified(json!([2, 3]), json!(3)), Value::Null);
        assert_eq!(classified(json!(null), json!(0)), json!(0));
    }
}
