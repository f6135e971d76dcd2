//! Advantages and losses compared with AReaL's golden values.

use rljob_crds::algorithm::grpo::{
    BehaviorWeight, GrpoSpec, NormalizationScale, NormalizationSpec,
};
use rljob_learner::objective::behavior::weights;
use rljob_learner::objective::grpo::{LossInput, loss};
use rljob_learner::objective::normalization::normalize;
use tch::Tensor;

const REWARDS: [(f64, usize); 8] =
    [(1.0, 0), (0.0, 0), (0.0, 0), (1.0, 0), (1.0, 1), (1.0, 1), (0.0, 1), (0.0, 1)];

/// Rounding of the golden advantages, which have five digits.
pub const ADVANTAGE: f64 = 1e-5;
/// Rounding of the golden losses, which are fp32.
pub const LOSS: f64 = 1e-7;

/// Largest differences of group-normalized advantages, of leave-one-out advantages, of the plain
/// surrogate and of the decoupled loss with dual clip.
pub fn differences() -> [f64; 4] {
    let leave_one_out = NormalizationSpec {
        leave_one_out: true,
        scale: NormalizationScale::None,
        ..NormalizationSpec::default()
    };
    let decoupled = GrpoSpec {
        clip_high: 0.28,
        c_clip: Some(3.0),
        behavior_weight: Some(BehaviorWeight::default()),
        ..GrpoSpec::default()
    };
    [
        advantage(&NormalizationSpec::default(), 0.866_01),
        advantage(&leave_one_out, 0.666_67),
        surrogate(&GrpoSpec::default(), -9.93e-9),
        surrogate(&decoupled, 0.029_429_635),
    ]
}

fn advantage(spec: &NormalizationSpec, size: f64) -> f64 {
    let golden = REWARDS.map(|(reward, _)| if reward > 0.5 { size } else { -size });
    normalize(spec, &REWARDS, 2)
        .0
        .iter()
        .zip(golden)
        .map(|(actual, golden)| (actual - golden).abs())
        .fold(0.0, f64::max)
}

/// AReaL's case has a masked third token, which is omitted here.
fn surrogate(spec: &GrpoSpec, golden: f64) -> f64 {
    let [learner, proximal, sampler] =
        [[-1.0_f32, -2.0, -3.0], [-1.2, -1.5, -2.0], [-1.1, -1.9, -4.0]]
            .map(|values| Tensor::from_slice(&values));
    let sequences = Tensor::from_slice(&[0_i64, 0, 1]);
    let bounds = spec.behavior_weight.as_ref();
    let behavior = bounds.map(|spec| weights(spec, &proximal, &sampler, &sequences));
    let input = LossInput {
        policy_logprobs_N: &learner,
        proximal_logprobs_N: Some(&proximal),
        sampler_logprobs_N: &sampler,
        reference_logprobs_N: None,
        advantages_N: &Tensor::from_slice(&[1.0_f32, -1.0, -0.5]),
        weights_N: &Tensor::from_slice(&[1.0_f32 / 3.0; 3]),
        sequence_N: &sequences,
        behavior: behavior.as_ref(),
    };
    (loss(spec, &input).1.loss.value() - golden).abs()
}
