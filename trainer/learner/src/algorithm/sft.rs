//! Supervised fine-tuning: the cross entropy of the trained tokens, `−Σ weight · logp`, with
//! weights of 1 ÷ trainable tokens of the minibatch over all ranks.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

/// (derivative of the loss by each log-probability `[N]`, this part of the loss).
pub fn loss(learner_logprobs_N: &Tensor, weights_N: &Tensor) -> (Tensor, f64) {
    (-weights_N, -(learner_logprobs_N * weights_N).sum(Kind::Double).double_value(&[]))
}

#[cfg(test)]
mod tests {
    use super::loss;
    use tch::Tensor;

    #[test]
    fn the_loss_is_the_weighted_sum() {
        let (gradient, value) =
            loss(&Tensor::from_slice(&[-1.0_f32, -2.0]), &Tensor::from_slice(&[0.25_f32, 0.25]));
        assert_eq!(Vec::<f32>::try_from(gradient).unwrap(), [-0.25, -0.25]);
        assert!((value - 0.75).abs() < 1e-9);
    }
}
