//! Training with `ppo`: warm-up of the critic, several passes, ranks, checkpoints.

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::checkpoint::{ObjectiveState, RunningMoments};
use rljob_protocol::metrics;
use rljob_storage::RunStore;
use serde_json::{Value, json};

use super::critic::{assert_only_critic_warms_up, assert_returns_are_learned};
use super::fixture::{assert_ranks_agree, small_model, spec, train, trainer, weights};
use super::lora::rejected;
use super::resume::{BEFORE, assert_equal_after_a_restart, checkpoint, restore_point};
use crate::ranks::Ranks;
use crate::startup::restored_trainer;
use crate::trainer::Trainer;

/// Settings that cover every option of the critic.
fn ppo() -> Value {
    json!({"ppo": {
        "discount": 0.99, "adaptiveLambda": {"relativePosition": {"retention": 0.5}},
        "criticLambda": 0.9, "epochs": 2, "valueClip": 0.05, "klCoefficient": 0.1,
        "adaptiveKl": {"target": 0.01, "horizon": 100}, "valueNormalization": {"decay": 0.5},
        "criticOptimizer": {"learningRate": 2e-3, "warmupSteps": 2},
    }})
}

/// Bits of this rank's shards of the critic.
fn critic(trainer: &mut Trainer) -> Vec<Vec<u32>> {
    let critic = trainer.models.trained_mut(ModelRole::Critic).unwrap();
    let bits = |tensor: &tch::Tensor| {
        Vec::<f32>::try_from(tensor).unwrap().into_iter().map(f32::to_bits).collect()
    };
    critic.parameters.shards().iter().map(|shard| bits(&shard.master)).collect()
}

#[test]
fn the_critic_begins_with_the_weights_of_the_policy_and_values_of_0() {
    let folder = small_model();
    let mut trainer = trainer(spec(&ppo(), "Random", 1), folder.path(), Ranks::alone());
    let (policy, critic) = (weights(&trainer), critic(&mut trainer));
    assert_eq!(critic[..3], policy[..3]);
    assert_eq!(critic[3][..32], policy[3][..32]);
    assert_eq!(critic[3][32..], [0; 32]);
    let first = train(&mut trainer, 1..=1, 1).remove(0);
    assert_eq!(first.get(metrics::VALUE_MEAN), Some(0.0));
    // Returns are advantages: nothing is explained.
    assert!(first.get(metrics::EXPLAINED_VARIANCE).unwrap().abs() < 1e-9, "{first:?}");
}

#[test]
fn a_checkpoint_without_a_critic_is_rejected_and_so_is_one_of_a_value_head() {
    let folder = small_model();
    for other in [json!({"grpo": {}}), json!({"ppo": {"valueHead": {}}})] {
        let run = tempfile::tempdir().unwrap();
        let mut first = trainer(spec(&other, "Random", 1), folder.path(), Ranks::alone());
        train(&mut first, 1..=BEFORE, 1);
        checkpoint(&first, &restore_point(run.path(), 0)).wait().unwrap();
        let message = rejected(spec(&ppo(), "Random", 1), folder.path(), run.path());
        let (found, expected) = message.split_once(", expected a critic model of ").unwrap();
        let has_critic = other.get("ppo").is_some();
        assert_eq!(found.contains("a critic model of "), has_critic, "{message}");
        assert!(expected.contains(" and a policy model of "), "{message}");
        let remedy = if has_critic { "; name a checkpoint" } else { "; it has no critic: name a" };
        assert!(expected.contains(remedy), "{message}");
    }
}

#[test]
fn the_critic_learns_the_returns() {
    assert_returns_are_learned(&json!({"epochs": 2, "criticOptimizer": {"learningRate": 3e-3}}));
}

#[test]
fn steps_of_warm_up_train_the_critic_only() {
    assert_only_critic_warms_up(&json!({"criticWarmupSteps": 2}), critic);
}

#[test]
fn the_kl_coefficient_follows_the_divergence_of_the_steps_that_update_the_policy() {
    let folder = small_model();
    let algorithm = json!({"ppo": {
        "klCoefficient": 0.1, "criticWarmupSteps": 2,
        "adaptiveKl": {"target": 1.0, "horizon": 1},
    }});
    let mut trainer = trainer(spec(&algorithm, "Random", 1), folder.path(), Ranks::alone());
    let steps = train(&mut trainer, 1..=5, 1);
    let coefficients: Vec<f64> =
        steps.iter().map(|step| step.get(metrics::KL_COEFFICIENT).unwrap()).collect();
    // The divergence is far below the target: − 20 % after each step but those of the warm-up.
    let expected = [0.1, 0.1, 0.1, 0.1 * 0.8, 0.1 * 0.8 * 0.8];
    assert_eq!(coefficients, expected, "{steps:?}");
}

#[test]
fn two_ranks_have_the_metrics_of_one_and_repeat_bit_for_bit() {
    let folder = small_model();
    for minibatches in [1, 2] {
        let run = |ranks| {
            let spec = spec(&ppo(), "Random", minibatches);
            let mut trainer = trainer(spec, folder.path(), ranks);
            let steps = train(&mut trainer, 1..=4, minibatches);
            (steps, (weights(&trainer), critic(&mut trainer)))
        };
        assert_ranks_agree(run);
    }
}

#[test]
fn a_restored_run_has_the_bits_of_an_uninterrupted_one() {
    let folder = small_model();
    let mut spec = spec(&ppo(), "Random", 2);
    spec.training.deterministic = true;
    let state = |trainer: &mut Trainer| {
        let ObjectiveState { kl_coefficient, returns } = trainer.objective.state();
        let RunningMoments { mean, square, weight } = returns.unwrap();
        let moments = [mean, square, weight].map(f64::to_bits);
        (critic(trainer), kl_coefficient.map(f64::to_bits), moments)
    };
    assert_equal_after_a_restart(&spec, folder.path(), 0, train, state);
}

#[test]
fn values_begin_near_returns_of_any_scale_with_normalization() {
    let folder = small_model();
    let third = |normalization: Value| {
        let shaping = json!({"scale": 100.0, "clip": 1000.0});
        let ppo = json!({"rewardShaping": shaping, "valueNormalization": normalization});
        let spec = spec(&json!({ "ppo": ppo }), "Random", 1);
        let mut trainer = trainer(spec, folder.path(), Ranks::alone());
        train(&mut trainer, 1..=3, 1).remove(2)
    };
    // Rewards are 0 or 100.
    let (raw, normalized) = (third(Value::Null), third(json!({})));
    assert!(raw.get(metrics::VALUE_MEAN) < Some(5.0), "{raw:?}");
    assert!(normalized.get(metrics::VALUE_MEAN) > Some(20.0), "{normalized:?}");
    assert!(raw.get(metrics::VALUE_LOSS) > Some(500.0), "{raw:?}");
    assert!(normalized.get(metrics::VALUE_LOSS) < Some(2.0), "{normalized:?}");
    assert_eq!(raw.get(metrics::RETURN_RUNNING_STD), None);
    assert!(normalized.get(metrics::RETURN_RUNNING_STD) > Some(10.0), "{normalized:?}");
}

#[test]
fn a_checkpoint_of_raw_values_is_refused_with_normalization() {
    let folder = small_model();
    let plain = spec(&json!({"ppo": {}}), "Random", 2);
    let mut before = trainer(plain, folder.path(), Ranks::alone());
    train(&mut before, 1..=2, 2);
    let restore = restore_point(folder.path(), 0);
    checkpoint(&before, &restore).wait().unwrap();
    let error = restored_trainer(
        spec(&json!({"ppo": {"valueNormalization": {}}}), "Random", 2),
        before.models.policy.model.clone(),
        Ranks::alone(),
        (restore.version, &RunStore::Folder(restore.path.clone())),
        folder.path(),
    )
    .unwrap_err();
    assert!(error.is_input());
    let begins = "the checkpoint has no statistics of returns, since its critic predicts returns";
    assert!(error.to_string().starts_with(begins), "{error}");
}
