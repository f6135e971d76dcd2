//! Checks of a reward model and of a teacher by their `config.json`, which coordinators and `rljob`
//! read.

use serde_json::Value;

/// End of the names of architectures of sequence classifiers.
const CLASSIFIER: &str = "ForSequenceClassification";
/// Labels of a classifier whose configuration does not say how many it has, as in transformers.
const DEFAULT_LABELS: u64 = 2;

/// Checks that a model with this `config.json` is a reward model: a sequence classifier with one
/// label.
///
/// # Errors
/// What it is instead, as the end of a sentence about the configuration.
pub fn check_reward_model(config: &Value) -> Result<(), String> {
    let architecture = architecture(config);
    if !architecture.ends_with(CLASSIFIER) {
        return Err(format!(
            "has the architecture \"{architecture}\": a reward model is a sequence classifier \
             (…{CLASSIFIER}), such as the export of a job with algorithm.rewardModel"
        ));
    }
    let names = config["id2label"].as_object().map(|names| names.len() as u64);
    match config["num_labels"].as_u64().or(names).unwrap_or(DEFAULT_LABELS) {
        1 => Ok(()),
        labels => Err(format!("has a classifier with {labels} labels: a reward model has one")),
    }
}

/// Checks that a model with this `config.json` is no sequence classifier, which has no
/// log-probabilities of tokens.
///
/// # Errors
/// What it is instead, as the end of a sentence about the configuration.
pub fn check_language_model(config: &Value) -> Result<(), String> {
    let architecture = architecture(config);
    if !architecture.ends_with(CLASSIFIER) {
        return Ok(());
    }
    Err(format!("has the architecture \"{architecture}\": a teacher is a language model"))
}

fn architecture(config: &Value) -> &str {
    config.pointer("/architectures/0").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reward_model_is_a_classifier_with_one_label() {
        let classifier = |field: &str, labels: Value| {
            check_reward_model(
                &json!({"architectures": ["LlamaForSequenceClassification"], field: labels}),
            )
        };
        assert_eq!(classifier("id2label", json!({"0": "LABEL_0"})), Ok(()));
        assert_eq!(classifier("num_labels", json!(1)), Ok(()));
        let several = |labels: u32| {
            Err(format!("has a classifier with {labels} labels: a reward model has one"))
        };
        assert_eq!(classifier("id2label", json!({"0": "a", "1": "b", "2": "c"})), several(3));
        assert_eq!(classifier("hidden_size", json!(64)), several(2));
        let message = check_reward_model(&json!({"architectures": ["Qwen3ForCausalLM"]}));
        let message = message.unwrap_err();
        assert!(message.starts_with("has the architecture \"Qwen3ForCausalLM\": a reward"));
    }

    #[test]
    fn a_teacher_is_no_classifier() {
        let of = |name: &str| check_language_model(&json!({"architectures": [name]}));
        assert_eq!(of("Qwen3ForCausalLM"), Ok(()));
        let name = "Qwen3ForSequenceClassification";
        let message = format!("has the architecture \"{name}\": a teacher is a language model");
        assert_eq!(of(name), Err(message));
    }
}
