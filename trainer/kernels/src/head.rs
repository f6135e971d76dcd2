//! Log-probabilities and entropies of target tokens from logits, and the derivative with respect to
//! the logits.
//!
//! With p = softmax(logits ÷ temperature), its entropy H, and the loss's derivatives g with
//! respect to the target's log-probability and h with respect to H, the derivative with respect to
//! the logits is `(g · (onehot(target) − p) − h · p · (log p + H)) ÷ temperature`.
//!
//! A loss of some selected tokens gives the derivatives of these tokens and of the target itself;
//! that of the others is `−g · p ÷ temperature`.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

use crate::KernelError;
#[cfg(feature = "cuda")]
use crate::has_kernel;

/// Distribution over the vocabulary for the C tokens of a chunk.
pub struct Distribution {
    /// `[C]` log-probability of the target, fp32.
    pub logprobs_C: Tensor,
    /// `[C]` entropy in nats, fp32.
    pub entropy_C: Tensor,
    /// `[C]` logarithm of the sum of exponentials of logits ÷ temperature, fp32.
    logsumexp_C: Tensor,
    kept: Kept,
}

/// Derivatives of a loss with respect to the C tokens of a chunk.
#[derive(Debug)]
pub struct TokenGradient {
    /// `[C]` with respect to the log-probability of the target.
    pub logprobs_C: Tensor,
    /// `[C]` with respect to the entropy, if the loss depends on it.
    pub entropy_C: Option<Tensor>,
    /// Of a loss of selected tokens: `logprobs_C` then defines the derivatives of other tokens.
    pub selected: Option<SelectedGradient>,
}

/// Derivatives with respect to logits ÷ temperature of selected tokens and of the target.
#[derive(Debug)]
pub struct SelectedGradient {
    /// `[C, K]` ids of the tokens, all different in a row; int64.
    pub tokens_CK: Tensor,
    /// `[C, K]` derivative of each of them, fp32.
    pub logits_CK: Tensor,
    /// `[C]` derivative of the target where it is not one of them, fp32.
    pub target_C: Tensor,
}

impl SelectedGradient {
    /// Those of the tokens from `start` on.
    #[must_use]
    pub fn narrow(&self, start: i64, length: i64) -> Self {
        let part = |tensor: &Tensor| tensor.narrow(0, start, length);
        Self {
            tokens_CK: part(&self.tokens_CK),
            logits_CK: part(&self.logits_CK),
            target_C: part(&self.target_C),
        }
    }

    /// Replaces the derivatives of these tokens in those by all logits.
    fn write(&self, dlogits_CV: &mut Tensor, targets_C: &Tensor, temperature: f64) {
        let scaled = |values: &Tensor| (values / temperature).to_kind(dlogits_CV.kind());
        let (target_C1, logits_CK) = (scaled(&self.target_C).unsqueeze(1), scaled(&self.logits_CK));
        let _ = dlogits_CV.scatter_(-1, &targets_C.unsqueeze(1), &target_C1);
        let _ = dlogits_CV.scatter_(-1, &self.tokens_CK, &logits_CK);
    }
}

impl From<Tensor> for TokenGradient {
    /// The derivative of a loss that does not depend on the entropy.
    fn from(logprobs_C: Tensor) -> Self {
        Self { logprobs_C, entropy_C: None, selected: None }
    }
}

/// What the derivative needs.
enum Kept {
    /// `[C, V]` in fp32.
    Softmax(Tensor),
    /// Logits `[C, V]` in bfloat16.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "made by the kernel"))]
    Logits(Tensor),
}

impl Distribution {
    /// The distribution of `targets_C` given `logits_CV`, which are overwritten.
    pub fn new(
        logits_CV: &Tensor,
        targets_C: &Tensor,
        temperature: f64,
    ) -> Result<Self, KernelError> {
        #[cfg(feature = "cuda")]
        if has_kernel(logits_CV) {
            let [logprobs_C, entropy_C, logsumexp_C] =
                crate::cuda::distribution(logits_CV, targets_C, temperature)?;
            let kept = Kept::Logits(logits_CV.shallow_clone());
            return Ok(Self { logprobs_C, entropy_C, logsumexp_C, kept });
        }
        Ok(Self::plain(logits_CV, targets_C, temperature))
    }

    /// [`Self::new`] in libtorch's operations.
    pub fn plain(logits_CV: &Tensor, targets_C: &Tensor, temperature: f64) -> Self {
        let mut logits_CV = logits_CV.to_kind(Kind::Float);
        if (temperature - 1.0).abs() > f64::EPSILON {
            let _ = logits_CV.g_div_scalar_(temperature);
        }
        let logsumexp_C1 = logits_CV.logsumexp([-1].as_slice(), true);
        let _ = logits_CV.g_sub_(&logsumexp_C1);
        let logprobs_CV = logits_CV;
        let logprobs_C = logprobs_CV.gather(-1, &targets_C.unsqueeze(1), false).squeeze_dim(-1);
        let softmax_CV = logprobs_CV.exp();
        // A dot product per row, so that the products are not stored.
        let entropy_C11 = softmax_CV.unsqueeze(1).bmm(&logprobs_CV.unsqueeze(2)).neg();
        Self {
            logprobs_C,
            entropy_C: entropy_C11.view([-1]),
            logsumexp_C: logsumexp_C1.squeeze_dim(-1),
            kept: Kept::Softmax(softmax_CV),
        }
    }

    /// Log-probabilities `[C, K]` of tokens whose logits were read before [`Self::new`], fp32.
    pub fn logprobs_of(&self, logits_CK: &Tensor, temperature: f64) -> Tensor {
        logits_CK.to_kind(Kind::Float) / temperature - self.logsumexp_C.unsqueeze(1)
    }

    /// Derivative `[C, V]` with respect to the logits (before division by the temperature), given
    /// the loss's derivatives.
    pub fn logits_gradient(
        self,
        targets_C: &Tensor,
        gradient: &TokenGradient,
        temperature: f64,
    ) -> Result<Tensor, KernelError> {
        let scaled = |of_C: &Tensor| (of_C / temperature).to_kind(Kind::Float).unsqueeze(1);
        let mut dlogits_CV = match self.kept {
            Kept::Softmax(mut dlogits_CV) => {
                let scaled_C1 = scaled(&gradient.logprobs_C);
                let of_entropy_CV = gradient.entropy_C.as_ref().map(|entropy_C| {
                    // p log p is 0 where p is.
                    let weighted_CV = dlogits_CV.xlogy(&dlogits_CV);
                    (weighted_CV + &dlogits_CV * self.entropy_C.unsqueeze(1)) * scaled(entropy_C)
                });
                let _ = dlogits_CV.g_mul_(&scaled_C1.neg());
                if let Some(of_entropy_CV) = of_entropy_CV {
                    let _ = dlogits_CV.g_sub_(&of_entropy_CV);
                }
                dlogits_CV.scatter_add_(-1, &targets_C.unsqueeze(1), &scaled_C1)
            }
            #[cfg(feature = "cuda")]
            Kept::Logits(logits_CV) => {
                let gradient_C = gradient.logprobs_C.to_kind(Kind::Float).contiguous();
                let of_entropy = gradient.entropy_C.as_ref();
                let of_entropy_C = of_entropy.map(|own| own.to_kind(Kind::Float).contiguous());
                crate::cuda::logits_gradient(
                    &logits_CV,
                    targets_C,
                    [&gradient_C, &self.logsumexp_C],
                    of_entropy_C.as_ref().map(|own| [own, &self.entropy_C]),
                    temperature,
                )?;
                logits_CV
            }
            #[cfg(not(feature = "cuda"))]
            Kept::Logits(logits_CV) => logits_CV,
        };
        if let Some(selected) = &gradient.selected {
            selected.write(&mut dlogits_CV, targets_C, temperature);
        }
        Ok(dlogits_CV)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn log_probability_entropy_and_derivatives_match_autograd() {
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let logits = random(&[3, 7]);
        // Its softmax is 0, and p log p with it.
        let _ = logits.get(1).get(2).fill_(-1e30);
        let targets = Tensor::from_slice(&[0_i64, 6, 3]);
        for entropy_C in [None, Some(random(&[3]))] {
            let gradient = TokenGradient { logprobs_C: random(&[3]), entropy_C, selected: None };
            let leaf = logits.copy().set_requires_grad(true);
            let logprobs_CV = (&leaf / 0.7).log_softmax(-1, Kind::Float);
            let expected = logprobs_CV.gather(-1, &targets.unsqueeze(1), false).squeeze_dim(-1);
            let products = logprobs_CV.exp() * &logprobs_CV;
            let entropy = -products.sum_dim_intlist([-1].as_slice(), false, Kind::Float);
            let mut sum = (&expected * &gradient.logprobs_C).sum(Kind::Float);
            if let Some(entropy_C) = &gradient.entropy_C {
                sum += (&entropy * entropy_C).sum(Kind::Float);
            }
            let dlogits = Tensor::run_backward(&[sum], &[&leaf], false, false).remove(0);

            let distribution = Distribution::new(&logits.copy(), &targets, 0.7).unwrap();
            assert!(distribution.logprobs_C.allclose(&expected, 1e-5, 1e-5, false));
            assert!(distribution.entropy_C.allclose(&entropy, 1e-5, 1e-5, false));
            let found = distribution.logits_gradient(&targets, &gradient, 0.7).unwrap();
            assert!(found.allclose(&dlogits, 1e-5, 1e-5, false), "{gradient:?}");
        }
    }

    #[test]
    fn log_probabilities_and_derivatives_of_selected_tokens_match_autograd() {
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (logits, temperature) = (random(&[3, 9]), 2.0);
        let targets = Tensor::from_slice(&[0_i64, 6, 3]);
        // The second target is a selected token.
        let tokens = Tensor::from_slice(&[8_i64, 1, 2, 6, 0, 5]).view([3, 2]);
        let (of_tokens, of_rest) = (random(&[3, 2]), random(&[3]));
        let leaf = logits.copy().set_requires_grad(true);
        let logprobs = (&leaf / temperature).log_softmax(-1, Kind::Float);
        // Loss: any function of the selected probabilities and of the rest.
        let selected = logprobs.gather(-1, &tokens, false);
        let mass = selected.exp().sum_dim_intlist([-1].as_slice(), false, Kind::Float);
        let rest = mass.neg() + 1.0;
        let loss =
            (&selected * &of_tokens).sum(Kind::Float) + (rest.log() * &of_rest).sum(Kind::Float);
        let expected = Tensor::run_backward(&[loss], &[&leaf], false, false).remove(0);

        let read = logits.gather(-1, &tokens, false);
        let distribution = Distribution::new(&logits.copy(), &targets, temperature).unwrap();
        let found = distribution.logprobs_of(&read, temperature);
        assert!(found.allclose(&selected, 1e-5, 1e-6, false));
        // By logit j: a_j − p_j Σ a − b p_j, and + b p_j ÷ rest where j is not selected.
        let sums = of_tokens.sum_dim_intlist([-1].as_slice(), false, Kind::Float) + &of_rest;
        let factor = (&of_rest / &rest - &sums).detach();
        let gradient = TokenGradient {
            logprobs_C: factor.neg(),
            entropy_C: None,
            selected: Some(SelectedGradient {
                logits_CK: (&of_tokens - selected.exp() * sums.unsqueeze(1)).detach(),
                target_C: &factor * distribution.logprobs_C.exp(),
                tokens_CK: tokens,
            }),
        };
        let found = distribution.logits_gradient(&targets, &gradient, temperature).unwrap();
        assert!(found.allclose(&expected, 1e-5, 1e-6, false), "{found}, {expected}");
    }
}
