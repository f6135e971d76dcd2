//! Settings that have no effect in combination with others. Such a job can run.

use kube::ResourceExt;
use rljob_crds::algorithm::{Algorithm, OptimizerSpec, RolloutSpec, Schedule, Sharding};
use rljob_crds::gpus::Device;
use rljob_crds::grpo::{
    GrpoSpec, NormalizationMean, NormalizationScale, NormalizationSpec, ProximalLogprobs,
    RatioLevel, Surrogate,
};
use rljob_crds::job::{CheckpointSpec, WeightSyncSpec};
use rljob_crds::names::LABEL_QUEUE;
use rljob_crds::ppo::PpoSpec;
use rljob_crds::roles::TrainerSpec;
use rljob_crds::rollout::StaleSamples;
use rljob_crds::{RLJob, RLJobSpec};

use super::{Policy, Problem, rules};
use inputs::{check_fields, check_mounts};
use running::check_running;

mod inputs;
mod running;

/// Fields of `spec.rollout` that evaluations use.
const EVALUATION_FIELDS: [&str; 6] =
    ["maxNewTokens", "minNewTokens", "stop", "stopTokenIds", "temperature", "workflow"];

/// Every setting that is set and has no effect, with the reason.
pub fn warnings(spec: &RLJobSpec) -> Vec<Problem> {
    let mut warnings = Vec::new();
    check_fields(spec, &mut warnings);
    if let Some(algorithm) = spec.algorithm.resolve() {
        check_policy(spec, algorithm, &mut warnings);
    }
    if spec.algorithm.has_rollouts() {
        if spec.rollout.stale_samples != StaleSamples::default() && spec.rollout.max_staleness == 0
        {
            let message = "has no effect: with maxStaleness 0 no sample is stale";
            warnings.push(Problem::new("spec.rollout.staleSamples", message));
        }
        check_running(spec, &mut warnings);
    } else if let Some(algorithm) = spec.algorithm.resolve() {
        check_unsampled(spec, algorithm, &mut warnings);
    }
    if spec.training.sharding == Some(Sharding::Gradients) && spec.trainer.world_size() == 1 {
        let message = "has no effect: one learner has all weights and gradients";
        warnings.push(Problem::new("spec.training.sharding", message));
    }
    let every = spec.checkpoint.export_every_steps;
    if every.is_some_and(|every| every >= spec.training.steps) {
        let message = format!(
            "has no effect: training.steps is {}, and the last step is exported to `export`",
            spec.training.steps
        );
        warnings.push(Problem::new("spec.checkpoint.exportEverySteps", message));
    }
    check_optimizer("spec.optimizer", &spec.optimizer, spec, &mut warnings);
    if !spec.algorithm.has_learners() {
        check_untrained(spec, &mut warnings);
    }
    warnings
}

/// Settings of training, in a job without it.
fn check_untrained(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let default = OptimizerSpec::default();
    for (path, is_set) in [
        ("spec.trainer", spec.trainer != TrainerSpec::default()),
        ("spec.optimizer", spec.optimizer != default),
        ("spec.checkpoint", spec.checkpoint != CheckpointSpec::default()),
        ("spec.weightSync", spec.weight_sync != WeightSyncSpec::default()),
    ] {
        if is_set {
            let message = "has no effect: an evaluation trains nothing";
            warnings.push(Problem::new(path, message));
        }
    }
}

/// What keeps the job from running on a cluster whose operator has default settings. The job is
/// valid for a local run.
pub fn cluster_warnings(job: &RLJob) -> Vec<Problem> {
    let spec = &job.spec;
    let mut warnings = rules::problems(job, Policy::of_operator(false));
    check_mounts(spec, &mut warnings);
    if spec.trainer.gpus() > 0 && spec.trainer.image.is_none() {
        let message = "is not set: the operator's default image has no CUDA, unless it was built \
            with Containerfile.cuda";
        warnings.push(Problem::new("spec.trainer.image", message));
    }
    if job.labels().contains_key(LABEL_QUEUE) {
        let message = "has an effect only if the operator runs with --kueue, kueue.enabled of its \
            chart: else the job starts without quota";
        let path = format!("metadata.labels[{LABEL_QUEUE}]");
        warnings.push(Problem::new(path, message));
    }
    if Device::of(&spec.inference.resources) == Device::Other && spec.inference.image.is_none() {
        let message = "is not set: the default image of SGLang is for NVIDIA GPUs";
        warnings.push(Problem::new("spec.inference.image", message));
    }
    warnings
}

/// Settings of sampling, in a job that trains on completions of its data.
fn check_unsampled(spec: &RLJobSpec, algorithm: Algorithm<'_>, warnings: &mut Vec<Problem>) {
    let suites = spec.dataset.suites().into_iter().map(|suite| suite.data);
    let sampled: Vec<_> = suites.filter(|data| data.answer.is_some()).collect();
    let samples = !sampled.is_empty();
    let name = algorithm.name();
    let reason = if samples {
        format!("has no effect: {name} samples for the evaluation only")
    } else {
        format!("has no effect: {name} without dataset.evaluation.answer samples nothing")
    };
    let mut warn = |path: String| warnings.push(Problem::new(path, reason.clone()));
    let (own, default) =
        (serde_json::to_value(&spec.rollout), serde_json::to_value(RolloutSpec::default()));
    let (own, default) = (own.unwrap_or_default(), default.unwrap_or_default());
    for (field, value) in own.as_object().into_iter().flatten() {
        let replaced = sampled.iter().all(|data| match field.as_str() {
            "maxNewTokens" => data.max_new_tokens.is_some(),
            "temperature" => data.temperature.is_some(),
            _ => false,
        });
        let is_used = samples && EVALUATION_FIELDS.contains(&field.as_str()) && !replaced;
        if default.get(field) != Some(value) && !is_used {
            warn(format!("spec.rollout.{field}"));
        }
    }
    if spec.weight_sync.every_steps != WeightSyncSpec::default().every_steps {
        warn("spec.weightSync.everySteps".to_owned());
    }
    if spec.weight_sync.running_completions.is_some() {
        warn("spec.weightSync.runningCompletions".to_owned());
    }
    if samples {
        return;
    }
    if spec.weight_sync.method.is_some() {
        warn("spec.weightSync.method".to_owned());
    }
    if !spec.rewards.is_empty() {
        warn("spec.rewards".to_owned());
    }
    if spec.inference.replicas > 0 {
        let message = format!("{reason}: set it to 0");
        warnings.push(Problem::new("spec.inference.replicas", message));
    }
}

/// Settings of the policy's loss and of the critic.
fn check_policy(spec: &RLJobSpec, algorithm: Algorithm<'_>, warnings: &mut Vec<Problem>) {
    let Some(policy) = algorithm.policy() else { return };
    let updates = match algorithm {
        Algorithm::Ppo(ppo) => spec.training.minibatches.saturating_mul(ppo.epochs),
        _ => spec.training.minibatches,
    };
    let path = format!("spec.algorithm.{}", algorithm.name());
    check_ratio((&path, updates), &policy, warnings);
    check_kl(&path, &policy, warnings);
    let of_rewards = format!("{path}.rewardNormalization");
    check_normalization(&of_rewards, &policy.reward_normalization, warnings);
    if let Some(normalization) = &policy.advantage_normalization {
        check_normalization(&format!("{path}.advantageNormalization"), normalization, warnings);
    }
    let Algorithm::Ppo(ppo) = algorithm else { return };
    let default = PpoSpec::default().value_clip;
    if updates <= 1 && ppo.value_clip.total_cmp(&default).is_ne() {
        let message = "has no effect: with training.minibatches 1 and epochs 1, values are those \
            of the critic before the step";
        warnings.push(Problem::new(format!("{path}.valueClip"), message));
    }
    if let Some(optimizer) = &ppo.critic_optimizer {
        check_optimizer(&format!("{path}.criticOptimizer"), optimizer, spec, warnings);
    }
}

fn check_optimizer(
    path: &str,
    optimizer: &OptimizerSpec,
    spec: &RLJobSpec,
    warnings: &mut Vec<Problem>,
) {
    if optimizer.offload && spec.trainer.gpus() == 0 {
        let message = "has no effect: learners without GPUs have all states in memory of the host";
        warnings.push(Problem::new(format!("{path}.offload"), message));
    }
    if *optimizer != OptimizerSpec::default() && optimizer.learning_rate <= 0.0 {
        let message = "is 0: training changes no weights";
        warnings.push(Problem::new(format!("{path}.learningRate"), message));
    }
    if optimizer.schedule == Schedule::Constant && optimizer.minimum_learning_rate > 0.0 {
        let message = "has no effect: schedule Constant does not decay";
        warnings.push(Problem::new(format!("{path}.minimumLearningRate"), message));
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
}

fn check_kl(path: &str, grpo: &GrpoSpec, warnings: &mut Vec<Problem>) {
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
fn check_normalization(path: &str, spec: &NormalizationSpec, warnings: &mut Vec<Problem>) {
    let default = NormalizationSpec::default();
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
    use rljob_crds::algorithm::Sharding;
    use rljob_crds::roles::TrainerSpec;
    use serde_json::{Value, json};

    use super::warnings;
    use crate::validate::test_support::{merge, minimal};

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
        assert_eq!(found(&gpg, 4), ["spec.algorithm.grpo.clipHigh", "spec.algorithm.grpo.sapo"]);
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
    fn settings_of_ppo_without_effect_are_named() {
        let ppo = |fields: Value| json!({ "ppo": fields });
        assert_eq!(found(&ppo(json!({})), 1), Vec::<String>::new());
        let clips = json!({"valueClip": 0.2, "clipHigh": 0.3});
        assert_eq!(
            found(&ppo(clips), 1),
            ["spec.algorithm.ppo.clipHigh", "spec.algorithm.ppo.valueClip"]
        );
        let passes = json!({"valueClip": 0.2, "clipHigh": 0.3, "epochs": 2});
        assert_eq!(found(&ppo(passes), 1), Vec::<String>::new());
        let critic = json!({"klTerm": "Loss", "criticOptimizer": {"minimumLearningRate": 0.1}});
        assert_eq!(
            found(&ppo(critic), 1),
            ["spec.algorithm.ppo.klTerm", "spec.algorithm.ppo.criticOptimizer.minimumLearningRate"]
        );
    }

    #[test]
    fn settings_of_sampling_have_no_effect_in_a_job_that_does_not_sample() {
        let of = |change: Value| {
            let mut spec = serde_json::to_value(minimal().spec).unwrap();
            spec["algorithm"] = json!({"sft": {}});
            spec["dataset"]["train"]["completion"] = json!("{{ answer }}");
            merge(&mut spec, &change);
            let spec = serde_json::from_value(spec).unwrap();
            warnings(&spec).into_iter().map(|warning| warning.path).collect::<Vec<_>>()
        };
        let none = json!({
            "inference": {"replicas": 0}, "rewards": [], "weightSync": {"method": null},
        });
        assert_eq!(of(none), Vec::<String>::new());
        let sampling = json!({
            "inference": {"replicas": 1},
            "rollout": {"maxStaleness": 2, "temperature": 0.5},
            "weightSync": {"method": "Disk", "everySteps": 2, "runningCompletions": "Recompute"},
        });
        let rollout = ["spec.rollout.maxStaleness", "spec.rollout.temperature"];
        let others = ["method", "everySteps", "runningCompletions"];
        let [method, every, running] = others.map(|field| format!("spec.weightSync.{field}"));
        let unsampled = [&*every, &running, &method, "spec.rewards", "spec.inference.replicas"];
        let expected = [&rollout[..], &unsampled].concat();
        assert_eq!(of(sampling.clone()), expected);
        let mut evaluated = sampling;
        evaluated["dataset"] = json!({"evaluation": {
            "path": "/data/test.jsonl", "prompt": "{{ question }}", "answer": "answer",
        }});
        assert_eq!(of(evaluated), ["spec.rollout.maxStaleness", &every, &running]);
    }

    #[test]
    fn stale_samples_and_intermediate_exports_that_never_occur_are_named() {
        let mut spec = minimal().spec;
        spec.rollout.stale_samples = rljob_crds::rollout::StaleSamples::Drop;
        spec.checkpoint.export_every_steps = Some(spec.training.steps);
        let paths: Vec<_> = warnings(&spec).into_iter().map(|warning| warning.path).collect();
        assert_eq!(paths, ["spec.rollout.staleSamples", "spec.checkpoint.exportEverySteps"]);
    }

    #[test]
    fn offload_of_learners_on_cpus_is_named() {
        let mut spec = minimal().spec;
        spec.optimizer.offload = true;
        let paths: Vec<_> = warnings(&spec).into_iter().map(|warning| warning.path).collect();
        assert_eq!(paths, ["spec.optimizer.offload"]);
    }

    #[test]
    fn gradients_of_one_learner_are_not_divided() {
        let mut spec = minimal().spec;
        spec.training.sharding = Some(Sharding::Gradients);
        spec.trainer = TrainerSpec::default();
        let found = warnings(&spec);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].path, "spec.training.sharding");
        spec.trainer.replicas = 2;
        assert!(warnings(&spec).is_empty());
    }
}
