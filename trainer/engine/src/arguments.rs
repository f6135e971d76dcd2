//! The command line. Nothing secret is on it: keys are files.

use std::path::PathBuf;

/// Serves a Llama-family model over the part of SGLang's HTTP interface that a run needs.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "rljob-engine", version, about)]
pub struct Arguments {
    /// A Hugging Face folder. One that is still being exported (no config.json, or no complete
    /// weights) is waited for, up to 10 minutes.
    #[arg(long)]
    pub model_path: PathBuf,
    /// `auto` reads the folder's safetensors; `dummy` draws random weights for the shape in
    /// config.json.
    #[arg(long, value_enum, default_value = "auto")]
    pub load_format: LoadFormat,
    /// Type of weights, activations and KV cache. `auto` takes config.json's.
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: Dtype,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 lets the system choose, and the first log line says which.
    #[arg(long, default_value_t = rljob_crds::names::ENGINE_PORT)]
    pub port: u16,
    /// Make a sample's tokens and log-probabilities depend on weights, prompt, sampling parameters
    /// and seed alone, never on what else is in the batch.
    #[arg(long)]
    pub deterministic: bool,
    /// Requests decoded together.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_running_requests: u32,
    /// Requests that wait; beyond them a request is answered with 503.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_queued_requests: u32,
    /// Token positions in the KV cache. Default: as many as fit into 2 GiB.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1024..))]
    pub max_total_tokens: Option<u64>,
    /// Seed of the requests that bring none, and of `dummy` weights.
    #[arg(long, default_value_t = 1)]
    pub random_seed: u64,
    /// File with the bearer token of every route but /health*, /metrics and the control routes
    /// (these too, if there is no admin key).
    #[arg(long)]
    pub api_key_file: Option<PathBuf>,
    /// File with the bearer token of the control routes.
    #[arg(long)]
    pub admin_api_key_file: Option<PathBuf>,
    /// End when the process with this id, which started this one, ends.
    #[arg(long, value_name = "PID")]
    pub exit_with_parent: Option<i32>,
}

/// Where the first weights come from.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFormat {
    /// The folder's safetensors.
    Auto,
    /// Drawn at random.
    Dummy,
}

/// Type of weights, activations and KV cache.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// What config.json says.
    Auto,
    /// 32-bit floating point.
    Float32,
    /// bfloat16.
    Bfloat16,
}
