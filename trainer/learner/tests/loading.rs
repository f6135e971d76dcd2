//! Memory of processes that read a model: no rank holds all weights in FP32.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the test reads what its processes print")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Sharding;
use rljob_learner::mesh::{GroupSize, Mesh};
use rljob_learner::model::{Model, ModelConfig, hugging_face, random};
use rljob_learner::ranks::Ranks;
use rljob_learner::startup::first_trainer;
use serde_json::json;
use tch::{Device, Kind};

const NAME: &str = "no_rank_holds_the_whole_model_in_fp32_while_it_loads";
/// With 8 ranks, weights, gradients and moments of a rank have half of the bytes of all weights.
const RANKS: u32 = 8;
/// Rank, port and model folder of a process that the test starts.
const PROCESS: &str = "RLJOB_TEST_LOADING";

/// Writes a Llama of 64 layers with 67 million parameters, in BF16.
fn write_model(folder: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512,
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 64,
        "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true, "max_position_embeddings": 256, "eos_token_id": 2,
        "rope_theta": 10000.0, "hidden_act": "silu",
    });
    let source = folder.join("source");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("config.json"), config.to_string()).unwrap();
    let model = Model::new(ModelConfig::from_folder(&source).unwrap());
    let blocks = random::random(model.layout(), model.config(), 3).unwrap();
    hugging_face::write_folder(folder, &source, model.layout(), &blocks, Kind::BFloat16).unwrap();
}

/// The most memory that this process has had, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Loads the model as one rank, and prints by how much its peak rose.
fn load(process: &str) {
    let mut parts = process.splitn(3, ' ');
    let [rank, port, folder] = [(); 3].map(|()| parts.next().unwrap());
    let (rank, folder) = (rank.parse().unwrap(), Path::new(folder));
    let spec: RLJobSpec = serde_json::from_value(json!({
        "model": {"path": "/model"}, "storage": {"hostPath": {"path": "/runs"}},
        "dataset": {"train": {"path": "/d.jsonl", "prompt": "{{q}}", "completion": "{{a}}"}},
        "algorithm": {"sft": {}}, "training": {"steps": 1, "sharding": "Full"},
    }))
    .unwrap();
    let mesh = Mesh::new(rank, GroupSize::one_pod(RANKS), Sharding::Full);
    let store = ("127.0.0.1", port.parse().unwrap());
    let ranks = Ranks::join(store, "127.0.0.1", mesh, Device::Cpu, 0).unwrap();
    let model = Model::new(ModelConfig::from_folder(folder).unwrap());
    let before = peak();
    let trainer = first_trainer(spec, model, ranks, folder).unwrap();
    let (rose, weights) = (peak() - before, trainer.models.policy.model.layout().numel());
    println!("rose by {rose} of {}", weights * 4);
}

#[test]
fn no_rank_holds_the_whole_model_in_fp32_while_it_loads() {
    if let Ok(process) = std::env::var(PROCESS) {
        return load(&process);
    }
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let start = |rank| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(PROCESS, format!("{rank} {port} {}", folder.path().display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..RANKS).map(start).collect();
    for process in processes {
        let output = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
        let line = output.lines().find(|line| line.contains("rose by")).unwrap_or_default();
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert!(
            matches!(numbers.as_slice(), [rose, whole] if rose < whole),
            "a rank's memory rose too much, or it did not load:\n{output}"
        );
    }
}
