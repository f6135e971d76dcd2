//! Low-rank path of adapters beside the linear layers of a transformer layer, for passes with
//! dropout, which merged weights cannot express.
//!
//! ```text
//!  y  = x · Wᵀ + s · d(x) · Aᵀ · Bᵀ         d(x) = x ∘ factors of the dropout
//!  h  = s · d(x) · Aᵀ, dh = s · dy · B      [T, rank]
//!  dA = dhᵀ · d(x), dB = dyᵀ · h            dx = dy · W + (dh · A) ∘ factors
//! ```
//! A and B are fp32 and are rounded to the kind of x for the products. The gradient of W is not
//! computed.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_kernels::linear::{Write, weight_gradient};
use tch::Tensor;

use super::dropout::Dropout;
use super::{Adapters, LayerGradient, LayerWeights, ModelConfig, ModelError, PackedTokens};

/// Linear layers with one input, whose outputs are side by side.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Qkv,
    O,
    GateUp,
    Down,
}

impl Part {
    /// Index in `LoraTarget::ALL` and outputs of each linear layer.
    fn outputs(self, config: &ModelConfig) -> Vec<(usize, i64)> {
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        match self {
            Self::Qkv => vec![(0, queries), (1, keys), (2, keys)],
            Self::O => vec![(3, config.hidden_size)],
            Self::GateUp => vec![(4, config.intermediate_size), (5, config.intermediate_size)],
            Self::Down => vec![(6, config.hidden_size)],
        }
    }
}

/// The path of a layer in a pass; it adds nothing to a pass without dropout.
#[derive(Clone, Copy)]
pub struct LowRank<'a> {
    config: &'a ModelConfig,
    path: Option<(&'a Adapters, &'a Dropout)>,
}

impl<'a> LowRank<'a> {
    /// The path of a layer with these weights.
    pub fn new(
        config: &'a ModelConfig,
        weights: &'a LayerWeights,
        packed: &'a PackedTokens,
    ) -> Self {
        Self { config, path: weights.adapters.as_ref().zip(packed.dropout()) }
    }

    /// Adds the outputs of adapters with input `x` `[T, M]` to those of the linear layers `[T, N]`.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn add_outputs(self, part: Part, x_TM: &Tensor, y_TN: &Tensor) -> Result<(), ModelError> {
        let Some((adapters, dropout)) = self.path else { return Ok(()) };
        let mut start = 0;
        for (linear, outputs) in part.outputs(self.config) {
            if let Some(pair) = &adapters.pairs[linear] {
                let [a, b] = in_kind(pair, x_TM)?;
                let place = (adapters.layer, linear);
                let factors_TM = dropout.factors(place, x_TM.size()[1], x_TM.kind())?;
                let hidden_TR = (x_TM * factors_TM).f_mm(&a.tr())? * adapters.scale;
                let _ = y_TN.f_narrow(1, start, outputs)?.f_add_(&hidden_TR.f_mm(&b.tr())?)?;
            }
            start += outputs;
        }
        Ok(())
    }

    /// From the derivatives of the outputs `[T, N]`: adds those of the input to `dx` `[T, M]` and
    /// writes the gradients of adapters.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn backward(
        self,
        part: Part,
        gradients: &LayerGradient,
        [x_TM, dy_TN]: [&Tensor; 2],
        dx_TM: &mut Tensor,
    ) -> Result<(), ModelError> {
        let (Some((adapters, dropout)), Some(into)) = (self.path, &gradients.adapters) else {
            return Ok(());
        };
        let (mut start, write) = (0, gradients.memory.write());
        for (linear, outputs) in part.outputs(self.config) {
            if let (Some(pair), Some(out)) = (&adapters.pairs[linear], &into.pairs[linear]) {
                let place = (adapters.layer, linear);
                let factors_TM = dropout.factors(place, x_TM.size()[1], x_TM.kind())?;
                let dy_TN = dy_TN.f_narrow(1, start, outputs)?;
                let of_pair = PairBackward { pair, scale: adapters.scale, factors_TM };
                of_pair.run((write, out), [x_TM, &dy_TN], dx_TM)?;
            }
            start += outputs;
        }
        Ok(())
    }
}

/// One adapter in a backward pass.
struct PairBackward<'a> {
    pair: &'a [Tensor; 2],
    scale: f64,
    factors_TM: Tensor,
}

impl PairBackward<'_> {
    fn run(
        &self,
        (write, [da, db]): (Write, &[Tensor; 2]),
        [x_TM, dy_TN]: [&Tensor; 2],
        dx_TM: &mut Tensor,
    ) -> Result<(), ModelError> {
        let [a, b] = in_kind(self.pair, x_TM)?;
        let dropped_TM = x_TM * &self.factors_TM;
        let hidden_TR = dropped_TM.f_mm(&a.tr())? * self.scale;
        let dhidden_TR = dy_TN.f_mm(&b)? * self.scale;
        weight_gradient(write, &mut da.shallow_clone(), &dhidden_TR, &dropped_TM)?;
        weight_gradient(write, &mut db.shallow_clone(), dy_TN, &hidden_TR)?;
        drop(dropped_TM);
        let _ = dx_TM.f_add_(&(dhidden_TR.f_mm(&a)? * &self.factors_TM))?;
        Ok(())
    }
}

/// A and B in the kind of the input.
fn in_kind(pair: &[Tensor; 2], x_TM: &Tensor) -> Result<[Tensor; 2], ModelError> {
    let [a, b] = pair;
    Ok([a.f_to_kind(x_TM.kind())?, b.f_to_kind(x_TM.kind())?])
}
