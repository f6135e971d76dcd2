//! Model loading: waits for a complete folder, reads or initializes the weights and derives the
//! limits.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rljob_learner::model::{Head, ModelConfig, ModelError, ModelLayout, hugging_face, random};
use rljob_text::{TextError, TextTokenizer};
use serde::Deserialize;
use tch::Kind;

use crate::arguments::{Arguments, Dtype, LoadFormat};
use crate::cache::slots_of;
use crate::forward::{Model, cache_shape};
use crate::request::Limits;
use crate::weights::{Weights, WeightsError};

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum size of config.json in bytes; the rest of a larger file is cut off.
const MAX_CONFIG: u64 = 16 << 20;

/// Default memory of the KV cache.
const CACHE_BYTES: u64 = 2 << 30;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "no complete model in {0} after {1} s: pass a Hugging Face folder, or start the \
        job that exports it"
    )]
    Incomplete(String, u64),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("failed to build the model")]
    Torch(#[from] tch::TchError),
    /// config.json cannot be read or used.
    #[error("failed to use {0}: {1}")]
    Config(String, String),
    #[error(transparent)]
    Text(#[from] TextError),
}

/// A loaded model with its limits.
#[derive(Debug)]
pub struct LoadedModel {
    pub model: Model,
    pub limits: Limits,
    /// Token positions of the KV cache.
    pub max_total_tokens: usize,
    /// End-of-sequence tokens.
    pub eos: Vec<i64>,
    /// `None` if the folder has no `tokenizer.json`.
    pub tokenizer: Option<TextTokenizer>,
    pub architecture: Architecture,
}

/// Architecture in config.json, returned by `/model_info`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
pub struct Architecture {
    /// For example `llama`.
    pub model_type: Option<String>,
    /// Class names of the transformers library.
    #[serde(default)]
    pub architectures: Vec<String>,
}

/// Waits until the folder has the files that `format` needs.
pub async fn wait_for_folder(
    folder: &Path,
    format: LoadFormat,
    seconds: u64,
) -> Result<(), LoadError> {
    let started = Instant::now();
    let mut announced = false;
    while !is_complete(folder, format) {
        if started.elapsed() > Duration::from_secs(seconds) {
            return Err(LoadError::Incomplete(folder.display().to_string(), seconds));
        }
        if !announced {
            tracing::info!(folder = %folder.display(), seconds, "waiting for the model folder");
            announced = true;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Whether the folder has a configuration and, for `auto`, weights. Writers rename a folder to its
/// name when it is complete.
fn is_complete(folder: &Path, format: LoadFormat) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    has("config.json")
        && (format == LoadFormat::Dummy
            || has("model.safetensors")
            || has("model.safetensors.index.json"))
}

/// Loads the model from a complete folder.
pub fn load(arguments: &Arguments) -> Result<LoadedModel, LoadError> {
    let folder = &arguments.model_path;
    let head = if arguments.is_embedding { Head::Scalar } else { Head::LanguageModel };
    let config = ModelConfig::with_head(folder, head)?;
    let kind = match arguments.dtype {
        Dtype::Float32 => Kind::Float,
        Dtype::Bfloat16 => Kind::BFloat16,
        Dtype::Auto => configured_kind(folder)?,
    };
    let weights = Weights::allocate(&config, head, kind)?;
    let layout = ModelLayout::with_head(&config, head);
    let blocks = match arguments.load_format {
        LoadFormat::Auto => hugging_face::read_tensors(folder, &layout, kind)?,
        LoadFormat::Dummy => random::random(&layout, &config, arguments.random_seed)?,
    };
    weights.copy_from(&blocks)?;
    let shape = cache_shape(&config, kind);
    let max_total_tokens = arguments.max_total_tokens.unwrap_or_else(|| {
        CACHE_BYTES.checked_div(shape.bytes_per_token()).unwrap_or_default().max(1024)
    }) as usize;
    let context_length = context_length(&config, arguments.context_length, folder)?;
    let capacity =
        max_total_tokens.checked_div(slots_of(arguments.deterministic)).unwrap_or_default();
    let (limits, eos) = (
        Limits { context_length, capacity, vocabulary: config.vocab_size },
        config.eos_token_ids.clone(),
    );
    tracing::info!(
        parameters = layout.numel(),
        ?kind,
        context_length,
        max_total_tokens,
        capacity,
        "model loaded"
    );
    let positions = context_length.min(capacity);
    let model = Model::new(config, weights, positions, arguments.deterministic)?;
    let tokenizer = tokenizer(folder)?;
    let eos = with_own_eos(eos, tokenizer.as_ref());
    Ok(LoadedModel {
        model,
        limits,
        max_total_tokens,
        eos,
        tokenizer,
        architecture: read_config(folder)?,
    })
}

/// The context length of the model, or a shorter one.
fn context_length(
    config: &ModelConfig,
    wanted: Option<u32>,
    folder: &Path,
) -> Result<usize, LoadError> {
    let of_model = usize::try_from(config.max_position_embeddings).unwrap_or(0);
    match wanted.map(|wanted| wanted as usize) {
        Some(wanted) if wanted > of_model => Err(config_error(
            folder,
            format!("--context-length {wanted} exceeds max_position_embeddings = {of_model}"),
        )),
        Some(wanted) => Ok(wanted),
        None => Ok(of_model),
    }
}

fn tokenizer(folder: &Path) -> Result<Option<TextTokenizer>, LoadError> {
    if folder.join("tokenizer.json").is_file() {
        Ok(Some(TextTokenizer::open(folder)?))
    } else {
        Ok(None)
    }
}

/// The end-of-sequence token of the tokenizer also ends a completion, as in SGLang.
fn with_own_eos(mut eos: Vec<i64>, tokenizer: Option<&TextTokenizer>) -> Vec<i64> {
    eos.extend(tokenizer.and_then(TextTokenizer::eos_token_id).filter(|id| !eos.contains(id)));
    eos
}

/// `dtype` (transformers 5) or `torch_dtype` (transformers 4); default fp32.
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
            format!("dtype `{other}` is neither float32 nor bfloat16; pass --dtype"),
        )),
    }
}

fn read_config<T: serde::de::DeserializeOwned>(folder: &Path) -> Result<T, LoadError> {
    let mut text = Vec::new();
    std::fs::File::open(folder.join("config.json"))
        .and_then(|file| file.take(MAX_CONFIG).read_to_end(&mut text))
        .map_err(|error| config_error(folder, error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| config_error(folder, error.to_string()))
}

fn config_error(folder: &Path, reason: String) -> LoadError {
    LoadError::Config(folder.join("config.json").display().to_string(), reason)
}
