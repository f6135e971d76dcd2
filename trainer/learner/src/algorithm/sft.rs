//! Supervised fine-tuning: the cross entropy of the trained tokens, `−Σ logp ÷ trainable tokens of the minibatch over all ranks`.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

/// (derivative of the loss by each log-probability `[N]`, this part of the loss). `trainable_tokens` is at least 1.
pub fn loss(learner_logprobs_N: &Tensor, trainable_tokens: u64) -> (Tensor, f64) {
    let gradient_N = learner_logprobs_N.full_like(-1.0 / trainable_tokens as f64);
    (gradient_N, -learner_logprobs_N.sum(Kind::Double).double_value(&[]) / trainable_tokens as f64)
}

#[cfg(test)]
mod tests {
    use super::loss;
    use tch::Tensor;

    #[test]
    fn the_loss_is_the_sum_divided_by_the_tokens_of_all_ranks() {
        let (gradient, value) = loss(&Tensor::from_slice(&[-1.0_f32, -2.0]), 4);
        assert_eq!(Vec::<f32>::try_from(gradient).unwrap(), [-0.25, -0.25]);
        assert!((value - 0.75).abs() < 1e-9);
    }
}
