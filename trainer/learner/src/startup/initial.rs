//! Weights before training: of the model folder, or random; a scalar or value head is 0.

use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::model::InitialWeights;
use tch::{Device, Kind, Tensor};

use crate::model::layout::TensorSpec;
use crate::model::{Head, Model, ModelError, ModelLayout, hugging_face, random};

/// Flat weights of blocks, in order.
pub(super) type Blocks = dyn Iterator<Item = Result<Tensor, ModelError>>;

/// The weights before training, one flat vector per block in the kind of the files, read a few
/// blocks ahead; a scalar or value head is 0.
pub(super) fn initial_blocks(
    spec: &RLJobSpec,
    model: &Model,
    model_directory: &Path,
) -> Result<Box<Blocks>, ModelError> {
    if model.head() == Head::Value {
        let zeros = Tensor::f_zeros([model.layout().numel()], (Kind::Float, Device::Cpu))?;
        return Ok(Box::new(std::iter::once(Ok(zeros))));
    }
    let language_model = ModelLayout::new(model.config());
    let blocks: Box<Blocks> = match spec.model.weights {
        InitialWeights::Pretrained => {
            Box::new(hugging_face::read_blocks(model_directory, &language_model)?)
        }
        InitialWeights::Random => {
            Box::new(random::blocks(&language_model, model.config(), spec.training.seed))
        }
    };
    Ok(match model.head() {
        Head::LanguageModel | Head::Value => blocks,
        Head::Scalar => Box::new(with_zero_head(blocks, model.layout())),
    })
}

/// Blocks of a language model with a scalar head of zeros in place of theirs: a critic or reward
/// model, whose values are 0 before its first update.
fn with_zero_head(
    blocks: Box<Blocks>,
    layout: &ModelLayout,
) -> impl Iterator<Item = Result<Tensor, ModelError>> + use<> {
    let layouts = layout.blocks().to_vec();
    let last = layouts.len().saturating_sub(1);
    blocks.zip(layouts).enumerate().map(move |(index, (block, layout))| {
        let block = block?;
        if index < last {
            return Ok(block);
        }
        let norm = layout.tensors().first().map_or(0, TensorSpec::numel);
        let zeros =
            Tensor::f_zeros([layout.numel().saturating_sub(norm)], (block.kind(), Device::Cpu))?;
        Ok(Tensor::f_cat(&[block.f_narrow(0, 0, norm)?, zeros], 0)?)
    })
}
