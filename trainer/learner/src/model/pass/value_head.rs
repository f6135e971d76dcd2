//! Passes of a language model with a value head: the value of each trained token from the normed
//! state that predicts it, in the pass that computes its log-probability.
//!
//! ```text
//!  layers ─▶ final norm ─┬▶ head over the vocabulary ─▶ loss of the policy
//!                        └▶ value head               ─▶ loss of values
//!  layers ◀─ sum of the derivatives by the normed states
//! ```

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::Tensor;

use super::values::derivatives;
use super::{Head, Model, TokenLogprobs, TokenValues};
use crate::model::{ModelError, PackedTokens, Parameters};

/// A value head in a pass with gradients.
pub struct ValueHead<'a> {
    /// Parameters of a model with [`Head::Value`].
    pub parameters: &'a mut dyn Parameters,
    /// Gets the values `[N]` and returns the derivative of the total loss with respect to each.
    pub loss: &'a mut dyn FnMut(&Tensor) -> Tensor,
}

impl ValueHead<'_> {
    /// Runs the head forward and backward; adds the derivative by the normed states to `dnormed`.
    pub(super) fn forward_backward(
        self,
        normed_NH: &Tensor,
        dnormed_NH: Option<&mut Tensor>,
    ) -> Result<(), ModelError> {
        let head_1H = weights(self.parameters)?;
        let [dvalues_N1, dhead_1H] = derivatives(normed_NH, &head_1H, self.loss);
        if let Some(dnormed_NH) = dnormed_NH {
            let _ = dnormed_NH.f_addmm_(&dvalues_N1, &head_1H)?;
        }
        let mut gradient = self.parameters.gradient(0)?.with_values();
        let _ = gradient.flat.f_add_(&dhead_1H.f_view([-1])?)?;
        self.parameters.add_gradient(0, gradient)?;
        self.parameters.end_pass()
    }
}

impl Model {
    /// Values by a value head with these parameters, without gradients.
    ///
    /// # Errors
    /// The model has another head, or weights are not available.
    pub fn head_values(
        &self,
        parameters: &mut dyn Parameters,
        value_head: &mut dyn Parameters,
        packed: &PackedTokens,
    ) -> Result<TokenValues, ModelError> {
        self.require(Head::LanguageModel)?;
        let top = self.valued_rows(parameters, packed)?;
        Ok(TokenValues::new(&top.normed_NH, &weights(value_head)?, packed))
    }

    /// As [`Self::logprobs`] and [`Self::head_values`], in one pass.
    ///
    /// # Errors
    /// The model has another head, or weights are not available.
    pub fn logprobs_and_values(
        &self,
        parameters: &mut dyn Parameters,
        value_head: &mut dyn Parameters,
        packed: &PackedTokens,
        temperature: f64,
    ) -> Result<(TokenLogprobs, TokenValues), ModelError> {
        self.require(Head::LanguageModel)?;
        let top = self.valued_rows(parameters, packed)?;
        let normed_NH = top.normed_NH.f_narrow(0, 0, packed.num_trained())?;
        let logprobs = self.logprobs_of(packed, &normed_NH, &top.head_VH, temperature)?;
        Ok((logprobs, TokenValues::new(&top.normed_NH, &weights(value_head)?, packed)))
    }

    /// Runs the model forward and the value head forward and backward: the model gets no gradient.
    ///
    /// # Errors
    /// The model has another head, or weights or gradients are not available.
    pub fn head_forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        value_head: ValueHead<'_>,
        packed: &PackedTokens,
    ) -> Result<(), ModelError> {
        self.require(Head::LanguageModel)?;
        let (x_TH, _) = self.layers_forward(parameters, packed, false)?;
        let top = self.top(parameters, &packed.predictors_N, &x_TH)?;
        value_head.forward_backward(&top.normed_NH, None)
    }
}

fn weights(value_head: &mut dyn Parameters) -> Result<Tensor, ModelError> {
    Ok(value_head.weights(0, None)?.f_view([1, -1])?)
}
