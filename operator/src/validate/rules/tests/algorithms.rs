//! Rules of settings of grpo and ppo.

use serde_json::{Value, json};

use super::problems_with;

#[test]
fn a_group_of_one_sample_is_normalized_over_the_batch_or_not_at_all() {
    let with = |grpo: Value| problems_with(&json!({"algorithm": {"grpo": grpo}}));
    let group = |field: &str| {
        format!(
            "spec.algorithm.grpo.{field}: Group needs groupSize of at least 2: a group of one \
                sample is normalized by nothing but itself"
        )
    };
    let of_rewards = ["rewardNormalization.mean", "rewardNormalization.scaleLevel"].map(group);
    assert_eq!(with(json!({"groupSize": 1})), of_rewards);
    let none = json!({"mean": "None", "scale": "None"});
    assert_eq!(with(json!({"groupSize": 1, "rewardNormalization": none})), Vec::<String>::new());
    let divided = json!({"mean": "Batch", "scale": "Std"});
    assert_eq!(with(json!({"groupSize": 1, "rewardNormalization": divided})), of_rewards[1..]);
    let of_advantages =
        ["advantageNormalization.mean", "advantageNormalization.scaleLevel"].map(group);
    assert_eq!(
        with(json!({
            "groupSize": 1, "rewardNormalization": none, "advantageNormalization": {},
        })),
        of_advantages
    );
    let batch = json!({"mean": "Batch", "scale": "Std", "scaleLevel": "Batch"});
    let spec = json!({
        "algorithm": {"grpo": {"groupSize": 1, "rewardNormalization": batch}},
        "rollout": {"dynamicSampling": {}},
    });
    let dynamic = "spec.rollout.dynamicSampling: needs algorithm.grpo.groupSize of at least 2: the \
        rewards of one sample are equal";
    assert_eq!(problems_with(&spec), [dynamic]);
}

#[test]
fn ppo_trains_the_policy_after_the_warm_up_of_its_critic() {
    let steps = json!({"criticWarmupSteps": 5});
    let with = |ppo: Value, steps: u32| {
        problems_with(
            &json!({"algorithm": {"grpo": null, "ppo": ppo}, "training": {"steps": steps}}),
        )
    };
    assert_eq!(with(steps.clone(), 6), Vec::<String>::new());
    let warmup = "spec.algorithm.ppo.criticWarmupSteps: must be below training.steps = 5: the \
        policy would not be trained";
    assert_eq!(with(steps, 5), [warmup]);
    let adaptive =
        |coefficient: f64| json!({"klCoefficient": coefficient, "adaptiveKl": {"target": 0.1}});
    assert_eq!(with(adaptive(0.1), 5), Vec::<String>::new());
    let begins = "spec.algorithm.ppo.adaptiveKl: needs a klCoefficient above 0, with which it \
        begins";
    assert_eq!(with(adaptive(0.0), 5), [begins]);
    let head = json!({"valueHead": {}, "criticOptimizer": {"learningRate": 0.1}});
    let not_used = "spec.algorithm.ppo.criticOptimizer: is not used with valueHead, which has the \
        settings of spec.optimizer and valueHead.learningRate; remove it";
    assert_eq!(with(head, 5), [not_used]);
    assert_eq!(with(json!({"valueHead": {"learningRate": 0.1}}), 5), Vec::<String>::new());
    let others = json!({
        "rewardNormalization": {}, "overlongPenalty": {"tokens": 4096},
        "criticOptimizer": {"warmupSteps": 6, "epsilon": 0.0},
    });
    assert_eq!(
        with(others, 5),
        [
            "spec.algorithm.ppo.overlongPenalty.tokens: must not exceed rollout.maxNewTokens = \
                1024",
            "spec.algorithm.ppo.rewardNormalization.mean: Group needs groupSize of at least 2: a \
                group of one sample is normalized by nothing but itself",
            "spec.algorithm.ppo.rewardNormalization.scaleLevel: Group needs groupSize of at least \
                2: a group of one sample is normalized by nothing but itself",
            "spec.algorithm.ppo.criticOptimizer.warmupSteps: must not exceed training.steps = 5: \
                set spec.algorithm.ppo.criticOptimizer.warmupSteps=5 or less",
            "spec.algorithm.ppo.criticOptimizer.epsilon: must be above 0",
        ]
    );
}

#[test]
fn an_adaptive_lambda_is_one_function_of_the_length_in_place_of_the_constant() {
    let with = |ppo: Value| problems_with(&json!({"algorithm": {"grpo": null, "ppo": ppo}}));
    let length = json!({"length": {"alpha": 0.1}});
    let valid = json!({"adaptiveLambda": length, "criticLambda": 1.0});
    assert_eq!(with(valid), Vec::<String>::new());
    assert_eq!(with(json!({"gaeLambda": 0.9, "criticLambda": 0.5})), Vec::<String>::new());
    let both = json!({
        "gaeLambda": 0.9,
        "adaptiveLambda": {"length": {}, "relativePosition": {"retention": 0.5}},
    });
    assert_eq!(
        with(both),
        [
            "spec.algorithm.ppo.adaptiveLambda: set exactly one of length and relativePosition, \
                found length and relativePosition",
            "spec.algorithm.ppo.gaeLambda: is not used with adaptiveLambda; remove it",
        ]
    );
}

#[test]
fn a_limit_of_the_second_moment_needs_recomputed_log_probabilities() {
    let grpo = json!({"secondMomentLimit": 0.04, "proximalLogprobs": "Sampler"});
    let problem = "spec.algorithm.grpo.secondMomentLimit: needs proximalLogprobs Recompute: with \
        the log-probabilities of the sampler, every moment is 0";
    assert_eq!(problems_with(&json!({"algorithm": {"grpo": grpo}})), [problem]);
}

#[test]
fn bounds_of_ratios_are_not_those_of_divergences() {
    let with = |weight| problems_with(&json!({"algorithm": {"grpo": {"behaviorWeight": weight}}}));
    for metric in ["K1", "K2", "K3", "BinaryKL"] {
        let problem = format!(
            "spec.algorithm.grpo.behaviorWeight.upper: is missing; only metric Ratio has a \
             default, not {metric}"
        );
        assert_eq!(with(json!({"metric": metric, "lower": 0.1})), [problem]);
        assert!(with(json!({"metric": metric, "upper": 0.1})).is_empty());
    }
    assert!(with(json!({"metric": "Ratio"})).is_empty());
    assert_eq!(
        with(json!({"lower": 6.0})),
        ["spec.algorithm.grpo.behaviorWeight.lower: must not exceed upper = 5"]
    );
}

#[test]
fn a_behavior_weight_needs_recomputed_log_probabilities_and_bounds_in_order() {
    let weight = json!({"upper": 2.0, "lower": 3.0, "action": "Clamp", "metric": "K1"});
    let spec = json!({
        "algorithm": {
            "grpo": {
                "proximalLogprobs": "Sampler", "behaviorWeight": weight,
                "overlongPenalty": {"tokens": 2000, "factor": 1.0},
            },
        },
    });
    assert_eq!(
        problems_with(&spec),
        [
            "spec.algorithm.grpo.overlongPenalty.tokens: must not exceed rollout.maxNewTokens = \
                1024",
            "spec.algorithm.grpo.behaviorWeight: needs proximalLogprobs Recompute: with the \
                log-probabilities of the sampler, every weight is 1",
            "spec.algorithm.grpo.behaviorWeight.lower: must not exceed upper = 2",
            "spec.algorithm.grpo.behaviorWeight.metric: must be Ratio: action Clamp bounds the \
                weight itself",
        ]
    );
}
