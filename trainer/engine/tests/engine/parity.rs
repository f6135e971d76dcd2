//! Parity of greedy tokens and log-probabilities with transformers in Python. Skipped with a
//! message unless tests/sglang/setup.sh has installed it.

use std::path::Path;
use std::process::Command;

use rljob_learner::model::hugging_face;
use rljob_tests::files::{python, required, sglang};
use serde::Deserialize;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use crate::harness::{greedy, random_blocks, serve, tiny_config, write_blocks};

const NEW_TOKENS: u32 = 24;

/// Decodes without a cache, in fp32.
const SCRIPT: &str = r"
import json, sys, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
folder, new, prompts = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
answers = []
with torch.no_grad():
    for prompt in prompts:
        ids, logprobs = list(prompt), []
        for _ in range(new):
            row = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].float(), -1)
            token = int(row.argmax())
            ids.append(token)
            logprobs.append(float(row[token]))
        answers.append({'tokens': ids[len(prompt):], 'logprobs': logprobs})
print(json.dumps(answers))
";

#[derive(Deserialize)]
struct Expected {
    tokens: Vec<i64>,
    logprobs: Vec<f64>,
}

async fn installed_agrees_with_transformers(model: &str, prompts: &[Vec<i64>]) {
    let Some(installation) = required(sglang()) else { return };
    agrees_with_transformers(&installation.join("models").join(model), prompts).await;
}

async fn agrees_with_transformers(folder: &Path, prompts: &[Vec<i64>]) {
    let Some(python) = required(python()) else { return };
    let arguments = [
        folder.to_str().unwrap(),
        &NEW_TOKENS.to_string(),
        &serde_json::to_string(prompts).unwrap(),
    ]
    .map(str::to_owned);
    let output = Command::new(python)
        .arg("-c")
        .arg(SCRIPT)
        .args(arguments)
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<Expected> = serde_json::from_slice(&output.stdout).unwrap();

    let engine = serve(tempfile::tempdir().unwrap(), folder, &["--dtype", "float32"]).await;
    for (prompt, expected) in prompts.iter().zip(expected) {
        let answer = engine.generate(&greedy("a", prompt.clone(), NEW_TOKENS)).await;
        assert_eq!(answer.output_ids, expected.tokens);
        for ((logprob, _, _), expected) in
            answer.meta_info.output_token_logprobs.iter().zip(&expected.logprobs)
        {
            assert!((logprob - expected).abs() < 1e-4, "{logprob} but transformers has {expected}");
        }
    }
    engine.stop().await;
}

/// A random model with non-trivial norms and biases.
async fn random_agrees_with_transformers(architecture: &str, kind: &str) {
    let mut config = tiny_config();
    (config["architectures"], config["model_type"]) = (json!([architecture]), json!(kind));
    let (layout, blocks) = random_blocks(&config, 5);
    for (name, vector) in hugging_face::named_tensors(&layout, &blocks)
        .into_iter()
        .filter(|(_, tensor)| tensor.dim() == 1)
    {
        let waves =
            (Tensor::arange(vector.numel() as i64, (Kind::Float, Device::Cpu)) * 1.7).sin() * 0.5;
        let base = if name.strip_suffix(".bias").is_some() { 0.0 } else { 1.0 };
        vector.shallow_clone().copy_(&(waves + base));
    }
    let folder = tempfile::tempdir().unwrap();
    write_blocks(folder.path(), &config, &layout, &blocks);
    agrees_with_transformers(
        folder.path(),
        &[vec![1, 5, 9], vec![40; 61], (0..100).map(|index| (index * 7) % 320).collect()],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen2_with_its_biases_agrees_with_transformers() {
    random_agrees_with_transformers("Qwen2ForCausalLM", "qwen2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen3_with_its_norms_of_heads_agrees_with_transformers() {
    random_agrees_with_transformers("Qwen3ForCausalLM", "qwen3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tiny_llama_agrees_with_transformers() {
    let long = (0..100).map(|index| (index * 7) % 1024).collect();
    installed_agrees_with_transformers("tiny-llama", &[vec![1, 5, 9], vec![40; 61], long]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smollm2_agrees_with_transformers() {
    installed_agrees_with_transformers("smollm2-135m-f32", &[vec![504, 3575, 282, 4649, 314]])
        .await;
}
