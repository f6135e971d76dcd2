//! Passes of a language model with a value head: the value of each trained token from the normed
//! state that predicts it, in the pass that computes its log-probability.
//!
//! ```text
//!  layers ─▶ final norm ─┬▶ head over the vocabulary ─▶ loss of the policy
//!                        └▶ value head               ─▶ loss of values
//!  layers ◀─ sum of the derivatives by the normed states
//! ```

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use super::values::weights;
use super::{Head, Model, TokenLogprobs, TokenValues, ValueHead};
use crate::model::{ModelError, PackedTokens, Parameters};

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
