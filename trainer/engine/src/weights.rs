//! Model weights: one flat tensor per block in the learner's layout, with a view per Hugging Face
//! name.
//!
//! ```text
//!  block: input_layernorm │ q k v │ biases │ norms │ o │ post_attention_layernorm │ gate up │ down
//!                           └─┬─┘                                                  └──┬──┘
//!                    one matrix, one GEMM                                   one matrix, one GEMM
//! ```
//! A weight update copies into these views; it allocates nothing and moves no view.

use std::collections::HashMap;

use rljob_learner::model::{Head, Layout, ModelConfig, ModelLayout, hugging_face};
use tch::{Device, Kind, TchError, Tensor};

#[derive(Debug)]
pub struct LayerWeights {
    /// RMSNorm before attention, `[hidden]`.
    pub input_norm: Tensor,
    /// `[(heads + 2 · kv_heads) · head_dim, hidden]`.
    pub qkv: Tensor,
    /// Concatenated biases of q, k and v (Qwen2).
    pub qkv_bias: Option<Tensor>,
    /// RMSNorms of query and key heads, `[head_dim]` (Qwen3).
    pub qk_norms: Option<[Tensor; 2]>,
    /// `[hidden, heads · head_dim]`.
    pub output: Tensor,
    /// RMSNorm before the MLP, `[hidden]`.
    pub mlp_norm: Tensor,
    /// `[2 · intermediate, hidden]`.
    pub gate_up: Tensor,
    /// `[hidden, intermediate]`.
    pub down: Tensor,
}

#[derive(Debug)]
pub struct Weights {
    /// `[vocabulary, hidden]`.
    pub embedding: Tensor,
    pub layers: Vec<LayerWeights>,
    /// Final RMSNorm, `[hidden]`.
    pub norm: Tensor,
    /// `[vocabulary, hidden]`, the embedding in models with tied weights; `[1, hidden]` in
    /// classifiers.
    pub head: Tensor,
    layout: ModelLayout,
    /// One flat tensor per block.
    blocks: Vec<Tensor>,
    views: HashMap<String, Tensor>,
}

#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("`{0}` is not a tensor of this model")]
    Unknown(String),
    /// The architecture needs a tensor that the layout lacks.
    #[error("the layout has no tensor `{0}`")]
    Missing(&'static str),
    #[error("tensor `{name}` has shape {found:?}, this model needs {expected:?}")]
    Shape { name: String, found: Vec<i64>, expected: Vec<i64> },
    #[error("failed to allocate, view or copy weights: {0}")]
    Torch(#[from] TchError),
}

/// A block's flat tensor and its layout.
struct Block<'a> {
    layout: &'a Layout,
    flat: &'a Tensor,
}

impl Block<'_> {
    /// Returns the adjacent tensors from `first` to `last`, which have equal columns, as one
    /// matrix.
    fn matrix(&self, first: &'static str, last: &'static str) -> Result<Tensor, WeightsError> {
        let find = |part| {
            self.layout
                .tensors()
                .iter()
                .find(|spec| spec.name.ends_with(part))
                .ok_or(WeightsError::Missing(part))
        };
        let (first, last) = (find(first)?, find(last)?);
        let flat =
            self.flat.f_narrow(0, first.offset, last.offset + last.numel() - first.offset)?;
        Ok(match first.shape.as_slice() {
            [_, columns] => flat.f_view([-1, *columns])?,
            _ => flat,
        })
    }

    fn tensor(&self, part: &'static str) -> Result<Tensor, WeightsError> {
        self.matrix(part, part)
    }
}

impl Weights {
    /// Allocates zeroed weights of a model with this head.
    pub fn allocate(config: &ModelConfig, head: Head, kind: Kind) -> Result<Self, WeightsError> {
        let layout = ModelLayout::with_head(config, head);
        let zeros = |block: &Layout| Tensor::f_zeros([block.numel()], (kind, Device::Cpu));
        let flats = layout.blocks().iter().map(zeros).collect::<Result<Vec<_>, _>>()?;
        let blocks: Vec<Block<'_>> = layout
            .blocks()
            .iter()
            .zip(&flats)
            .map(|(layout, flat)| Block { layout, flat })
            .collect();
        let [first, layers @ .., last] = blocks.as_slice() else {
            return Err(WeightsError::Missing("embed_tokens.weight"));
        };
        let embedding = first.tensor("embed_tokens.weight")?;
        let head = match head {
            Head::Scalar | Head::Value => last.tensor("score.weight")?,
            Head::LanguageModel if config.tie_word_embeddings => embedding.shallow_clone(),
            Head::LanguageModel => last.tensor("lm_head.weight")?,
        };
        let norm = last.tensor("model.norm.weight")?;
        let layers =
            layers.iter().map(|block| layer_weights(block, config)).collect::<Result<_, _>>()?;
        let views = hugging_face::named_tensors(&layout, &flats).into_iter().collect();
        Ok(Self { embedding, layers, norm, head, layout, blocks: flats, views })
    }

    pub fn layout(&self) -> &ModelLayout {
        &self.layout
    }

    pub fn kind(&self) -> Kind {
        self.embedding.kind()
    }

    pub fn view(&self, name: &str) -> Result<&Tensor, WeightsError> {
        self.views.get(name).ok_or_else(|| WeightsError::Unknown(name.to_owned()))
    }

    /// Returns the view of a name and checks its shape.
    pub fn view_of_shape(&self, name: &str, shape: &[i64]) -> Result<&Tensor, WeightsError> {
        let view = self.view(name)?;
        let expected = view.size();
        if expected == shape {
            Ok(view)
        } else {
            Err(WeightsError::Shape { name: name.to_owned(), found: shape.to_vec(), expected })
        }
    }

    /// Copies flat blocks in the order of the layout, with type conversion.
    pub fn copy_from(&self, blocks: &[Tensor]) -> Result<(), WeightsError> {
        for (mine, theirs) in self.blocks.iter().zip(blocks) {
            mine.shallow_clone().f_copy_(theirs)?;
        }
        Ok(())
    }
}

fn layer_weights(block: &Block<'_>, config: &ModelConfig) -> Result<LayerWeights, WeightsError> {
    let norms =
        || Ok::<_, WeightsError>([block.tensor("q_norm.weight")?, block.tensor("k_norm.weight")?]);
    Ok(LayerWeights {
        qkv_bias: config
            .qkv_bias
            .then(|| block.matrix("q_proj.bias", "v_proj.bias"))
            .transpose()?,
        qk_norms: config.qk_norm.then(norms).transpose()?,
        input_norm: block.tensor("input_layernorm.weight")?,
        qkv: block.matrix("q_proj.weight", "v_proj.weight")?,
        output: block.tensor("o_proj.weight")?,
        mlp_norm: block.tensor("post_attention_layernorm.weight")?,
        gate_up: block.matrix("gate_proj.weight", "up_proj.weight")?,
        down: block.tensor("down_proj.weight")?,
    })
}
