//! Loss of tokens with the entropy H of the policy, which counts as much as the loss of the token:
//!
//! ```text
//!  loss = loss of the objective − c Σ weight · H         c = entropyCoefficient
//! ```

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use super::sums::Sums;
use crate::model::{TokenGradient, TokenLogprobs};
use crate::objective::{Deferred, Objective, TokenLoss, TokenStreams};

/// Derivatives with respect to log-probabilities and entropies of some tokens, and their sums.
pub(super) fn policy_loss(
    objective: &dyn Objective,
    policy: &TokenLogprobs,
    streams: &TokenStreams,
) -> (TokenGradient, Sums) {
    let TokenLoss { gradient_N, selected, mut loss, statistics } = objective.loss(policy, streams);
    let coefficient = objective.entropy_coefficient();
    let entropy_C = (coefficient > 0.0).then(|| &streams.weights_N * -coefficient);
    if let Some(entropy_C) = &entropy_C {
        loss = loss.plus(Deferred::sum(&(&policy.entropy_N * entropy_C)));
    }
    let entropy = Deferred::sum(&policy.entropy_N);
    let gradient = TokenGradient { logprobs_C: gradient_N, entropy_C, selected };
    (gradient, Sums { loss, entropy, statistics })
}
