//! The weights, allocated once: a flat tensor a block, in the learner's layout, where every Hugging
//! Face name is a view.
//!
//! ```text
//!  block i: input_layernorm │ q k v │ biases │ norms │ o │ post_attention_layernorm │ gate up │ down
//!                             └──┬─┘                                              └──┬──┘      neighbours are also one matrix, for one GEMM
//! ```
//! A weight update is a copy into these views; nothing is allocated and no view moves.

use std::collections::HashMap;

use rljob_learner::model::{Layout, ModelConfig, ModelLayout, hugging_face};
use tch::{Device, Kind, TchError, Tensor};

/// Weights of one block.
#[derive(Debug)]
pub struct LayerWeights {
    /// RMSNorm before attention, `[hidden]`.
    pub input_norm: Tensor,
    /// `[(heads + 2 · kv_heads) · head_dim, hidden]`.
    pub qkv: Tensor,
    /// Biases of q, k and v in one, if the model has them (Qwen2).
    pub qkv_bias: Option<Tensor>,
    /// RMSNorms of each query's and each key's head, `[head_dim]`, if the model has them (Qwen3).
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
    layout: ModelLayout,
    /// A block's flat tensor each.
    blocks: Vec<Tensor>,
    views: HashMap<String, Tensor>,
}

/// A tensor that does not fit the model.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// Not a tensor of this model.
    #[error("`{0}` is not a tensor of this model")]
    Unknown(String),
    /// A tensor that the architecture needs and the layout lacks.
    #[error("the layout has no tensor `{0}`")]
    Missing(&'static str),
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
    flat: &'a Tensor,
}

impl Block<'_> {
    /// The tensors from `first` to `last`, which are neighbours with equal columns, as one matrix.
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
    /// Zeroed weights of `config`'s shape.
    pub fn allocate(config: &ModelConfig, kind: Kind) -> Result<Self, WeightsError> {
        let layout = ModelLayout::new(config);
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
        let head = if config.tie_word_embeddings {
            embedding.shallow_clone()
        } else {
            last.tensor("lm_head.weight")?
        };
        let norm = last.tensor("model.norm.weight")?;
        let layers =
            layers.iter().map(|block| layer_weights(block, config)).collect::<Result<_, _>>()?;
        let views = hugging_face::named_tensors(&layout, &flats).into_iter().collect();
        Ok(Self { embedding, layers, norm, head, layout, blocks: flats, views })
    }

    /// How the blocks are laid out.
    pub fn layout(&self) -> &ModelLayout {
        &self.layout
    }

    /// Type of the weights.
    pub fn kind(&self) -> Kind {
        self.embedding.kind()
    }

    /// The view of a Hugging Face name.
    pub fn view(&self, name: &str) -> Result<&Tensor, WeightsError> {
        self.views.get(name).ok_or_else(|| WeightsError::Unknown(name.to_owned()))
    }

    /// The view of a name, if it has this shape.
    pub fn view_of_shape(&self, name: &str, shape: &[i64]) -> Result<&Tensor, WeightsError> {
        let view = self.view(name)?;
        let expected = view.size();
        if expected == shape {
            Ok(view)
        } else {
            Err(WeightsError::Shape { name: name.to_owned(), found: shape.to_vec(), expected })
        }
    }

    /// Copies whole blocks, each flat in the layout's order, into place, converting their type.
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
