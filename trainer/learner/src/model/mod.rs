//! Transformer model for one device: forward and backward passes written by hand, block by block.
//! Sharding is applied through [`Parameters`].
//!
//! Only [`hugging_face`] does IO. The model has no access to ranks, optimizer or objective: the
//! loss is a closure over log-probabilities, or over values.
//!
//! ```text
//!  block      0 embedding       1..=L layers             L+1 final norm and head
//!  forward    tokens_T > x_TH > … Saved … > x_TH > logits in chunks, or values > loss
//!  backward   gradient of block 0 < … gradient … < dx_TH < derivative of the loss
//! ```
//! The weights of a block are gathered before it runs, in both directions, and dropped after it;
//! `Saved` holds activations only.
//!
//! Read in this order: [`config`], [`rope`], [`layout`], `rows`, [`packed`], [`parameters`], then
//! `pass` (the whole model), `layer`, `attention`, `head`, [`lora`], [`dropout`],
//! `low_rank`. Operations are in `trainer/kernels`.
//!
//! Shape suffixes: T rows of a micro-batch (its tokens; those of a shared prefix once), N its
//! trained tokens, H hidden size, V vocabulary, A attention heads, K key-value heads, G = A ÷ K, D
//! head size, F feed-forward size, B spans of a bucket, S their padded length, Q sequences of
//! a micro-batch. Operations of tch panic on mismatched shapes; external input is checked in
//! [`config`], [`hugging_face`] and [`packed`].

mod architecture;
mod attention;
mod bucket;
pub mod config;
pub mod dropout;
mod error;
mod exported_config;
mod head;
pub mod hugging_face;
mod layer;
pub mod layout;
pub mod lora;
mod low_rank;
mod operations;
pub mod packed;
pub mod parameters;
mod pass;
pub mod random;
pub mod rope;
mod rows;
pub(crate) mod safetensors_file;
mod weights;

pub use config::ModelConfig;
pub use error::ModelError;
pub use head::{Head, rows_of_device_chunk};
pub use layout::{Layout, ModelLayout};
pub use packed::PackedTokens;
pub use parameters::{
    Adapters, Gradient, LayerGradient, LayerWeights, Parameters, WholeParameters,
};
pub use pass::{
    Chunk, Model, Recomputed, SelectedGradient, TokenGradient, TokenLogprobs, TokenValues,
    TopTokens, ValueHead,
};
pub use rows::SharedPrefix;
