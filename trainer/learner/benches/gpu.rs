//! Speed of a training step on GPUs: one process per GPU, with the shape of a Qwen2.5 model and
//! random weights. Rank 0 prints a line of JSON: tokens per second and GPU (median step), peak
//! memory, share of 989 TFLOP/s.
//!
//! ```text
//! RANK=0 WORLD_SIZE=2 CUDA_VISIBLE_DEVICES=0 gpu --shape 1.5b --sequences 8 --length 2048
//! ```
//! `--mixed` takes lengths from 64 to 4,096; `--lengths FILE` reads a JSON list of
//! `[prompt, completion]`, whose prompts are equal within `--group` sequences and computed once,
//! unless `--own-prompts` makes them differ; `--grpo` uses the clipped loss instead of the cross
//! entropy; `--logprobs` measures passes without gradients; `--recompute` keeps only the inputs of
//! layers, `--selective` all but the outputs of norms; `--deterministic` repeats bit for bit.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark prints or panics"
)]

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Sharding;
use rljob_kernels::device;
use rljob_learner::fsdp::{Passes, shard_of};
use rljob_learner::memory::Phase;
use rljob_learner::model::{Model, ModelConfig, Recomputed};
use rljob_learner::models::{Models, TrainedModel};
use rljob_learner::objective;
use rljob_learner::ranks::Ranks;
use rljob_learner::spans::Spans;
use rljob_learner::step::calls::CallTimes;
use rljob_learner::trainer::Trainer;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use serde_json::json;
use tch::{Cuda, Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);
/// Dense bf16 operations of an H100 or H200 a second.
const PEAK: f64 = 989e12;

#[derive(Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Arguments {
    #[arg(long, default_value = "1.5b")]
    shape: String,
    /// Sequences of a step.
    #[arg(long, default_value_t = 8)]
    sequences: u32,
    #[arg(long, default_value_t = 2048)]
    length: u32,
    /// Tokens of a micro-batch at most.
    #[arg(long, default_value_t = 16_384)]
    micro: u32,
    #[arg(long)]
    mixed: bool,
    #[arg(long)]
    lengths: Option<PathBuf>,
    /// Sequences of a prompt group.
    #[arg(long, default_value_t = 4)]
    group: u32,
    /// Gives each sequence another prompt, so that none is shared.
    #[arg(long)]
    own_prompts: bool,
    #[arg(long)]
    grpo: bool,
    /// Only computes log-probabilities and entropies, as for a reference model.
    #[arg(long)]
    logprobs: bool,
    /// Layers of the model; default those of the shape.
    #[arg(long)]
    layers: Option<u32>,
    #[arg(long)]
    recompute: bool,
    /// Computes the outputs of norms again.
    #[arg(long, conflicts_with = "recompute")]
    selective: bool,
    /// Gathers weights and sums gradients once for each update.
    #[arg(long)]
    hold: bool,
    /// Keeps the optimizer's moments in memory of the host.
    #[arg(long)]
    offload: bool,
    /// Keeps the FP32 weights in memory of the host.
    #[arg(long)]
    offload_weights: bool,
    #[arg(long)]
    deterministic: bool,
    #[arg(long, default_value_t = 6)]
    steps: u32,
    /// Prints the loss and the gradient norm of every step.
    #[arg(long)]
    curve: bool,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
    #[arg(long, hide = true)]
    test: bool,
}

fn config(shape: &str, of_layers: Option<u32>) -> ModelConfig {
    let [hidden, intermediate, layers, heads, keys, vocabulary] = match shape {
        "135m" => [576, 1536, 30, 9, 3, 49_152],
        "1.5b" => [1536, 8960, 28, 12, 2, 151_936],
        "7b" => [3584, 18_944, 28, 28, 4, 152_064],
        other => panic!("unknown shape `{other}`: 135m, 1.5b or 7b"),
    };
    let layers = of_layers.unwrap_or(layers);
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": vocabulary,
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": keys, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "max_position_embeddings": 32_768,
        "tie_word_embeddings": shape != "7b", "bos_token_id": 1, "eos_token_id": 2,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    ModelConfig::from_folder(folder.path()).unwrap()
}

fn spec(arguments: &Arguments) -> RLJobSpec {
    let algorithm = if arguments.grpo { json!({"grpo": {}}) } else { json!({"sft": {}}) };
    serde_json::from_value(json!({
        "model": {"path": "/unused", "weights": "Random"},
        "storage": {"hostPath": {"path": "/unused"}},
        "dataset": {"train": {"path": "/unused.jsonl", "prompt": "{{q}}", "completion": "{{a}}"}},
        "rewards": [{"name": "correct", "exactMatch": {}}],
        "algorithm": algorithm,
        "optimizer": {
            "learningRate": 1e-5, "offload": arguments.offload,
            "offloadWeights": arguments.offload_weights,
        },
        "training": {
            "steps": 1000, "precision": "BF16", "deterministic": arguments.deterministic,
        },
        "trainer": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
    }))
    .unwrap()
}

/// Normally distributed weights, the same for any number of GPUs, made on the GPU.
fn trainer(arguments: &Arguments, ranks: std::rc::Rc<Ranks>) -> Trainer {
    let spec = spec(arguments);
    let config = config(&arguments.shape, arguments.layers);
    let layers = config.num_hidden_layers;
    let recomputed = Recomputed {
        layers: if arguments.recompute { layers } else { 0 },
        selective: if arguments.selective { layers } else { 0 },
    };
    let model = Model::new(config).recomputing(recomputed);
    tch::manual_seed(7);
    let mut masters = Vec::new();
    for block in model.layout().blocks() {
        let whole = Tensor::randn([block.numel()], (Kind::Float, GPU)) * 0.02;
        for (spec, mut view) in block.tensors().iter().zip(block.views(&whole)) {
            if spec.name.ends_with("norm.weight") {
                let _ = view.fill_(1.0);
            }
        }
        masters.push(shard_of(&whole, ranks.rank(), ranks.world_size()));
    }
    let sharding = if arguments.hold { Sharding::Gradients } else { Sharding::Full };
    let passes = Passes { compute: Kind::BFloat16, sharding, offload: false };
    let policy = TrainedModel::new(model, &ranks, spec.optimizer.clone(), passes, masters).unwrap();
    let objective = objective::new(spec.algorithm.resolve().unwrap(), &spec.rollout);
    Trainer {
        ranks,
        models: Models::new(policy, [].into()),
        objective,
        spec,
        phase: Phase::default(),
        spans: Spans::default(),
        calls: CallTimes::default(),
    }
}

/// Tokens of a sequence.
#[derive(Clone, Copy)]
struct Length {
    prompt: u32,
    completion: u32,
}

impl Length {
    /// All tokens are trained except the first.
    fn trained(tokens: u32) -> Self {
        Self { prompt: 1, completion: tokens - 1 }
    }

    fn tokens(self) -> u32 {
        self.prompt + self.completion
    }
}

/// Lengths of a step's sequences on one rank.
fn lengths(arguments: &Arguments) -> Vec<Length> {
    const MIXED: [u32; 10] = [64, 4096, 700, 1300, 2048, 3500, 400, 128, 1900, 2248];
    if let Some(path) = &arguments.lengths {
        let pairs: Vec<[u32; 2]> =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        pairs.into_iter().map(|[prompt, completion]| Length { prompt, completion }).collect()
    } else if arguments.mixed {
        MIXED.into_iter().map(Length::trained).collect()
    } else {
        vec![Length::trained(arguments.length); arguments.sequences as usize]
    }
}

/// Indices of the sequences of each micro-batch: groups, the longest first, each into the first
/// micro-batch with room. A prompt counts once for its group, if it is shared.
fn first_fit(lengths: &[Length], arguments: &Arguments) -> Vec<Vec<usize>> {
    let limit = arguments.micro;
    let indices: Vec<usize> = (0..lengths.len()).collect();
    let of_group = |group: &[usize]| {
        let completions: u32 = group.iter().map(|index| lengths[*index].completion).sum();
        (lengths[group[0]].prompt + completions, group.to_vec())
    };
    let together = if arguments.own_prompts { 1 } else { arguments.group as usize };
    let mut groups: Vec<_> = indices.chunks(together).map(of_group).collect();
    groups.sort_by_key(|(tokens, _)| std::cmp::Reverse(*tokens));
    let mut packed: Vec<(u32, Vec<usize>)> = Vec::new();
    for (tokens, group) in groups {
        match packed.iter_mut().find(|(filled, _)| *filled + tokens <= limit) {
            Some((filled, indices)) => {
                *filled += tokens;
                indices.extend(group);
            }
            None => packed.push((tokens, group)),
        }
    }
    packed.into_iter().map(|(_, indices)| indices).collect()
}

/// The same sample has the same tokens for any number of GPUs.
fn token(step: u32, at: u32, length: Length, sample: u32, prompt: u32) -> i64 {
    let source = if at < length.prompt { prompt } else { 1_000_000 + sample };
    (i64::from(at) * 7919 + i64::from(source) * 104_729 + i64::from(step) * 31) % 49_000
}

fn batch(arguments: &Arguments, step: u32, ranks: &Ranks) -> RankBatch {
    let lengths = lengths(arguments);
    let count = u32::try_from(lengths.len()).unwrap();
    let packed = first_fit(&lengths, arguments);
    let (mut sequences, mut tokens_T, mut loss_mask_T) = (Vec::new(), Vec::new(), Vec::new());
    for (micro_batch, indices) in (0..).zip(&packed) {
        for &index in indices {
            let (length, sample) = (lengths[index], ranks.rank() * count + index as u32);
            let prompt = if arguments.own_prompts { sample } else { sample / arguments.group };
            let positions = 0..length.tokens();
            tokens_T.extend(positions.clone().map(|at| token(step, at, length, sample, prompt)));
            loss_mask_T.extend(positions.map(|at| u8::from(at >= length.prompt)));
            let tokens = length.tokens();
            sequences.push(Sequence { sample, micro_batch, tokens, segments: Vec::new() });
        }
    }
    let row = |rank: u32, index: u32, length: &Length| SampleRow {
        group: (rank * count + index) / arguments.group,
        reward: f64::from((index + step) % 2),
        trainable_tokens: length.completion,
        rank,
        minibatch: 0,
        truncated: false,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    let samples = (0..ranks.world_size())
        .flat_map(|rank| (0..count).zip(&lengths).map(move |(at, length)| row(rank, at, length)));
    RankBatch {
        header: BatchHeader {
            step,
            rank: ranks.rank(),
            world_size: ranks.world_size(),
            micro_batch_minibatch: vec![0; packed.len()],
            sequences,
            samples: samples.collect(),
        },
        sampler_logprobs_T: vec![-10.0; tokens_T.len()],
        teacher_logprobs_T: None,
        tokens_T,
        loss_mask_T,
    }
}

/// Floating-point operations of a step: 6 per weight of a product and token, and attention.
fn operations(config: &ModelConfig, lengths: &[Length]) -> f64 {
    let (hidden, layers) = (config.hidden_size as f64, config.num_hidden_layers as f64);
    let width = (config.num_key_value_heads * config.head_dim) as f64;
    let layer = 2.0 * hidden * hidden
        + 2.0 * hidden * width
        + 3.0 * hidden * config.intermediate_size as f64;
    let weights = layers * layer + hidden * config.vocab_size as f64;
    let of = |length: &Length| {
        let tokens = f64::from(length.tokens());
        tokens * (6.0 * weights + 6.0 * layers * hidden * tokens)
    };
    lengths.iter().map(of).sum()
}

fn variable(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn main() {
    let arguments = Arguments::parse();
    if arguments.test {
        return;
    }
    let _no_gradient = tch::no_grad_guard();
    if arguments.deterministic {
        rljob_collective::set_deterministic(true).unwrap();
    }
    let (rank, world_size) = (variable("RANK", 0), variable("WORLD_SIZE", 1));
    let port = variable("MASTER_PORT", 29_511) as u16;
    let ranks = Ranks::join(("127.0.0.1", port), "127.0.0.1", (rank, world_size), GPU, 0).unwrap();
    let mut trainer = trainer(&arguments, std::rc::Rc::clone(&ranks));
    let mut seconds = Vec::new();
    for step in 1..=arguments.steps {
        let batch = batch(&arguments, step, &ranks);
        Cuda::synchronize(0);
        ranks.sum([0.0]).unwrap();
        let started = Instant::now();
        if arguments.logprobs {
            trainer.validate(step, &batch).unwrap();
        } else {
            let metrics = trainer.step(step, &batch).unwrap();
            if arguments.curve && rank == 0 {
                println!("{}", json!({"step": step, "scalars": metrics.scalars}));
            }
        }
        Cuda::synchronize(0);
        seconds.push(started.elapsed().as_secs_f64());
    }
    let mut measured = seconds.split_off(seconds.len().min(2));
    measured.sort_by(f64::total_cmp);
    let median = measured[measured.len() / 2];
    let lengths = lengths(&arguments);
    let tokens: u32 = lengths.iter().map(|length| length.tokens()).sum();
    let peak = device::memory(0).unwrap().peak as f64 / f64::from(1 << 30);
    let done = operations(trainer.models.policy.model.config(), &lengths) / median / PEAK;
    if rank == 0 {
        println!(
            "{}",
            json!({
                "shape": arguments.shape, "gpus": world_size, "tokens": tokens,
                "mixed": arguments.mixed, "recompute": arguments.recompute,
                "selective": arguments.selective, "hold": arguments.hold,
                "deterministic": arguments.deterministic, "step_s": median,
                "tok_per_s_per_gpu": (f64::from(tokens) / median).round(),
                "mfu_989": (done * 1e4).round() / 1e4, "peak_gib": (peak * 10.0).round() / 10.0,
            })
        );
    }
}
