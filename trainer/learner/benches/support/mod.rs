//! Supervised fine-tuning of random models of the width of SmolLM2-135M, for benchmarks: trainers
//! and batches.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::path::Path;

use rljob_learner::model::{Model, ModelConfig};
use rljob_learner::ranks::Ranks;
use rljob_learner::startup::first_trainer;
use rljob_learner::trainer::Trainer;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use serde_json::{Value, json};

/// A trainer of a model whose `config.json` is written to the folder, with these adapters unless
/// they are null.
pub fn trainer(folder: &Path, layers: u32, vocabulary: u32, lora: &Value) -> Trainer {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": layers,
        "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 100_000.0, "max_position_embeddings": 8192,
        "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let spec = json!({
        "model": {"path": folder, "weights": "Random"},
        "storage": {"hostPath": {"path": "/unused"}},
        "dataset": {"train": {"path": "/unused.jsonl", "prompt": "{{q}}", "completion": "{{a}}"}},
        "algorithm": {"sft": {}},
        "lora": lora,
        "optimizer": {"learningRate": 1e-5},
        "training": {"steps": 1000},
    });
    let model = Model::new(ModelConfig::from_folder(folder).unwrap());
    first_trainer(serde_json::from_value(spec).unwrap(), model, Ranks::alone(), folder).unwrap()
}

/// A sample of a batch.
pub struct Sample {
    /// Prompt group.
    pub group: u32,
    pub micro_batch: u32,
    pub tokens: u32,
    pub trainable_tokens: u32,
}

/// A batch of one minibatch for a rank that trains alone; the samples are in the order of their
/// micro-batches.
pub fn batch(step: u32, samples: &[Sample], tokens_T: Vec<i64>, loss_mask_T: Vec<u8>) -> RankBatch {
    let micro_batches = samples.last().map_or(0, |sample| sample.micro_batch + 1);
    let sequence = |(index, sample): (u32, &Sample)| Sequence {
        sample: index,
        micro_batch: sample.micro_batch,
        tokens: sample.tokens,
        segments: Vec::new(),
    };
    let row = |sample: &Sample| SampleRow {
        group: sample.group,
        reward: 0.0,
        trainable_tokens: sample.trainable_tokens,
        rank: 0,
        minibatch: 0,
        truncated: false,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    RankBatch {
        header: BatchHeader {
            step,
            rank: 0,
            world_size: 1,
            micro_batch_minibatch: vec![0; micro_batches as usize],
            sequences: (0..).zip(samples).map(sequence).collect(),
            samples: samples.iter().map(row).collect(),
        },
        tokens_T,
        sampler_logprobs_T: vec![0.0; loss_mask_T.len()],
        teacher_logprobs_T: None,
        loss_mask_T,
    }
}
