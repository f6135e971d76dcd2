//! Passes of a model with a scalar head, or through the value head of a policy: the value of each
//! trained token, computed from the hidden state of the token before it, and the value after the
//! last token of each sequence.

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

impl TokenValues {
    /// Values by a head `[1, H]` of the normed states of [`Model::valued_rows`].
    pub(super) fn new(normed_RH: &Tensor, head_1H: &Tensor, packed: &PackedTokens) -> Self {
        let values_R = values(normed_RH, head_1H);
        let (trained, sequences) = (packed.num_trained(), packed.last_Q.numel() as i64);
        Self {
            values_N: values_R.narrow(0, 0, trained),
            end_Q: values_R.narrow(0, trained, sequences),
        }
    }
}

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
        let top = self.valued_rows(parameters, packed)?;
        Ok(TokenValues::new(&top.normed_NH, &top.head_VH, packed))
    }

    /// Runs forward to the norm of the rows that have a value: those that predict the trained
    /// tokens, then the last one of each sequence.
    pub(super) fn valued_rows(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
    ) -> Result<Top, ModelError> {
        let (x_TH, _) = self.layers_forward(parameters, packed, false)?;
        let rows_R = Tensor::f_cat(&[&packed.predictors_N, &packed.last_Q], 0)?;
        self.top(parameters, &rows_R, &x_TH)
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
        let [dvalues_N1, dhead_1H] = derivatives(&top.normed_NH, &top.head_VH, loss);
        let dnormed_NH = dvalues_N1.matmul(&top.head_VH);
        let (dx_NH, dnorm_H) = rms_norm_backward(&dnormed_NH, &top.norm, &top.norm_weight_H, None)?;
        let last = self.config.num_hidden_layers + 1;
        let gradient = parameters.gradient(last)?.with_values();
        let views = self.block(last).views(&gradient.flat);
        for (mut view, part) in views.into_iter().zip([dnorm_H, dhead_1H]) {
            let _ = view.f_add_(&part)?;
        }
        parameters.add_gradient(last, gradient)?;
        let dx_TH = spread(&dx_NH);
        drop(x_TH);
        self.layers_backward(parameters, packed, kept, dx_TH)
    }
}

/// Weights `[1, H]` of a value head.
pub(super) fn weights(value_head: &mut dyn Parameters) -> Result<Tensor, ModelError> {
    Ok(value_head.weights(0, None)?.f_view([1, -1])?)
}

/// Outputs `[N]` of a head `[1, H]` for normed states `[N, H]`, fp32.
pub(super) fn values(normed_NH: &Tensor, head_1H: &Tensor) -> Tensor {
    normed_NH.matmul(&head_1H.tr()).to_kind(Kind::Float).squeeze_dim(-1)
}

/// Derivatives of the total loss by the outputs of a head, `[N, 1]`, and by its weights, `[1, H]`.
/// `loss` gets the outputs and returns the derivative by each.
fn derivatives(
    normed_NH: &Tensor,
    head_1H: &Tensor,
    loss: &mut dyn FnMut(&Tensor) -> Tensor,
) -> [Tensor; 2] {
    let dvalues_N1 = loss(&values(normed_NH, head_1H)).to_kind(normed_NH.kind()).unsqueeze(1);
    let dhead_1H = dvalues_N1.tr().mm(normed_NH);
    [dvalues_N1, dhead_1H]
}
