//! What a critic and a value head share: both learn the returns and warm up alone.

use rljob_protocol::metrics;
use serde_json::{Value, json};

use super::fixture::{small_model, spec, train, trainer, weights};
use crate::ranks::Ranks;
use crate::trainer::Trainer;

/// Asserts that training with these settings of `ppo` brings the values near the returns.
pub fn assert_returns_are_learned(ppo: &Value) {
    let folder = small_model();
    let spec = spec(&json!({ "ppo": ppo }), "Random", 1);
    let mut trainer = trainer(spec, folder.path(), Ranks::alone());
    let steps = train(&mut trainer, 1..=20, 1);
    let of = |name: &str, range: std::ops::Range<usize>| {
        steps[range].iter().map(|step| step.get(name).unwrap()).sum::<f64>()
    };
    // Rewards are 0 or 1 at random: the best value is 0.5, with half of the error of 0.
    let errors = [of(metrics::VALUE_LOSS, 0..4), of(metrics::VALUE_LOSS, 16..20)];
    assert!(errors[1] < 0.85 * errors[0], "{errors:?}");
    assert!(of(metrics::VALUE_MEAN, 16..20) / 4.0 > 0.2, "{steps:?}");
}

/// Asserts that two steps of warm-up with these settings of `ppo` change the bits of the critic and
/// none of the policy, and the third step those of the policy.
pub fn assert_only_critic_warms_up(ppo: &Value, critic: impl Fn(&mut Trainer) -> Vec<Vec<u32>>) {
    let folder = small_model();
    let spec = spec(&json!({ "ppo": ppo }), "Random", 2);
    let mut trainer = trainer(spec, folder.path(), Ranks::alone());
    let states = |trainer: &mut Trainer| (weights(trainer), critic(trainer));
    let before = states(&mut trainer);
    let steps = train(&mut trainer, 1..=2, 2);
    let warm = states(&mut trainer);
    assert_eq!(warm.0, before.0);
    assert_ne!(warm.1, before.1);
    let learns = [metrics::CRITIC_GRADIENT_NORM, metrics::ENTROPY, metrics::VALUE_LOSS];
    assert!(steps.iter().all(|step| {
        step.get(metrics::GRADIENT_NORM) == Some(0.0)
            && learns.iter().all(|name| step.get(name) > Some(0.0))
    }));
    train(&mut trainer, 3..=3, 2);
    assert_ne!(weights(&trainer), before.0);
}
