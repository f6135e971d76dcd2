//! Passes of a teacher: its most likely tokens at each trained token, from chunks of its logits.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::ops::Range;

use rljob_kernels::head::Distribution;
use tch::{Device, Kind, Tensor};

use super::{Head, Model};
use crate::model::{ModelError, PackedTokens, Parameters, head};

/// The most likely tokens of a model at each trained token.
#[derive(Debug)]
pub struct TopTokens {
    /// `[N, K]` int32, all different in a row.
    pub tokens_NK: Tensor,
    /// `[N, K]` log-probabilities, of logits ÷ temperature, fp32.
    pub logprobs_NK: Tensor,
}

impl TopTokens {
    /// Those of the trained tokens `range`, as views.
    #[must_use]
    pub fn narrow(&self, range: &Range<i64>) -> Self {
        self.map(|tensor| tensor.narrow(0, range.start, range.end - range.start))
    }

    /// The same on a device.
    #[must_use]
    pub fn to_device(&self, device: Device) -> Self {
        self.map(|tensor| tensor.to_device(device))
    }

    fn map(&self, change: impl Fn(&Tensor) -> Tensor) -> Self {
        let Self { tokens_NK, logprobs_NK } = self;
        Self { tokens_NK: change(tokens_NK), logprobs_NK: change(logprobs_NK) }
    }
}

impl Model {
    /// The `count` most likely tokens below `vocabulary` at each trained token, or all of them,
    /// without gradients. Probabilities are those among these tokens.
    ///
    /// # Errors
    /// The model has another head or fewer tokens, or its weights are not available.
    pub fn top_tokens(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        temperature: f64,
        (count, vocabulary): (i64, i64),
    ) -> Result<TopTokens, ModelError> {
        self.require(Head::LanguageModel)?;
        let (x_TH, _) = self.layers_forward(parameters, packed, false)?;
        let top = self.top(parameters, &packed.predictors_N, &x_TH)?;
        let head_VH = top.head_VH.f_narrow(0, 0, vocabulary)?;
        let (rows, count) = (packed.num_trained(), count.min(vocabulary));
        let device = top.normed_NH.device();
        let result = TopTokens {
            tokens_NK: Tensor::f_empty([rows, count], (Kind::Int, device))?,
            logprobs_NK: Tensor::f_empty([rows, count], (Kind::Float, device))?,
        };
        for range in head::chunks(rows, vocabulary, device) {
            let part = result.narrow(&range);
            let length = range.end - range.start;
            let normed_CH = top.normed_NH.f_narrow(0, range.start, length)?;
            let logits_CV = normed_CH.f_matmul(&head_VH.f_tr()?)?;
            // The logits are overwritten.
            let (logits_CK, tokens_CK) = logits_CV.f_topk(count, -1, true, true)?;
            let targets_C = packed.targets_N.f_narrow(0, range.start, length)?;
            let distribution = Distribution::new(&logits_CV, &targets_C, temperature)?;
            let mut into = part.logprobs_NK;
            into.f_copy_(&distribution.logprobs_of(&logits_CK, temperature))?;
            let mut into = part.tokens_NK;
            into.f_copy_(&tokens_CK)?;
        }
        Ok(result)
    }
}
