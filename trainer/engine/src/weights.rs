//! The weights, allocated once: a flat tensor a block, in the learner's layout, where every Hugging Face name is a view.
//!
//! ```text
//!  block i: input_layernorm │ q k v │ o │ post_attention_layernorm │ gate up │ down
//!                             └──┬─┘                                 └──┬──┘      neighbours are also one matrix, for one GEMM
//! ```
//! A weight update is a copy into these views; nothing is allocated and no view moves.

use std::collections::HashMap;

use rljob_learner::model::{Layout, ModelConfig, ModelLayout};
use tch::{Device, Kind, TchError, Tensor};

/// Weights of one block.
#[derive(Debug)]
pub struct LayerWeights {
    /// RMSNorm before attention, `[hidden]`.
    pub input_norm: Tensor,
    /// `[(heads + 2 · kv_heads) · head_dim, hidden]`.
    pub qkv: Tensor,
    /// `[hidden, heads · head_dim]`.
    pub output: Tensor,
    /// RMSNorm before the MLP, `[hidden]`.
    pub mlp_norm: Tensor,
    /// `[2 · intermediate, hidden]`.
    pub gate_up: Tensor,
    /// `[hidden, intermediate]`.
    pub down: Tensor,
}

/// All weights.
#[derive(Debug)]
pub struct Weights {
    /// `[vocabulary, hidden]`.
    pub embedding: Tensor,
    /// The blocks.
    pub layers: Vec<LayerWeights>,
    /// The last RMSNorm, `[hidden]`.
    pub norm: Tensor,
    /// `[vocabulary, hidden]`; the embedding itself in models that tie them.
    pub head: Tensor,
    views: HashMap<String, Tensor>,
}

/// A tensor that does not fit the model.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// Not a tensor of this model.
    #[error("`{0}` is not a tensor of this model")]
    Unknown(String),
    /// A tensor of this model that is not there.
    #[error("tensor `{0}` is missing")]
    Missing(String),
    /// Other dimensions.
    #[error("tensor `{name}` has shape {found:?}, this model needs {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Dimensions it has.
        found: Vec<i64>,
        /// Dimensions it should have.
        expected: Vec<i64>,
    },
    /// libtorch failed.
    #[error("failed to allocate, view or copy weights: {0}")]
    Torch(#[from] TchError),
}

/// A block's flat tensor and where its names are in it.
struct Block<'a> {
    layout: &'a Layout,
    flat: Tensor,
}

impl Block<'_> {
    /// The tensors from `first` to `last`, which are neighbours with equal columns, as one matrix.
    fn matrix(&self, first: &str, last: &str) -> Result<Tensor, WeightsError> {
        let find = |part: &str| self.layout.tensors().iter().find(|spec| spec.name.ends_with(part)).ok_or_else(|| WeightsError::Missing(part.to_owned()));
        let (first, last) = (find(first)?, find(last)?);
        let flat = self.flat.f_narrow(0, first.offset, last.offset + last.numel() - first.offset)?;
        Ok(match first.shape.as_slice() {
            [_] => flat,
            [_, columns @ ..] => flat.f_view([&[-1], columns].concat())?,
            [] => return Err(WeightsError::Missing(first.name.clone())),
        })
    }

    fn tensor(&self, part: &str) -> Result<Tensor, WeightsError> {
        self.matrix(part, part)
    }
}

impl Weights {
    /// Zeroed weights of `config`'s shape.
    pub fn allocate(config: &ModelConfig, kind: Kind) -> Result<Self, WeightsError> {
        let layout = ModelLayout::new(config);
        let allocate = |layout| -> Result<Block<'_>, TchError> { Ok(Block { layout, flat: Tensor::f_zeros([Layout::numel(layout)], (kind, Device::Cpu))? }) };
        let blocks = layout.blocks().iter().map(allocate).collect::<Result<Vec<_>, _>>()?;
        let views = blocks.iter().flat_map(|block| block.layout.tensors().iter().map(|spec| spec.name.clone()).zip(block.layout.views(&block.flat))).collect();
        let [first, layers @ .., last] = blocks.as_slice() else { return Err(WeightsError::Missing("model.embed_tokens.weight".to_owned())) };
        let embedding = first.tensor("embed_tokens.weight")?;
        let head = if config.tie_word_embeddings { embedding.shallow_clone() } else { last.tensor("lm_head.weight")? };
        Ok(Self { embedding, layers: layers.iter().map(layer_weights).collect::<Result<_, _>>()?, norm: last.tensor("model.norm.weight")?, head, views })
    }

    /// The view of a Hugging Face name.
    pub fn view(&self, name: &str) -> Result<&Tensor, WeightsError> {
        self.views.get(name).ok_or_else(|| WeightsError::Unknown(name.to_owned()))
    }

    /// The view of a name, if it has this shape.
    pub fn view_of_shape(&self, name: &str, shape: &[i64]) -> Result<&Tensor, WeightsError> {
        let view = self.view(name)?;
        let expected = view.size();
        if expected == shape { Ok(view) } else { Err(WeightsError::Shape { name: name.to_owned(), found: shape.to_vec(), expected }) }
    }

    /// Whether `tensors` are exactly this model's: every name, each with its shape.
    pub fn check_complete(&self, tensors: &HashMap<String, Tensor>) -> Result<(), WeightsError> {
        for (name, tensor) in tensors {
            self.view_of_shape(name, &tensor.size())?;
        }
        match self.views.keys().filter(|name| !tensors.contains_key(*name)).min() {
            Some(missing) => Err(WeightsError::Missing(missing.clone())),
            None => Ok(()),
        }
    }

    /// Copies tensors into place, converting their type.
    pub fn copy_from(&self, tensors: &HashMap<String, Tensor>) -> Result<(), WeightsError> {
        for (name, tensor) in tensors {
            self.view_of_shape(name, &tensor.size())?.shallow_clone().f_copy_(tensor)?;
        }
        Ok(())
    }
}

fn layer_weights(block: &Block<'_>) -> Result<LayerWeights, WeightsError> {
    Ok(LayerWeights {
        input_norm: block.tensor("input_layernorm.weight")?,
        qkv: block.matrix("q_proj.weight", "v_proj.weight")?,
        output: block.tensor("o_proj.weight")?,
        mlp_norm: block.tensor("post_attention_layernorm.weight")?,
        gate_up: block.matrix("gate_proj.weight", "up_proj.weight")?,
        down: block.tensor("down_proj.weight")?,
    })
}
