//! Passes of a model with a scalar head that scores whole sequences, from the hidden state of the
//! last token of each.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::Tensor;

use super::values::values;
use super::{Head, Model};
use crate::model::{ModelError, PackedTokens, Parameters};

impl Model {
    /// Score of each sequence `[Q]`, without gradients, fp32.
    ///
    /// # Errors
    /// The model has no scalar head, or its weights are not available.
    pub fn scores(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
    ) -> Result<Tensor, ModelError> {
        self.require(Head::Scalar)?;
        let (x_TH, _) = self.layers_forward(parameters, packed, false)?;
        let top = self.top(parameters, &packed.last_Q, &x_TH)?;
        Ok(values(&top.normed_NH, &top.head_VH))
    }

    /// Runs the micro-batch forward and backward. `loss` gets the scores `[Q]` and returns the
    /// derivative of the total loss with respect to each; the gradients are added to `parameters`.
    ///
    /// # Errors
    /// The model has no scalar head, or its weights or gradients are not available.
    pub fn scores_forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        loss: &mut dyn FnMut(&Tensor) -> Tensor,
    ) -> Result<(), ModelError> {
        let spread = |dx_QH: &Tensor| packed.at_ends(dx_QH);
        self.scalar_forward_backward(parameters, packed, &packed.last_Q, loss, &spread)
    }
}
