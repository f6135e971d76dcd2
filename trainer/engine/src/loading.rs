//! From a model folder to a model: waits for a folder that is still being exported, reads or draws
//! the weights, and derives the limits.

use std::path::Path;
use std::time::{Duration, Instant};

use rljob_learner::model::{ModelConfig, ModelError, ModelLayout, hugging_face, random};
use rljob_text::{TextError, TextTokenizer};
use serde::Deserialize;
use tch::Kind;

use crate::arguments::{Arguments, Dtype, LoadFormat};
use crate::forward::{Model, cache_shape};
use crate::request::Limits;
use crate::weights::{Weights, WeightsError};

/// How long an incomplete folder is waited for.
const PATIENCE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(500);

/// Memory of the KV cache if the command line does not say.
const CACHE_BYTES: u64 = 2 << 30;

/// A model that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Still incomplete after the wait.
    #[error("no complete model in {0} after {wait} s: give a Hugging Face folder, or start the job that exports it", wait = PATIENCE.as_secs())]
    Incomplete(String),
    /// The folder's contents.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The weights do not fit.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// libtorch failed.
    #[error("failed to build the model")]
    Torch(#[from] tch::TchError),
    /// config.json.
    #[error("failed to use {0}: {1}")]
    Config(String, String),
    /// The tokenizer's files.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// A model with what the scheduler and the checks must know of it.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub model: Model,
    /// What requests are checked against.
    pub limits: Limits,
    /// Token positions in the KV cache.
    pub max_total_tokens: usize,
    /// Tokens that end a completion.
    pub eos: Vec<i64>,
    /// What turns text to tokens and back, if the folder has a `tokenizer.json`.
    pub tokenizer: Option<TextTokenizer>,
    /// What `/model_info` says of the architecture.
    pub identity: Identity,
}

/// What a model's configuration calls itself.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
pub struct Identity {
    /// Kind of model, such as `llama`.
    pub model_type: Option<String>,
    /// Classes of transformers.
    #[serde(default)]
    pub architectures: Vec<String>,
}

/// Waits until the folder has what `format` needs.
pub async fn wait_for_folder(folder: &Path, format: LoadFormat) -> Result<(), LoadError> {
    let started = Instant::now();
    let mut announced = false;
    while !is_complete(folder, format) {
        if started.elapsed() > PATIENCE {
            return Err(LoadError::Incomplete(folder.display().to_string()));
        }
        if !announced {
            tracing::info!(folder = %folder.display(), seconds = PATIENCE.as_secs(), "waiting for a complete model folder");
            announced = true;
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Whether the folder has a configuration and, if asked for, weights. A learner writes a folder
/// under another name and renames it when it is whole.
fn is_complete(folder: &Path, format: LoadFormat) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    has("config.json")
        && (format == LoadFormat::Dummy
            || has("model.safetensors")
            || has("model.safetensors.index.json"))
}

/// Loads a complete folder.
pub fn load(arguments: &Arguments) -> Result<Loaded, LoadError> {
    let folder = &arguments.model_path;
    let config = ModelConfig::from_folder(folder)?;
    let kind = match arguments.dtype {
        Dtype::Float32 => Kind::Float,
        Dtype::Bfloat16 => Kind::BFloat16,
        Dtype::Auto => configured_kind(folder)?,
    };
    let weights = Weights::allocate(&config, kind)?;
    let layout = ModelLayout::new(&config);
    let blocks = match arguments.load_format {
        LoadFormat::Auto => hugging_face::read_tensors(folder, &layout, kind)?,
        LoadFormat::Dummy => random::random(&layout, &config, arguments.random_seed)?,
    };
    weights.copy_from(&blocks)?;
    let shape = cache_shape(&config, kind);
    let max_total_tokens = arguments
        .max_total_tokens
        .unwrap_or_else(|| (CACHE_BYTES / shape.bytes_per_token()).max(1024))
        as usize;
    // One request alone occupies a padded row of slots.
    let context_length =
        (config.max_position_embeddings as usize).min(max_total_tokens / crate::cache::ROWS);
    let (limits, eos) =
        (Limits { context_length, vocabulary: config.vocab_size }, config.eos_token_ids.clone());
    tracing::info!(
        parameters = layout.numel(),
        ?kind,
        context_length,
        max_total_tokens,
        "model loaded"
    );
    let model = Model::new(config, weights, context_length, arguments.deterministic)?;
    let tokenizer = tokenizer(folder)?;
    let eos = with_own_eos(eos, tokenizer.as_ref());
    Ok(Loaded { model, limits, max_total_tokens, eos, tokenizer, identity: read_config(folder)? })
}

fn tokenizer(folder: &Path) -> Result<Option<TextTokenizer>, LoadError> {
    if folder.join("tokenizer.json").is_file() {
        Ok(Some(TextTokenizer::open(folder)?))
    } else {
        Ok(None)
    }
}

/// The tokenizer's own end-of-sequence token ends a completion too, as in SGLang.
fn with_own_eos(mut eos: Vec<i64>, tokenizer: Option<&TextTokenizer>) -> Vec<i64> {
    eos.extend(tokenizer.and_then(TextTokenizer::eos_token_id).filter(|id| !eos.contains(id)));
    eos
}

/// `dtype` (transformers 5) or `torch_dtype` (transformers 4); fp32 if the configuration names
/// none.
fn configured_kind(folder: &Path) -> Result<Kind, LoadError> {
    #[derive(Deserialize)]
    struct Raw {
        dtype: Option<String>,
        torch_dtype: Option<String>,
    }
    let raw: Raw = read_config(folder)?;
    match raw.dtype.or(raw.torch_dtype).as_deref() {
        None | Some("float32") => Ok(Kind::Float),
        Some("bfloat16") => Ok(Kind::BFloat16),
        Some(other) => Err(config_error(
            folder,
            format!("dtype `{other}` is neither float32 nor bfloat16; give --dtype"),
        )),
    }
}

fn read_config<T: serde::de::DeserializeOwned>(folder: &Path) -> Result<T, LoadError> {
    let text = std::fs::read(folder.join("config.json"))
        .map_err(|error| config_error(folder, error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| config_error(folder, error.to_string()))
}

fn config_error(folder: &Path, reason: String) -> LoadError {
    LoadError::Config(folder.join("config.json").display().to_string(), reason)
}
