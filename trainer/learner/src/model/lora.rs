//! Low-rank adapters (LoRA: Hu et al. 2021, arXiv 2106.09685) of the linear layers of a model.
//!
//! ```text
//!  weights     W' = W + s · B · A         s = alpha ÷ rank, A [rank, in], B [out, rank]
//!  gradients   dA = s · Bᵀ · dW'          dB = s · dW' · Aᵀ
//! ```
//! A pass computes with W' in the compute kind and does not know of adapters, unless it has dropout
//! ([`super::low_rank`]). B starts at 0 and A as PEFT initializes it, so that a model with new
//! adapters is the model without them.
//!
//! The trained blocks are one of adapters for each layer, with PEFT's names. With a scalar head,
//! the last block of the model (norm and head) follows, whole: the head is new.

use rljob_crds::lora::{LoraSpec, LoraTarget};
use rljob_kernels::linear::weight_gradient;
use tch::{Kind, Tensor};

use super::layout::TensorSpec;
use super::{Adapters, Gradient, Head, Layout, Model, ModelError, ModelLayout, random};

/// Adapters of a model: shape and scale, without weights.
#[derive(Clone, Debug)]
pub struct Lora {
    scale: f64,
    /// Layout of the model.
    base: ModelLayout,
    /// Layout of the trained blocks.
    layout: ModelLayout,
    /// Indices of the adapted tensors in the layout of each layer.
    targets: Vec<usize>,
    /// Index of each of them in [`LoraTarget::ALL`].
    modules: Vec<usize>,
    layers: usize,
}

/// What is trained of a block of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainedPart {
    Nothing,
    /// Adapters, with the index of their trained block.
    Adapters(usize),
    /// All tensors, with the index of their trained block.
    Whole(usize),
}

impl Lora {
    /// Adapters of a model.
    pub fn new(model: &Model, spec: &LoraSpec) -> Self {
        let rank = i64::from(spec.rank);
        let layers = model.config().num_hidden_layers;
        let base = model.layout().clone();
        let target = |tensor: &TensorSpec| {
            let module = tensor.name.strip_suffix(".weight")?.rsplit('.').next()?;
            let named = LoraTarget::ALL.iter().position(|target| target.module() == module)?;
            spec.targets.contains(&LoraTarget::ALL[named]).then_some(named)
        };
        let is_target = |tensor: &TensorSpec| target(tensor).is_some();
        let of_layer = |layer: &Layout| {
            let targets = layer.tensors().iter().filter(|tensor| is_target(tensor));
            targets.fold(Layout::default(), |layout, tensor| with_adapter(layout, tensor, rank))
        };
        let mut blocks: Vec<Layout> = base.blocks()[1..=layers].iter().map(of_layer).collect();
        if model.head() == Head::Scalar {
            blocks.extend(base.blocks().last().cloned());
        }
        let first = base.blocks()[1].tensors().iter().enumerate();
        let targets = first.filter(|(_, tensor)| is_target(tensor)).map(|(index, _)| index);
        Self {
            scale: spec.alpha / f64::from(spec.rank),
            targets: targets.collect(),
            modules: base.blocks()[1].tensors().iter().filter_map(target).collect(),
            layout: ModelLayout::of(blocks),
            base,
            layers,
        }
    }

    /// Factor of the product of B and A.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Layout of the model.
    pub fn base(&self) -> &ModelLayout {
        &self.base
    }

    /// Layout of the trained blocks.
    pub fn layout(&self) -> &ModelLayout {
        &self.layout
    }

    /// The last block of the model, if it is trained whole.
    pub fn whole(&self) -> Option<&Layout> {
        self.layout.blocks().get(self.layers)
    }

    /// What is trained of a block of the model.
    pub fn trained(&self, block: usize) -> TrainedPart {
        match block.checked_sub(1) {
            Some(index) if index < self.layers => TrainedPart::Adapters(index),
            Some(index) if index < self.layout.blocks().len() => TrainedPart::Whole(index),
            _ => TrainedPart::Nothing,
        }
    }

    /// Adapters before training, fp32, a flat vector for each layer.
    pub fn initial(&self, seed: u64) -> impl Iterator<Item = Result<Tensor, ModelError>> {
        let tensor = move |(index, spec): (usize, &TensorSpec)| {
            if index % 2 == 0 {
                random::kaiming_uniform(spec, seed)
            } else {
                Ok(Tensor::f_zeros([spec.numel()], (Kind::Float, tch::Device::Cpu))?)
            }
        };
        self.layout.blocks()[..self.layers].iter().map(move |block| {
            let tensors = block.tensors().iter().enumerate().map(tensor);
            Ok(Tensor::f_cat(&tensors.collect::<Result<Vec<_>, ModelError>>()?, 0)?)
        })
    }

    /// The weights of a layer, the block `1 + index` of the model, with its adapters, in the kind
    /// of `weights`. The sum is computed in fp32 and rounded once.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn merged(
        &self,
        index: usize,
        weights: &Tensor,
        adapters: &Tensor,
    ) -> Result<Tensor, ModelError> {
        let merged = weights.copy();
        for (mut target, [a, b]) in self.pairs(index, &merged, adapters) {
            // The same memory if the kind is fp32.
            let mut sum = target.f_to_kind(Kind::Float)?;
            let _ = sum.f_addmm_(&(b * self.scale), &a)?;
            if target.kind() != Kind::Float {
                target.f_copy_(&sum)?;
            }
        }
        Ok(merged)
    }

    /// Writes the gradient of the adapters of layer `index` from that of its merged weights.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn write_gradient(
        &self,
        index: usize,
        of_weights: &Tensor,
        adapters: &Tensor,
        out: &Gradient,
    ) -> Result<(), ModelError> {
        let write = out.write();
        let mut outputs = self.layout.blocks()[index].views(&out.flat).into_iter();
        for (dw, [a, b]) in self.pairs(index, of_weights, adapters) {
            let (Some(mut da), Some(mut db)) = (outputs.next(), outputs.next()) else { break };
            weight_gradient(write, &mut da, &(b * self.scale), &dw)?;
            weight_gradient(write, &mut db, &dw.tr(), &(a * self.scale).tr())?;
        }
        Ok(())
    }

    /// Views of A and B of a layer in the flat vector of its adapters or of their gradient.
    pub fn adapters(&self, index: usize, flat: &Tensor) -> Adapters {
        let mut pairs = [const { None }; LoraTarget::ALL.len()];
        let mut views = self.layout.blocks()[index].views(flat).into_iter();
        for &module in &self.modules {
            pairs[module] = views.next().zip(views.next()).map(|(a, b)| [a, b]);
        }
        Adapters { layer: index, scale: self.scale, pairs }
    }

    /// Views of the adapted tensors in the flat vector of a layer, each with its A and B.
    fn pairs(
        &self,
        index: usize,
        flat: &Tensor,
        adapters: &Tensor,
    ) -> impl Iterator<Item = (Tensor, [Tensor; 2])> {
        let mut views: Vec<_> =
            self.base.blocks()[index + 1].views(flat).into_iter().map(Some).collect();
        let targets: Vec<_> =
            self.targets.iter().filter_map(|&target| views[target].take()).collect();
        let mut adapters = self.layout.blocks()[index].views(adapters).into_iter();
        targets
            .into_iter()
            .map_while(move |target| Some((target, [adapters.next()?, adapters.next()?])))
    }
}

fn with_adapter(layout: Layout, tensor: &TensorSpec, rank: i64) -> Layout {
    let (outputs, inputs) = (tensor.shape[0], tensor.shape[1]);
    let module = tensor.name.trim_end_matches(".weight");
    let name = |matrix: &str| format!("base_model.model.{module}.{matrix}.weight");
    layout.with(name("lora_A"), &[rank, inputs]).with(name("lora_B"), &[outputs, rank])
}

#[cfg(test)]
mod tests;
