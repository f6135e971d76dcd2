//! Greedy tokens and log-probabilities against transformers, in Python beside it (`make sglang` installs it; without it the test says that it is skipped).

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::harness::{greedy, serve};

const NEW_TOKENS: u32 = 24;

/// Decodes without a cache, in fp32: the plainest form of the same arithmetic.
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

fn installation() -> PathBuf {
    std::env::home_dir().unwrap_or_default().join(".cache/rljob/sglang-0.5.12")
}

async fn agrees_with_transformers(model: &str, prompts: &[Vec<i64>]) {
    let (python, folder) = (installation().join("venv/bin/python"), installation().join("models").join(model));
    if !python.exists() || !folder.exists() {
        eprintln!("skipped: no transformers at {} or no model at {}", python.display(), folder.display());
        return;
    }
    let arguments = [folder.to_str().unwrap(), &NEW_TOKENS.to_string(), &serde_json::to_string(prompts).unwrap()].map(str::to_owned);
    let output = Command::new(python).arg("-c").arg(SCRIPT).args(arguments).env("OMP_NUM_THREADS", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<Expected> = serde_json::from_slice(&output.stdout).unwrap();

    let engine = serve(tempfile::tempdir().unwrap(), &folder, &["--dtype", "float32"]).await;
    for (prompt, expected) in prompts.iter().zip(expected) {
        let answer = engine.generate(&greedy("a", prompt.clone(), NEW_TOKENS)).await;
        assert_eq!(answer.output_ids, expected.tokens);
        for ((logprob, _, _), expected) in answer.meta_info.output_token_logprobs.iter().zip(&expected.logprobs) {
            assert!((logprob - expected).abs() < 1e-4, "{logprob} but transformers has {expected}");
        }
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tiny_llama_agrees_with_transformers() {
    let long = (0..100).map(|index| (index * 7) % 1024).collect();
    agrees_with_transformers("tiny-llama", &[vec![1, 5, 9], vec![40; 61], long]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smollm2_agrees_with_transformers() {
    agrees_with_transformers("smollm2-135m-f32", &[vec![504, 3575, 282, 4649, 314]]).await;
}
