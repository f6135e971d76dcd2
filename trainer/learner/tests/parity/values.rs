//! PPO with a value head, in the comparison with autograd.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::algorithm::ppo::{PpoSpec, ValueHead as HeadSpec};
use rljob_learner::model::{Chunk, Head, ValueHead, WholeParameters};
use rljob_learner::objective::ppo::Ppo;
use rljob_learner::objective::{Objective, TokenStreams};
use tch::{Device, Kind, Tensor};

use super::{ADVANTAGES, CLIP, Case, Compared, Comparison, TEMPERATURE, pairs};

/// The clipped losses of the policy and of values, with bounds that some tokens are beyond.
fn ppo() -> Ppo {
    let spec = PpoSpec {
        clip_low: CLIP[0],
        clip_high: CLIP[1],
        value_clip: 0.2,
        value_head: Some(HeadSpec { loss_weight: 0.3, learning_rate: None }),
        ..PpoSpec::default()
    };
    Ppo::new(&spec, &RolloutSpec::default())
}

/// Compares loss and gradients of the policy and of its value head.
pub fn compare_values<P: Compared>(comparison: &mut Comparison<P>, case: &Case) {
    let Comparison { model, parameters, packed, .. } = comparison;
    let value_head = model.clone().with_head(Head::Value);
    let score =
        (Tensor::arange(model.config().hidden_size, (Kind::Float, Device::Cpu)) * 0.61).sin();
    let mut head = WholeParameters::new(value_head.layout(), vec![score], Kind::Float);
    let (before, values) =
        model.logprobs_and_values(parameters, &mut head, packed, TEMPERATURE).unwrap();
    let shift_N = Tensor::from_slice(&case.shift);
    let advantages_N = Tensor::from_slice(&ADVANTAGES).index_select(0, packed.sequence_N());
    let streams = TokenStreams {
        sampler_logprobs_N: before.logprobs_N.shallow_clone(),
        weights_N: advantages_N.full_like(1.0 / packed.num_trained() as f64),
        proximal_logprobs_N: Some(&before.logprobs_N - &shift_N),
        values_N: Some(values.values_N - shift_N),
        returns_N: Some(advantages_N.shallow_clone()),
        advantages_N,
        ..pairs::streams(packed, None)
    };
    let (objective, mut policy_loss, mut value_loss) = (ppo(), 0.0, 0.0);
    let mut of_chunk = |chunk: &Chunk| {
        let found = objective.loss(&chunk.tokens, &streams.narrow(&chunk.range));
        policy_loss += found.loss.value();
        found.gradient_N.into()
    };
    let mut of_values = |values_N: &Tensor| {
        let found = objective.value_loss(values_N, &streams);
        value_loss += found.loss.value();
        found.gradient_N
    };
    parameters.zero_gradients();
    let with_head = Some(ValueHead { parameters: &mut head, loss: &mut of_values });
    model.forward_backward(parameters, with_head, packed, TEMPERATURE, &mut of_chunk).unwrap();
    let gradients = parameters.named_gradients(model);
    comparison.compare("ppo.loss", &Tensor::from(policy_loss + value_loss));
    for (tensor, gradient) in gradients {
        comparison.compare(&format!("ppo.{tensor}"), &gradient);
    }
    comparison.compare("ppo.score.weight", &head.gradients()[0]);
}
