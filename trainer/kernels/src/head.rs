//! Log-probabilities and entropies of target tokens from logits, and the derivative with respect to
//! the logits.
//!
//! With p = softmax(logits ÷ temperature) and the loss's derivative g with respect to the target's
//! log-probability, the derivative with respect to the logits is
//! `g · (onehot(target) − p) ÷ temperature`.

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
    kept: Kept,
}

/// What the derivative needs.
enum Kept {
    /// `[C, V]` in fp32.
    Softmax(Tensor),
    /// Logits `[C, V]` in bfloat16, and the logarithms `[C]` of their sums of exponentials.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "made by the kernel"))]
    Logits(Tensor, Tensor),
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
            let kept = Kept::Logits(logits_CV.shallow_clone(), logsumexp_C);
            return Ok(Self { logprobs_C, entropy_C, kept });
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
        Self { logprobs_C, entropy_C: entropy_C11.view([-1]), kept: Kept::Softmax(softmax_CV) }
    }

    /// Derivative `[C, V]` with respect to the logits (before division by the temperature), given
    /// the loss's derivative `gradient_C` with respect to the log-probabilities.
    pub fn logits_gradient(
        self,
        targets_C: &Tensor,
        gradient_C: &Tensor,
        temperature: f64,
    ) -> Result<Tensor, KernelError> {
        match self.kept {
            Kept::Softmax(mut dlogits_CV) => {
                let scaled_C1 = (gradient_C / temperature).to_kind(Kind::Float).unsqueeze(1);
                let _ = dlogits_CV.g_mul_(&scaled_C1.neg());
                Ok(dlogits_CV.scatter_add_(-1, &targets_C.unsqueeze(1), &scaled_C1))
            }
            #[cfg(feature = "cuda")]
            Kept::Logits(logits_CV, logsumexp_C) => {
                let gradient_C = gradient_C.to_kind(Kind::Float).contiguous();
                crate::cuda::logits_gradient(
                    &logits_CV,
                    targets_C,
                    &gradient_C,
                    &logsumexp_C,
                    temperature,
                )?;
                Ok(logits_CV)
            }
            #[cfg(not(feature = "cuda"))]
            Kept::Logits(logits_CV, _) => Ok(logits_CV),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn log_probability_entropy_and_derivative_match_autograd() {
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (logits, gradient) = (random(&[3, 7]), random(&[3]));
        let targets = Tensor::from_slice(&[0_i64, 6, 3]);
        let leaf = logits.copy().set_requires_grad(true);
        let logprobs_CV = (&leaf / 0.7).log_softmax(-1, Kind::Float);
        let expected = logprobs_CV.gather(-1, &targets.unsqueeze(1), false).squeeze_dim(-1);
        let products = logprobs_CV.exp() * &logprobs_CV;
        let entropy = -products.sum_dim_intlist([-1].as_slice(), false, Kind::Float);
        let sum = (&expected * &gradient).sum(Kind::Float);
        let dlogits = Tensor::run_backward(&[sum], &[&leaf], false, false).remove(0);

        let distribution = Distribution::new(&logits, &targets, 0.7).unwrap();
        assert!(distribution.logprobs_C.allclose(&expected, 1e-5, 1e-5, false));
        assert!(distribution.entropy_C.allclose(&entropy, 1e-5, 1e-5, false));
        let found = distribution.logits_gradient(&targets, &gradient, 0.7).unwrap();
        assert!(found.allclose(&dlogits, 1e-5, 1e-5, false));
    }
}
