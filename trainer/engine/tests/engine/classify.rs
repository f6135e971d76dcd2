//! `/classify`: scores equal those of transformers and of the learner's pass; requests that do not
//! fit the model get errors.

use std::process::Command;

use rljob_learner::model::{Head, ModelConfig, ModelLayout, hugging_face, random};
use rljob_tests::files::{python, required};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::harness::{Running, serve, start, tiny_config};

/// Scores of sequences, from the logit of the last token of each.
const SCRIPT: &str = r"
import json, sys, torch
from transformers import AutoModelForSequenceClassification
torch.set_num_threads(1)
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
with torch.no_grad():
    print(json.dumps([float(model(torch.tensor([ids])).logits[0, 0])
                      for ids in json.loads(sys.argv[2])]))
";

/// Serves a classifier with random weights.
async fn start_classifier(flags: &[&str]) -> Running {
    let (source, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(source.path().join("config.json"), tiny_config().to_string()).unwrap();
    let config = ModelConfig::from_folder(source.path()).unwrap();
    let layout = ModelLayout::with_head(&config, Head::Scalar);
    let blocks: Vec<Tensor> = random::random(&layout, &config, 1).unwrap();
    let model = folder.path().join("model");
    hugging_face::write_folder(&model, source.path(), &layout, &blocks, Kind::Float).unwrap();
    serve(folder, &model, &[&["--is-embedding"], flags].concat()).await
}

fn sequences() -> Value {
    json!([[5, 6, 7, 2], [9], (3..80).collect::<Vec<i64>>()])
}

async fn scores(engine: &Running) -> Vec<f64> {
    let (status, body) = engine.post("/classify", &json!({"input_ids": sequences()})).await;
    assert_eq!(status, 200, "{body}");
    let scores = body.as_array().unwrap().iter().map(|one| one["embedding"][0].as_f64().unwrap());
    scores.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_equal_those_of_transformers_in_both_modes() {
    let engine = start_classifier(&[]).await;
    let ours = scores(&engine).await;
    let deterministic = start_classifier(&["--deterministic"]).await;
    let others = scores(&deterministic).await;
    deterministic.stop().await;
    assert_close(&others, &ours);
    let Some(python) = required(python()) else { return engine.stop().await };
    let output = Command::new(python)
        .args(["-c", SCRIPT, engine.model().to_str().unwrap(), &sequences().to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_close(&ours, &serde_json::from_slice::<Vec<f64>>(&output.stdout).unwrap());
    engine.stop().await;
}

fn assert_close(ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((ours - theirs).abs() < 1e-4 * theirs.abs().max(1.0), "{ours}, {theirs}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_classifier_generates_nothing_and_a_language_model_classifies_nothing() {
    let error = |message: &str| (400, json!({"error": {"message": message}}));
    let classifier = start_classifier(&[]).await;
    assert!(!classifier.info().await.is_generation);
    assert_eq!(classifier.get("/health_generate").await.0, 200);
    let generated = classifier.post("/generate", &json!({"input_ids": [5]})).await;
    let message = "This model is a sequence classifier, which /classify serves; start the engine \
                   without `--is-embedding` and with a language model.";
    assert_eq!(generated, error(message));
    for (sequence, message) in [
        (json!([]), "input_ids cannot be empty."),
        (json!([320]), "The input_ids contain 320, which is outside the vocabulary (0 to 319)."),
        (json!([[5], []]), "input_ids cannot be empty."),
    ] {
        let answer = classifier.post("/classify", &json!({"input_ids": sequence})).await;
        assert_eq!(answer, error(message));
    }
    classifier.stop().await;
    let generator = start(&[]).await;
    let message = "This model does not appear to be an embedding model by default. Please add \
                   `--is-embedding` when launching the server or try another model.";
    assert_eq!(generator.post("/classify", &json!({"input_ids": [5]})).await, error(message));
    generator.stop().await;
}
