//! Losses of twenty steps of fine-tuning compared with transformers and `torch.optim.AdamW`.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rljob_learner::model::{Model, ModelConfig};
use rljob_learner::ranks::Ranks;
use rljob_learner::startup::first_trainer;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::metrics::LOSS;
use serde_json::{Value, json};

use crate::models::random_model;

const STEPS: u32 = 20;
const SAMPLES: u32 = 6;
const VOCABULARY: u32 = 101;

fn length(step: u32, sample: u32) -> u32 {
    5 + (sample * 7 + step) % 9
}

fn tokens(step: u32, sample: u32) -> Vec<i64> {
    (0..length(step, sample))
        .map(|row| i64::from((step * 11 + sample * 5 + row * row * 3) % VOCABULARY))
        .collect()
}

/// The first two tokens of each sample are its prompt.
fn mask(step: u32, sample: u32) -> Vec<u8> {
    (0..length(step, sample)).map(|row| u8::from(row >= 2)).collect()
}

fn batch(step: u32) -> RankBatch {
    let trainable = |sample| length(step, sample) - 2;
    let row = |sample| SampleRow {
        group: sample,
        reward: 0.0,
        trainable_tokens: trainable(sample),
        rank: 0,
        minibatch: 0,
        truncated: false,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    let loss_mask_T: Vec<u8> = (0..SAMPLES).flat_map(|sample| mask(step, sample)).collect();
    RankBatch {
        header: BatchHeader {
            step,
            rank: 0,
            world_size: 1,
            micro_batch_minibatch: vec![0],
            sequences: (0..SAMPLES)
                .map(|sample| Sequence {
                    sample,
                    micro_batch: 0,
                    tokens: length(step, sample),
                    segments: Vec::new(),
                })
                .collect(),
            samples: (0..SAMPLES).map(row).collect(),
        },
        tokens_T: (0..SAMPLES).flat_map(|sample| tokens(step, sample)).collect(),
        sampler_logprobs_T: vec![0.0; loss_mask_T.len()],
        teacher_logprobs_T: None,
        loss_mask_T,
    }
}

/// Maximum relative difference of a loss from PyTorch's.
pub fn difference(python: &Path) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let model = random_model(folder.path(), |_| ());
    let spec = json!({
        "model": {"path": model},
        "storage": {"hostPath": {"path": "/unused"}},
        "algorithm": {"sft": {}},
        "dataset": {"train": {"path": "/unused.jsonl", "prompt": "{{q}}", "completion": "{{a}}"}},
        "optimizer": {"learningRate": 1e-3}, "training": {"steps": STEPS},
    });
    let shape = Model::new(ModelConfig::from_folder(&model).unwrap());
    let mut trainer =
        first_trainer(serde_json::from_value(spec).unwrap(), shape, Ranks::alone(), &model)
            .unwrap();
    let losses =
        (1..=STEPS).map(|step| trainer.step(step, &batch(step)).unwrap().scalars.get_or_zero(LOSS));
    losses
        .zip(peer(python, &model))
        .map(|(ours, theirs)| ((ours - theirs) / theirs).abs())
        .fold(0.0, f64::max)
}

fn peer(python: &Path, model: &Path) -> Vec<f64> {
    let sample = |step, sample| json!({"tokens": tokens(step, sample), "mask": mask(step, sample)});
    let steps: Vec<Value> =
        (1..=STEPS).map(|step| (0..SAMPLES).map(|index| sample(step, index)).collect()).collect();
    let job = json!({
        "model": model, "learningRate": 1e-3, "weightDecay": 0.01, "clip": 1.0, "steps": steps,
    });
    let mut command = Command::new(python);
    command
        .args(["-c", include_str!("../../src/step/adamw_peer.py")])
        .env("CUDA_VISIBLE_DEVICES", "");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(job.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let losses: Vec<f64> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(losses.len(), STEPS as usize);
    losses
}
