//! Layout of parameters: groups tensors into blocks, each a flat vector.
//!
//! ```text
//!  block 0          model.embed_tokens
//!  blocks 1..=L     input_layernorm │ q k v │ biases of q k v (Qwen2) │ q_norm │ k_norm (Qwen3)
//!                   │ o │ post_attention_layernorm │ gate up │ down
//!                   (│ separates views of one GEMM)
//!  block L+1        model.norm │ lm_head (unless tied) or score (scalar head)
//! ```
//! A value head, which is on another model, has one block: score.
//!
//! q, k and v are adjacent, as are their biases, and gate and up, so that each group is one matrix
//! or vector without a copy.

use tch::Tensor;

use super::{Head, ModelConfig};

/// Name of a scalar or value head, that of transformers' sequence classifiers.
pub const SCORE: &str = "score.weight";

/// A tensor of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Hugging Face name.
    pub name: String,
    pub shape: Vec<i64>,
    /// Offset in the block's flat vector, in elements.
    pub offset: i64,
}

impl TensorSpec {
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

/// The tensors of one block, in the order of its flat vector.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    tensors: Vec<TensorSpec>,
    numel: i64,
}

impl Layout {
    pub(super) fn with(mut self, name: String, shape: &[i64]) -> Self {
        let spec = TensorSpec { name, shape: shape.to_vec(), offset: self.numel };
        self.numel += spec.numel();
        self.tensors.push(spec);
        self
    }

    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Elements of the flat vector.
    pub fn numel(&self) -> i64 {
        self.numel
    }

    /// Views of the tensors in `flat` `[numel]`, in order. They share its memory.
    pub fn views(&self, flat: &Tensor) -> Vec<Tensor> {
        self.tensors
            .iter()
            .map(|spec| flat.narrow(0, spec.offset, spec.numel()).view(spec.shape.as_slice()))
            .collect()
    }
}

/// All blocks of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLayout {
    blocks: Vec<Layout>,
}

impl ModelLayout {
    /// The layout of a language model of this shape.
    pub fn new(config: &ModelConfig) -> Self {
        Self::with_head(config, Head::LanguageModel)
    }

    /// The layout of a model of this shape with this head.
    pub fn with_head(config: &ModelConfig, head: Head) -> Self {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let with_score = |layout: Layout| layout.with(SCORE.to_owned(), &[1, hidden]);
        let norm = Layout::default().with("model.norm.weight".to_owned(), &[hidden]);
        let last = match head {
            Head::Value => return Self { blocks: vec![with_score(Layout::default())] },
            Head::Scalar => with_score(norm),
            Head::LanguageModel if config.tie_word_embeddings => norm,
            Head::LanguageModel => norm.with("lm_head.weight".to_owned(), &[vocab, hidden]),
        };
        let mut blocks =
            vec![Layout::default().with("model.embed_tokens.weight".to_owned(), &[vocab, hidden])];
        blocks.extend((0..config.num_hidden_layers).map(|layer| layer_layout(config, layer)));
        blocks.push(last);
        Self { blocks }
    }

    /// A layout of these blocks.
    pub(super) fn of(blocks: Vec<Layout>) -> Self {
        Self { blocks }
    }

    pub fn blocks(&self) -> &[Layout] {
        &self.blocks
    }

    /// Elements of each block.
    pub fn block_numels(&self) -> Vec<i64> {
        self.blocks.iter().map(Layout::numel).collect()
    }

    /// Number of parameters; tied ones count once.
    pub fn numel(&self) -> i64 {
        self.blocks.iter().map(Layout::numel).sum()
    }
}

fn layer_layout(config: &ModelConfig, layer: usize) -> Layout {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (queries, keys) = (
        config.num_attention_heads * config.head_dim,
        config.num_key_value_heads * config.head_dim,
    );
    let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
    let bias = |part: &str| format!("model.layers.{layer}.{part}.bias");
    let mut layout = Layout::default()
        .with(name("input_layernorm"), &[hidden])
        .with(name("self_attn.q_proj"), &[queries, hidden])
        .with(name("self_attn.k_proj"), &[keys, hidden])
        .with(name("self_attn.v_proj"), &[keys, hidden]);
    if config.qkv_bias {
        layout = layout
            .with(bias("self_attn.q_proj"), &[queries])
            .with(bias("self_attn.k_proj"), &[keys])
            .with(bias("self_attn.v_proj"), &[keys]);
    }
    if config.qk_norm {
        layout = layout
            .with(name("self_attn.q_norm"), &[config.head_dim])
            .with(name("self_attn.k_norm"), &[config.head_dim]);
    }
    layout
        .with(name("self_attn.o_proj"), &[hidden, queries])
        .with(name("post_attention_layernorm"), &[hidden])
        .with(name("mlp.gate_proj"), &[inner, hidden])
        .with(name("mlp.up_proj"), &[inner, hidden])
        .with(name("mlp.down_proj"), &[hidden, inner])
}
