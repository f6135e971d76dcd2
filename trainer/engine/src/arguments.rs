//! Command-line arguments. Keys are passed as files.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::path::PathBuf;

/// Serves a Llama-family model over the part of SGLang's HTTP API that a run needs.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "rljob-engine", version, about)]
pub struct Arguments {
    /// Hugging Face model folder. The engine waits for a folder without config.json or complete
    /// weights.
    #[arg(long)]
    pub model_path: PathBuf,
    /// Seconds to wait for a complete model folder.
    #[arg(long, default_value_t = 600)]
    pub model_timeout_seconds: u64,
    /// `auto` reads the safetensors of the folder; `dummy` initializes random weights for the shape
    /// in config.json.
    #[arg(long, value_enum, default_value = "auto")]
    pub load_format: LoadFormat,
    /// Type of weights, activations and KV cache. `auto` uses the type in config.json.
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: Dtype,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 selects a free port, which is logged.
    #[arg(long, default_value_t = rljob_crds::names::ENGINE_PORT)]
    pub port: u16,
    /// Make tokens and log-probabilities of a sample independent of the rest of the batch: a
    /// function of weights, prompt, sampling parameters and seed.
    #[arg(long)]
    pub deterministic: bool,
    /// Maximum number of requests decoded together.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_running_requests: u32,
    /// Maximum number of waiting requests; further requests are rejected with 503.
    #[arg(long, default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_queued_requests: u32,
    /// Token positions in the KV cache. Default: 2 GiB.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1024..))]
    pub max_total_tokens: Option<u64>,
    /// Maximum number of prompt and completion tokens of a request. Default:
    /// `max_position_embeddings` in config.json, which it must not exceed.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub context_length: Option<u32>,
    /// Tokens between two events of a stream whose request sets no `stream_interval`.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub stream_interval: u32,
    /// Send the output since the last event of a `/generate` stream, instead of all.
    #[arg(long)]
    pub incremental_streaming_output: bool,
    /// Serve a sequence classifier with one label, such as a reward model, at `/classify`, instead
    /// of a language model.
    #[arg(long)]
    pub is_embedding: bool,
    /// Seed of requests without a seed, and of `dummy` weights.
    #[arg(long, default_value_t = 1)]
    pub random_seed: u64,
    /// File with the bearer token of all routes except /health*, /metrics and, with an admin key,
    /// the control routes.
    #[arg(long)]
    pub api_key_file: Option<PathBuf>,
    /// File with the bearer token of the control routes.
    #[arg(long)]
    pub admin_api_key_file: Option<PathBuf>,
    /// File with the certificate of this engine, that of its authority, and the key. All routes
    /// except /health* and /metrics then need TLS and a client with a certificate of the authority.
    #[arg(long, requires = "tls_client_name")]
    pub tls_file: Option<PathBuf>,
    /// Name in the certificate of clients.
    #[arg(long, requires = "tls_file", value_name = "NAME")]
    pub tls_client_name: Option<String>,
    /// Exit when the parent process with this id exits.
    #[arg(long, value_name = "PID")]
    pub exit_with_parent: Option<i32>,
}

/// Source of the initial weights.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFormat {
    /// Safetensors of the folder.
    Auto,
    /// Random weights.
    Dummy,
}

/// Type of weights, activations and KV cache.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// Type in config.json.
    Auto,
    /// 32-bit floating point.
    Float32,
    /// bfloat16.
    Bfloat16,
}
