//! Log-probabilities and entropies of target tokens from logits, and the derivative with respect to
//! the logits.
//!
//! With p = softmax(logits ÷ temperature), its entropy H, and the loss's derivatives g with respect
//! to the target's log-probability and h with respect to H, the derivative with respect to the
//! logits is `(g · (onehot(target) − p) − h · p · (log p + H)) ÷ temperature`.

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

/// Derivatives of a loss with respect to the C tokens of a chunk.
#[derive(Debug)]
pub struct TokenGradient {
    /// `[C]` with respect to the log-probability of the target.
    pub logprobs_C: Tensor,
    /// `[C]` with respect to the entropy, if the loss depends on it.
    pub entropy_C: Option<Tensor>,
}

impl From<Tensor> for TokenGradient {
    /// The derivative of a loss that does not depend on the entropy.
    fn from(logprobs_C: Tensor) -> Self {
        Self { logprobs_C, entropy_C: None }
    }
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
    /// the loss's derivatives.
    pub fn logits_gradient(
        self,
        targets_C: &Tensor,
        gradient: &TokenGradient,
        temperature: f64,
    ) -> Result<Tensor, KernelError> {
        let scaled = |of_C: &Tensor| (of_C / temperature).to_kind(Kind::Float).unsqueeze(1);
        match self.kept {
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
                Ok(dlogits_CV.scatter_add_(-1, &targets_C.unsqueeze(1), &scaled_C1))
            }
            #[cfg(feature = "cuda")]
            Kept::Logits(logits_CV, logsumexp_C) => {
                let gradient_C = gradient.logprobs_C.to_kind(Kind::Float).contiguous();
                let of_entropy = gradient.entropy_C.as_ref();
                let of_entropy_C = of_entropy.map(|own| own.to_kind(Kind::Float).contiguous());
                crate::cuda::logits_gradient(
                    &logits_CV,
                    targets_C,
                    [&gradient_C, &logsumexp_C],
                    of_entropy_C.as_ref().map(|own| [own, &self.entropy_C]),
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
    fn log_probability_entropy_and_derivatives_match_autograd() {
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let logits = random(&[3, 7]);
        // Its softmax is 0, and p log p with it.
        let _ = logits.get(1).get(2).fill_(-1e30);
        let targets = Tensor::from_slice(&[0_i64, 6, 3]);
        for entropy_C in [None, Some(random(&[3]))] {
            let gradient = TokenGradient { logprobs_C: random(&[3]), entropy_C };
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
}
