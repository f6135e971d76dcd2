//! Passes of a model with a scalar head: the value of each trained token, computed from the hidden
//! state of the token before it.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_kernels::norm::rms_norm_backward;
use tch::{Kind, Tensor};

use super::{Head, Model, Top};
use crate::model::{ModelError, PackedTokens, Parameters};

impl Model {
    /// Values `[N]` of the trained tokens in fp32, without gradients.
    ///
    /// # Errors
    /// The model has no scalar head, or its weights are not available.
    pub fn values(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
    ) -> Result<Tensor, ModelError> {
        self.require(Head::Scalar)?;
        let (x_TH, _) = self.layers_forward(parameters, packed, false)?;
        Ok(values(&self.top(parameters, packed, &x_TH)?))
    }

    /// Runs the micro-batch forward and backward. `loss` gets the values `[N]` and returns the
    /// derivative of the total loss with respect to each; the gradients are added to `parameters`.
    ///
    /// # Errors
    /// The model has no scalar head, or its weights or gradients are not available.
    pub fn values_forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        loss: &mut dyn FnMut(&Tensor) -> Tensor,
    ) -> Result<(), ModelError> {
        self.require(Head::Scalar)?;
        let (x_TH, kept) = self.layers_forward(parameters, packed, true)?;
        let top = self.top(parameters, packed, &x_TH)?;
        let dvalues_N1 = loss(&values(&top)).to_kind(top.normed_NH.kind()).unsqueeze(1);
        let dnormed_NH = dvalues_N1.matmul(&top.head_VH);
        let (dx_NH, dnorm_H) = rms_norm_backward(&dnormed_NH, &top.norm, &top.norm_weight_H, None)?;
        let last = self.config.num_hidden_layers + 1;
        let gradient = parameters.gradient(last)?.with_values();
        let views = self.block(last).views(&gradient.flat);
        for (mut view, part) in views.into_iter().zip([dnorm_H, dvalues_N1.tr().mm(&top.normed_NH)])
        {
            let _ = view.f_add_(&part)?;
        }
        parameters.add_gradient(last, gradient)?;
        let dx_TH = packed.sum_by_predictor(&dx_NH);
        drop(x_TH);
        self.layers_backward(parameters, packed, kept, dx_TH)
    }
}

fn values(top: &Top) -> Tensor {
    top.normed_NH.matmul(&top.head_VH.tr()).to_kind(Kind::Float).squeeze_dim(-1)
}
