//! Passes of a model with a scalar head: the value of each trained token, computed from the hidden
//! state of the token before it, and the value after the last token of each sequence.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_kernels::norm::rms_norm_backward;
use tch::{Kind, Tensor};

use super::{Head, Model, Top};
use crate::model::{ModelError, PackedTokens, Parameters};

/// Values without gradients, fp32.
#[derive(Debug)]
pub struct TokenValues {
    /// `[N]` values of the trained tokens, before each.
    pub values_N: Tensor,
    /// `[Q]` value after the last token of each sequence.
    pub end_Q: Tensor,
}

impl Model {
    /// Values of the trained tokens and of the ends of sequences, without gradients.
    ///
    /// # Errors
    /// The model has no scalar head, or its weights are not available.
    pub fn values(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
    ) -> Result<TokenValues, ModelError> {
        self.require(Head::Scalar)?;
        let (x_TH, _) = self.layers_forward(parameters, packed, false)?;
        let rows_R = Tensor::f_cat(&[&packed.predictors_N, &packed.last_Q], 0)?;
        let values_R = values(&self.top(parameters, &rows_R, &x_TH)?);
        let (trained, sequences) = (packed.num_trained(), packed.last_Q.numel() as i64);
        Ok(TokenValues {
            values_N: values_R.narrow(0, 0, trained),
            end_Q: values_R.narrow(0, trained, sequences),
        })
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
        let spread = |dx_NH: &Tensor| packed.sum_by_predictor(dx_NH);
        self.scalar_forward_backward(parameters, packed, &packed.predictors_N, loss, &spread)
    }

    /// Runs the micro-batch forward and backward. `loss` gets the values of the `rows_N` and
    /// returns the derivative by each; `spread` adds up rows `[N, H]` by token, `[T, H]`.
    pub(super) fn scalar_forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        rows_N: &Tensor,
        loss: &mut dyn FnMut(&Tensor) -> Tensor,
        spread: &dyn Fn(&Tensor) -> Tensor,
    ) -> Result<(), ModelError> {
        self.require(Head::Scalar)?;
        let (x_TH, kept) = self.layers_forward(parameters, packed, true)?;
        let top = self.top(parameters, rows_N, &x_TH)?;
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
        let dx_TH = spread(&dx_NH);
        drop(x_TH);
        self.layers_backward(parameters, packed, kept, dx_TH)
    }
}

pub(super) fn values(top: &Top) -> Tensor {
    top.normed_NH.matmul(&top.head_VH.tr()).to_kind(Kind::Float).squeeze_dim(-1)
}
