//! Settings of the policy's loss and of the critic without effect, or with one that is rarely
//! meant.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::grpo::{
    GrpoSpec, KlEstimator, KlTerm, NormalizationMean, NormalizationScale, NormalizationSpec,
    ProximalLogprobs, RatioLevel, Surrogate,
};
use rljob_crds::algorithm::ppo::{AdvantageNormalization, GaeTimestep, PpoSpec};
use rljob_crds::algorithm::{Algorithm, RolloutSpec};
use rljob_crds::workflow::WorkflowSpec;

use super::optimizer::check_optimizer;
use crate::validate::Problem;

/// Bounds from here on are those of single tokens.
const CLIP_OF_TOKENS: f64 = 0.05;

/// Settings of the policy's loss and of the critic.
pub(super) fn check_policy(
    spec: &RLJobSpec,
    algorithm: Algorithm<'_>,
    warnings: &mut Vec<Problem>,
) {
    let Some(policy) = algorithm.policy() else { return };
    let updates = spec.training.minibatches.saturating_mul(algorithm.epochs());
    let path = format!("spec.algorithm.{}", algorithm.name());
    check_ratio((&path, updates), &policy, warnings);
    check_kl(&path, &policy, warnings);
    let of_rewards = format!("{path}.rewardNormalization");
    let default = NormalizationSpec::default();
    check_normalization(&of_rewards, &policy.reward_normalization, &default, warnings);
    if let Some(normalization) = &policy.advantage_normalization {
        let default = match algorithm {
            Algorithm::Ppo(_) => AdvantageNormalization::default().into(),
            _ => default,
        };
        let of_advantages = format!("{path}.advantageNormalization");
        check_normalization(&of_advantages, normalization, &default, warnings);
    }
    let Algorithm::Ppo(ppo) = algorithm else { return };
    if ppo.adaptive_kl.as_ref().is_some_and(|adaptive| adaptive.target > 1.0) {
        let message = "is the mean divergence of a token in nats, not of a completion: a policy \
            that has 1 has lost its reference. For example 0.02";
        warnings.push(Problem::new(format!("{path}.adaptiveKl.target"), message));
    }
    let default = PpoSpec::default().value_clip;
    if updates <= 1 && ppo.value_clip.total_cmp(&default).is_ne() {
        let message = "has no effect: with training.minibatches 1 and epochs 1, values are those \
            of the critic before the step";
        warnings.push(Problem::new(format!("{path}.valueClip"), message));
    }
    check_timesteps(&path, ppo, &spec.rollout, warnings);
    if let Some(optimizer) = &ppo.critic_optimizer {
        check_optimizer(&format!("{path}.criticOptimizer"), optimizer, spec, warnings);
    }
    if ppo.value_head.as_ref().and_then(|head| head.learning_rate).is_some_and(|rate| rate <= 0.0) {
        let message = "is 0: the head keeps its zeros, so that all values are 0";
        warnings.push(Problem::new(format!("{path}.valueHead.learningRate"), message));
    }
}

/// Settings of the estimation of advantages.
fn check_timesteps(path: &str, ppo: &PpoSpec, rollout: &RolloutSpec, warnings: &mut Vec<Problem>) {
    let turns = rollout.workflow.as_ref().map_or(Some(1), WorkflowSpec::max_turns);
    let is_turn = ppo.gae_timestep == GaeTimestep::Turn;
    if is_turn && rollout.workflow.is_none() {
        let message = "Turn without rollout.workflow: a sample is one turn, whose advantage is its \
            reward minus one value";
        warnings.push(Problem::new(format!("{path}.gaeTimestep"), message));
    }
    let most = if is_turn { turns } else { Some(rollout.max_trained_tokens()) };
    let length = ppo.adaptive_lambda.as_ref().and_then(|adaptive| adaptive.length.as_ref());
    if let (Some(length), Some(most)) = (length, most)
        && length.alpha * f64::from(most) <= 1.0
    {
        let message =
            format!("makes every λ 0: alpha · L is at most 1 for samples of up to {most} steps");
        warnings.push(Problem::new(format!("{path}.adaptiveLambda.length.alpha"), message));
    }
}

/// Settings of the importance ratio, which is 1 with one update and recomputed log-probabilities,
/// and which not every surrogate uses.
fn check_ratio((path, updates): (&str, u32), grpo: &GrpoSpec, warnings: &mut Vec<Problem>) {
    let is_on_policy = updates <= 1 && grpo.proximal_logprobs == ProximalLogprobs::Recompute;
    let (default, surrogate) = (GrpoSpec::default(), grpo.surrogate);
    let differs = |own: f64, other: f64| own.total_cmp(&other).is_ne();
    let clips = matches!(surrogate, Surrogate::Clip | Surrogate::CISPO);
    let needs_ratio = matches!(surrogate, Surrogate::CISPO | Surrogate::SAPO);
    // Field, whether it is set, and whether the surrogate uses it.
    let fields = [
        ("clipLow", differs(grpo.clip_low, default.clip_low), clips),
        ("clipHigh", differs(grpo.clip_high, default.clip_high), clips),
        ("cClip", grpo.c_clip.is_some(), surrogate == Surrogate::Clip),
        ("sapo", grpo.sapo.is_some(), surrogate == Surrogate::SAPO),
        ("ratioLevel", grpo.ratio_level != RatioLevel::Token, surrogate != Surrogate::GPG),
        ("surrogate", needs_ratio, true),
    ];
    for (field, _, is_used) in fields.iter().filter(|(_, is_set, _)| *is_set) {
        let message = if !is_used {
            format!("has no effect: surrogate {surrogate:?} does not use it")
        } else if is_on_policy {
            "has no effect: with one update per step and proximalLogprobs Recompute, the \
                importance ratio is 1"
                .to_owned()
        } else {
            continue;
        };
        warnings.push(Problem::new(format!("{path}.{field}"), message));
    }
    if surrogate == Surrogate::GPG && updates > 1 {
        let message = format!(
            "GPG has no importance ratio: of the {updates} updates of a step, all but the first \
             learn from samples of an older policy as if they were its own. Set \
             training.minibatches and epochs to 1, or another surrogate"
        );
        warnings.push(Problem::new(format!("{path}.surrogate"), message));
    }
    if surrogate == Surrogate::Clip && !is_on_policy && grpo.ratio_level != RatioLevel::Token {
        check_clips_of_completions(path, grpo, warnings);
    }
    if surrogate == Surrogate::Clip && !is_on_policy && grpo.clip_high >= 1.0 {
        let message = format!(
            "clips the ratio at 1 + clipHigh = {}: it is the distance from 1, for example 0.28",
            1.0 + grpo.clip_high
        );
        warnings.push(Problem::new(format!("{path}.clipHigh"), message));
    }
}

/// Bounds of single tokens for the ratio of a completion, a geometric mean, which is nearer to 1.
fn check_clips_of_completions(path: &str, grpo: &GrpoSpec, warnings: &mut Vec<Problem>) {
    for (field, clip, of_paper) in
        [("clipLow", grpo.clip_low, "0.0003"), ("clipHigh", grpo.clip_high, "0.0004")]
    {
        if clip >= CLIP_OF_TOKENS {
            let message = format!(
                "is {clip}, which the ratio of a completion hardly reaches (ratioLevel {:?}): it \
                 is the geometric mean of those of its tokens. GSPO's paper has {of_paper}",
                grpo.ratio_level
            );
            warnings.push(Problem::new(format!("{path}.{field}"), message));
        }
    }
}

fn check_kl(path: &str, grpo: &GrpoSpec, warnings: &mut Vec<Problem>) {
    let is_loss = grpo.kl_coefficient > 0.0 && grpo.kl_term == KlTerm::Loss;
    if is_loss && grpo.kl_estimator == KlEstimator::K1 {
        let message = "K1 has no effect on average as a loss: the expectation of its gradient is \
            0. Set K2 or K3, or klTerm Reward";
        warnings.push(Problem::new(format!("{path}.klEstimator"), message));
    }
    let default = GrpoSpec::default();
    let fields = [
        ("klEstimator", grpo.kl_estimator != default.kl_estimator),
        ("klTerm", grpo.kl_term != default.kl_term),
    ];
    for (field, is_set) in fields {
        if is_set && grpo.kl_coefficient <= 0.0 {
            let message = "has no effect: klCoefficient is 0";
            warnings.push(Problem::new(format!("{path}.{field}"), message));
        }
    }
}

/// Settings of a mean that is not subtracted and of a deviation that does not divide.
fn check_normalization(
    path: &str,
    spec: &NormalizationSpec,
    default: &NormalizationSpec,
    warnings: &mut Vec<Problem>,
) {
    let (has_mean, has_scale) =
        (spec.mean != NormalizationMean::None, spec.scale != NormalizationScale::None);
    let fields = [
        ("leaveOneOut", spec.leave_one_out && !has_mean, "mean"),
        ("scaleLevel", spec.scale_level != default.scale_level && !has_scale, "scale"),
        ("unbiased", spec.unbiased != default.unbiased && !has_scale, "scale"),
        ("epsilon", spec.epsilon.to_bits() != default.epsilon.to_bits() && !has_scale, "scale"),
    ];
    for (name, _, of) in fields.into_iter().filter(|(_, is_unused, _)| *is_unused) {
        let message = format!("has no effect with {of}: None");
        warnings.push(Problem::new(format!("{path}.{name}"), message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::warnings;
    use crate::validate::test_support::minimal;

    fn found(algorithm: &Value, minibatches: u32) -> Vec<String> {
        let mut spec = minimal().spec;
        spec.algorithm = serde_json::from_value(algorithm.clone()).unwrap();
        spec.training.minibatches = minibatches;
        warnings(&spec).into_iter().map(|warning| warning.path).collect()
    }

    #[test]
    fn settings_without_effect_are_named() {
        let dapo = json!({"grpo": {"clipHigh": 0.28, "cClip": 3.0}});
        let clips = ["spec.algorithm.grpo.clipHigh", "spec.algorithm.grpo.cClip"];
        assert_eq!(found(&dapo, 1), clips);
        assert_eq!(found(&dapo, 4), Vec::<String>::new());
        let sampler = json!({"grpo": {"clipHigh": 0.28, "proximalLogprobs": "Sampler"}});
        assert_eq!(found(&sampler, 1), Vec::<String>::new());
        let gspo = json!({"grpo": {"ratioLevel": "Sequence", "surrogate": "SAPO", "cClip": 3.0}});
        assert_eq!(
            found(&gspo, 1),
            ["cClip", "ratioLevel", "surrogate"]
                .map(|field| format!("spec.algorithm.grpo.{field}"))
        );
        assert_eq!(found(&gspo, 4), ["spec.algorithm.grpo.cClip"]);
        let gpg = json!({"grpo": {"surrogate": "GPG", "clipHigh": 0.3, "sapo": {}}});
        assert_eq!(found(&gpg, 1), ["spec.algorithm.grpo.clipHigh", "spec.algorithm.grpo.sapo"]);
        let plain = json!({"mean": "None", "scale": "None"});
        let unused = json!({"mean": "None", "leaveOneOut": true, "scale": "None", "epsilon": 0.1});
        let grpo = json!({"rewardNormalization": plain, "advantageNormalization": unused});
        assert_eq!(
            found(&json!({"grpo": grpo}), 1),
            ["leaveOneOut", "epsilon"]
                .map(|field| format!("spec.algorithm.grpo.advantageNormalization.{field}"))
        );
        let kl = json!({"grpo": {"klTerm": "Loss"}});
        assert_eq!(found(&kl, 1), ["spec.algorithm.grpo.klTerm"]);
    }

    #[test]
    fn settings_whose_effect_is_rarely_meant_are_named() {
        let kl = |term: &str, estimator: &str| {
            json!({"grpo": {
                "klCoefficient": 0.01, "klTerm": term, "klEstimator": estimator,
            }})
        };
        assert_eq!(found(&kl("Loss", "K1"), 1), ["spec.algorithm.grpo.klEstimator"]);
        for (term, estimator) in [("Loss", "K2"), ("Loss", "K3"), ("Reward", "K1")] {
            assert_eq!(found(&kl(term, estimator), 1), Vec::<String>::new(), "{term} {estimator}");
        }
        let clip = |surrogate: &str| json!({"grpo": {"surrogate": surrogate, "clipHigh": 1.28}});
        assert_eq!(found(&clip("Clip"), 4), ["spec.algorithm.grpo.clipHigh"]);
        assert_eq!(found(&clip("CISPO"), 4), Vec::<String>::new());
        let gspo = |low: f64, high: f64| {
            let level = "Sequence";
            found(&json!({"grpo": {"ratioLevel": level, "clipLow": low, "clipHigh": high}}), 4)
        };
        assert_eq!(gspo(3e-4, 4e-4), Vec::<String>::new());
        assert_eq!(gspo(3e-4, 0.28), ["spec.algorithm.grpo.clipHigh"]);
        let clips = ["spec.algorithm.grpo.clipLow", "spec.algorithm.grpo.clipHigh"];
        assert_eq!(gspo(0.2, 0.2), clips);
        let gpg = json!({"grpo": {"surrogate": "GPG"}});
        assert_eq!(found(&gpg, 2), ["spec.algorithm.grpo.surrogate"]);
        assert_eq!(found(&gpg, 1), Vec::<String>::new());
        let adaptive =
            |target: f64| json!({"ppo": {"klCoefficient": 0.05, "adaptiveKl": {"target": target}}});
        assert_eq!(found(&adaptive(0.02), 1), Vec::<String>::new());
        assert_eq!(found(&adaptive(6.0), 1), ["spec.algorithm.ppo.adaptiveKl.target"]);
        let head = |rate: f64| json!({"ppo": {"valueHead": {"learningRate": rate}}});
        assert_eq!(found(&head(0.0), 1), ["spec.algorithm.ppo.valueHead.learningRate"]);
        assert_eq!(found(&head(0.01), 1), Vec::<String>::new());
    }

    #[test]
    fn settings_of_ppo_without_effect_are_named() {
        let ppo = |fields: Value| json!({ "ppo": fields });
        let unnormalized = json!({"advantageNormalization": {"mean": "None", "scale": "None"}});
        for valid in [json!({}), unnormalized] {
            assert_eq!(found(&ppo(valid), 1), Vec::<String>::new());
        }
        let clips = json!({"valueClip": 0.2, "clipHigh": 0.3});
        assert_eq!(
            found(&ppo(clips), 1),
            ["spec.algorithm.ppo.clipHigh", "spec.algorithm.ppo.valueClip"]
        );
        let passes = json!({"valueClip": 0.2, "clipHigh": 0.3, "epochs": 2});
        assert_eq!(found(&ppo(passes), 1), Vec::<String>::new());
        let length = |alpha: f64| ppo(json!({"adaptiveLambda": {"length": {"alpha": alpha}}}));
        assert_eq!(found(&length(0.01), 1), Vec::<String>::new());
        let alpha = "spec.algorithm.ppo.adaptiveLambda.length.alpha";
        assert_eq!(found(&length(0.000_9), 1), [alpha]);
        let turns = json!({"gaeTimestep": "Turn", "adaptiveLambda": {"length": {}}});
        assert_eq!(found(&ppo(turns), 1), ["spec.algorithm.ppo.gaeTimestep", alpha]);
        let critic = json!({"klTerm": "Loss", "criticOptimizer": {"minimumLearningRate": 0.1}});
        assert_eq!(
            found(&ppo(critic), 1),
            ["spec.algorithm.ppo.klTerm", "spec.algorithm.ppo.criticOptimizer.minimumLearningRate"]
        );
    }
}
