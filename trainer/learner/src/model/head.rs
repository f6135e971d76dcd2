//! Heads of a model; logits and log-probabilities of the trained tokens in chunks, so that no
//! `[tokens, vocabulary]` matrix of a whole micro-batch exists.
//!
//! With p = softmax(logits ÷ temperature) and the loss's derivative g with respect to the target's
//! log-probability, the derivative with respect to the logits is
//! `g · (onehot(target) − p) ÷ temperature`.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::ops::Range;

use tch::{Kind, Tensor};

/// Maximum elements of a chunk's logits: 64 Mi, 256 MiB in fp32.
const CHUNK_ELEMENTS: i64 = 1 << 26;
/// Maximum tokens of a chunk.
const CHUNK_TOKENS: i64 = 1024;

/// Output layer of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Logits over the vocabulary.
    LanguageModel,
    /// One value per token, of a critic or reward model.
    Scalar,
}

/// Chunks of the rows `0..num_tokens`.
pub fn chunks(num_tokens: i64, vocab_size: i64) -> impl Iterator<Item = Range<i64>> {
    let rows = (CHUNK_ELEMENTS / vocab_size).clamp(1, CHUNK_TOKENS);
    (0..num_tokens).step_by(rows as usize).map(move |first| first..(first + rows).min(num_tokens))
}

/// Distribution over the vocabulary for the C tokens of a chunk.
pub struct Distribution {
    /// `[C]` log-probability of the target, fp32.
    pub logprobs_C: Tensor,
    /// `[C]` entropy in nats, fp32.
    pub entropy_C: Tensor,
    softmax_CV: Tensor,
}

impl Distribution {
    /// The distribution of `targets_C` given normed hidden states `[C, H]` and the head `[V, H]`.
    pub fn new(normed_CH: &Tensor, head_VH: &Tensor, targets_C: &Tensor, temperature: f64) -> Self {
        let mut logits_CV = normed_CH.matmul(&head_VH.tr()).to_kind(Kind::Float);
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
        Self { logprobs_C, entropy_C: entropy_C11.view([-1]), softmax_CV }
    }

    /// Derivative `[C, V]` with respect to the logits (before division by the temperature), given
    /// the loss's derivative `gradient_C` with respect to the log-probabilities.
    pub fn logits_gradient(
        self,
        targets_C: &Tensor,
        gradient_C: &Tensor,
        temperature: f64,
    ) -> Tensor {
        let scaled_C1 = (gradient_C / temperature).to_kind(Kind::Float).unsqueeze(1);
        let mut dlogits_CV = self.softmax_CV;
        let _ = dlogits_CV.g_mul_(&scaled_C1.neg());
        dlogits_CV.scatter_add_(-1, &targets_C.unsqueeze(1), &scaled_C1)
    }
}

#[cfg(test)]
mod tests {
    use super::{Distribution, chunks};
    use tch::{Device, Kind, Tensor};

    #[test]
    fn chunks_cover_every_token_once_and_bound_the_logits() {
        assert_eq!(chunks(2500, 1000).collect::<Vec<_>>(), [0..1024, 1024..2048, 2048..2500]);
        assert_eq!(chunks(700, 1 << 17).collect::<Vec<_>>(), [0..512, 512..700]);
        assert_eq!(chunks(0, 1000).count(), 0);
    }

    #[test]
    fn log_probability_entropy_and_derivative_match_autograd() {
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (normed, head, gradient) = (random(&[3, 4]), random(&[7, 4]), random(&[3]));
        let targets = Tensor::from_slice(&[0_i64, 6, 3]);
        let logits = normed.matmul(&head.tr()).set_requires_grad(true);
        let logprobs_CV = (&logits / 0.7).log_softmax(-1, Kind::Float);
        let expected = logprobs_CV.gather(-1, &targets.unsqueeze(1), false).squeeze_dim(-1);
        let entropy = -(logprobs_CV.exp() * &logprobs_CV).sum_dim_intlist(
            [-1].as_slice(),
            false,
            Kind::Float,
        );
        let dlogits = Tensor::run_backward(
            &[(&expected * &gradient).sum(Kind::Float)],
            &[&logits],
            false,
            false,
        )
        .remove(0);

        let distribution = Distribution::new(&normed, &head, &targets, 0.7);
        assert!(distribution.logprobs_C.allclose(&expected, 1e-5, 1e-5, false));
        assert!(distribution.entropy_C.allclose(&entropy, 1e-5, 1e-5, false));
        assert!(
            distribution
                .logits_gradient(&targets, &gradient, 0.7)
                .allclose(&dlogits, 1e-5, 1e-5, false)
        );
    }
}
