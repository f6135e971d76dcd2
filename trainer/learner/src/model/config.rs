//! `config.json` of a Hugging Face folder, for the architectures Llama (also SmolLM2), Qwen2 (also
//! Qwen2.5) and Qwen3. An unsupported setting that would change the arithmetic is an error.
//!
//! ```text
//!            q k v biases   RMSNorm of every query and key head   default of head_dim
//!  Llama     no             no                                    hidden_size ÷ heads
//!  Qwen2     yes            no                                    hidden_size ÷ heads
//!  Qwen3     no             yes                                   128
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::architecture::Family;
use super::rope::{self, RawRope, RopeScaling};
use super::{Head, ModelError};

/// Maximum size of a JSON file in bytes; the index of the largest models has a few MiB.
const MAX_JSON: u64 = 64 << 20;

/// Maximum number of parameters, far beyond any model.
const MAX_PARAMETERS: i64 = 1 << 43;

/// Shape and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Rows of the embedding.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the feed-forward part.
    pub intermediate_size: i64,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: i64,
    /// Number of key-value heads; divides the number of query heads.
    pub num_key_value_heads: i64,
    /// Width of a head; even.
    pub head_dim: i64,
    /// Whether the query, key and value projections have biases (Qwen2).
    pub qkv_bias: bool,
    /// Whether every query and key head is normalized before the rotary embedding (Qwen3).
    pub qk_norm: bool,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies for longer contexts.
    pub rope_scaling: Option<RopeScaling>,
    /// Added to the mean square before its root.
    pub rms_norm_eps: f64,
    /// Whether the head uses the embedding's weights.
    pub tie_word_embeddings: bool,
    /// Maximum sequence length of the model, in tokens.
    pub max_position_embeddings: i64,
    /// Tokens that end a completion, from `generation_config.json` if it exists, else from
    /// `config.json`.
    pub eos_token_ids: Vec<i64>,
    /// Token that starts a text, if the model has one.
    pub bos_token_id: Option<i64>,
    /// Standard deviation of random weights.
    pub initializer_range: f64,
}

#[expect(clippy::struct_excessive_bools, reason = "the file's own keys")]
/// Keys of `config.json` that affect the arithmetic.
#[derive(Deserialize)]
struct Raw {
    architectures: Vec<String>,
    vocab_size: i64,
    hidden_size: i64,
    intermediate_size: i64,
    num_hidden_layers: usize,
    num_attention_heads: i64,
    num_key_value_heads: Option<i64>,
    head_dim: Option<i64>,
    hidden_act: String,
    rope_theta: Option<f64>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
    partial_rotary_factor: Option<f64>,
    rms_norm_eps: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    max_position_embeddings: i64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    attention_dropout: f64,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default)]
    layer_types: Option<Vec<String>>,
    quantization_config: Option<serde_json::Value>,
    eos_token_id: Option<OneOrMany>,
    bos_token_id: Option<i64>,
    initializer_range: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(i64),
    Many(Vec<i64>),
}

impl OneOrMany {
    fn into_vec(self) -> Vec<i64> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

#[derive(Deserialize)]
struct RawGeneration {
    eos_token_id: Option<OneOrMany>,
}

impl ModelConfig {
    /// Reads `config.json` of a language model, and `generation_config.json` if it exists.
    ///
    /// # Errors
    /// A file that cannot be read, a missing key, another architecture, or a setting that is not
    /// supported.
    pub fn from_folder(folder: &Path) -> Result<Self, ModelError> {
        Self::with_head(folder, Head::LanguageModel)
    }

    /// As [`from_folder`](Self::from_folder), of a model with this head.
    ///
    /// # Errors
    /// As `from_folder`.
    pub fn with_head(folder: &Path, head: Head) -> Result<Self, ModelError> {
        let path = folder.join("config.json");
        let raw: Raw = read_json(&path)?;
        let generation = folder.join("generation_config.json");
        let generation_eos = if generation.exists() {
            read_json::<RawGeneration>(&generation)?.eos_token_id
        } else {
            None
        };
        raw.into_config(head, generation_eos).map_err(|reason| ModelError::Config { path, reason })
    }

    /// Rotation angles of the rotary embedding, in radians per position, one for each pair of a
    /// head.
    pub fn rope_frequencies(&self) -> Vec<f32> {
        rope::frequencies(self.rope_theta, self.head_dim, self.rope_scaling)
    }
}

/// Reads and parses a JSON file.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    let failed = |source| ModelError::File { operation: "read", path: PathBuf::from(path), source };
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_JSON.saturating_add(1)).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_JSON {
        let reason = format!("the file is too large: more than {MAX_JSON} bytes");
        return Err(ModelError::Config { path: PathBuf::from(path), reason });
    }
    serde_json::from_slice(&text)
        .map_err(|source| ModelError::Json { path: PathBuf::from(path), source })
}

impl Raw {
    fn into_config(
        self,
        head: Head,
        generation_eos: Option<OneOrMany>,
    ) -> Result<ModelConfig, String> {
        let family = Family::of(&self.architectures, head)?;
        self.check()?;
        let (rope_theta, rope_scaling) = self.rope()?;
        let head_dim = if family == Family::Qwen3 {
            128
        } else {
            self.hidden_size.checked_div(self.num_attention_heads).unwrap_or_default()
        };
        let config = ModelConfig {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim: self.head_dim.unwrap_or(head_dim),
            qkv_bias: family == Family::Qwen2,
            qk_norm: family == Family::Qwen3,
            rope_theta,
            rope_scaling,
            rms_norm_eps: self.rms_norm_eps,
            tie_word_embeddings: self.tie_word_embeddings,
            max_position_embeddings: self.max_position_embeddings,
            eos_token_ids: generation_eos
                .or(self.eos_token_id)
                .map_or_else(Vec::new, OneOrMany::into_vec),
            bos_token_id: self.bos_token_id,
            initializer_range: self.initializer_range.unwrap_or(0.02),
        };
        config.check_sizes()?;
        Ok(config)
    }

    /// Base and scaling of the rotary embedding.
    fn rope(&self) -> Result<(f64, Option<RopeScaling>), String> {
        let mut scaling = None;
        for rope in self.rope_scaling.iter().chain(&self.rope_parameters) {
            scaling = rope.scaling()?.or(scaling);
        }
        let theta =
            self.rope_parameters.as_ref().and_then(|rope| rope.rope_theta).or(self.rope_theta);
        Ok((
            theta.ok_or_else(|| {
                "neither rope_parameters.rope_theta nor rope_theta is set".to_owned()
            })?,
            scaling,
        ))
    }

    fn check(&self) -> Result<(), String> {
        if self.hidden_act != "silu" {
            return Err(format!("hidden_act `{}` is not supported, only `silu`", self.hidden_act));
        }
        if self.attention_bias || self.mlp_bias {
            return Err("attention_bias and mlp_bias are not supported".to_owned());
        }
        if self.attention_dropout > 0.0 {
            return Err(format!(
                "attention_dropout {} is not supported, only 0",
                self.attention_dropout
            ));
        }
        if self.use_sliding_window {
            return Err(
                "use_sliding_window is not supported, only attention over the whole sequence"
                    .to_owned(),
            );
        }
        if let Some(kind) = self.layer_types.iter().flatten().find(|kind| *kind != "full_attention")
        {
            return Err(format!(
                "layer_types has `{kind}`, which is not supported, only `full_attention`"
            ));
        }
        if self.partial_rotary_factor.is_some_and(|factor| (factor - 1.0).abs() > f64::EPSILON) {
            return Err(
                "partial_rotary_factor is not supported, only rotary embeddings of whole heads"
                    .to_owned(),
            );
        }
        if self.quantization_config.is_some() {
            return Err(
                "quantization_config is not supported: use a model with floating-point weights"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

impl ModelConfig {
    /// Number of matrix elements; `None` if it exceeds 64 bits.
    fn parameters(&self) -> Option<i64> {
        let product = |factors: [i64; 2]| factors[0].checked_mul(factors[1]);
        let heads = self.num_attention_heads.checked_add(self.num_key_value_heads)?;
        let attention = product([product([heads, self.head_dim])?, 2])?;
        let widths = attention.checked_add(product([self.intermediate_size, 3])?)?;
        let layer = product([widths, self.hidden_size])?;
        let layers = product([layer, i64::try_from(self.num_hidden_layers).ok()?])?;
        layers.checked_add(product([self.vocab_size, self.hidden_size])?)
    }

    fn check_sizes(&self) -> Result<(), String> {
        let layers = i64::try_from(self.num_hidden_layers).unwrap_or(i64::MAX);
        let sizes = [
            ("vocab_size", self.vocab_size, 1, 1 << 28),
            ("hidden_size", self.hidden_size, 1, 1 << 24),
            ("intermediate_size", self.intermediate_size, 1, 1 << 28),
            ("num_hidden_layers", layers, 0, 1 << 16),
            ("num_attention_heads", self.num_attention_heads, 1, 1 << 20),
            ("num_key_value_heads", self.num_key_value_heads, 1, 1 << 20),
            ("head_dim", self.head_dim, 1, 1 << 20),
            ("max_position_embeddings", self.max_position_embeddings, 1, (1 << 31) - 1),
        ];
        for (key, size, least, most) in sizes {
            if size < least {
                return Err(format!("{key} is {size}, expected at least {least}"));
            }
            if size > most {
                return Err(format!("{key} is {size}, which is too large: at most {most}"));
            }
        }
        if self.parameters().is_none_or(|parameters| parameters > MAX_PARAMETERS) {
            return Err(format!(
                "the model would have more than {MAX_PARAMETERS} parameters: is the file damaged?"
            ));
        }
        if self.num_attention_heads.checked_rem(self.num_key_value_heads) != Some(0) {
            return Err(format!(
                "num_key_value_heads {} does not divide num_attention_heads {}",
                self.num_key_value_heads, self.num_attention_heads
            ));
        }
        if self.head_dim % 2 != 0 {
            return Err(format!("head_dim {} is odd", self.head_dim));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
