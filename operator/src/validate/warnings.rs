//! Settings that have no effect in combination with others, or one that is rarely meant. Such a job
//! can run.

use kube::ResourceExt;
use rljob_crds::algorithm::{OptimizerSpec, Sharding};
use rljob_crds::gpus::Device;
use rljob_crds::job::{CheckpointSpec, WeightSyncSpec};
use rljob_crds::names::LABEL_QUEUE;
use rljob_crds::roles::TrainerSpec;
use rljob_crds::rollout::StaleSamples;
use rljob_crds::{RLJob, RLJobSpec};

use super::{Policy, Problem, rules};
use devices::{check_cpus, check_devices, check_memory, check_units};
use evaluation::check_evaluation;
use inputs::{check_fields, check_mounts, check_programs};
use optimizer::check_optimizer;
use policy::check_policy;
use queue::check_least_engines;
use row_templates::check_row_templates;
use running::check_running;
use sampling::check_unsampled;
use templates::{check_host_namespaces, check_templates};
use tracking::check_tracking;

mod devices;
mod evaluation;
mod inputs;
mod optimizer;
mod policy;
mod queue;
mod row_templates;
mod running;
mod sampling;
mod templates;
mod tracking;
mod verifiers;

/// Every setting that is set and has no effect, or one that is rarely meant, with the reason.
pub fn warnings(spec: &RLJobSpec) -> Vec<Problem> {
    let mut warnings = Vec::new();
    check_row_templates(spec, &mut warnings);
    check_fields(spec, &mut warnings);
    check_evaluation(spec, &mut warnings);
    check_devices(spec, &mut warnings);
    check_units(spec, &mut warnings);
    check_cpus(spec, &mut warnings);
    check_least_engines(spec, &mut warnings);
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
    if let Some(message) = sharding_warning(spec) {
        warnings.push(Problem::new("spec.training.sharding", message));
    }
    let every = spec.checkpoint.export_every_steps;
    let steps = spec.training.known_steps();
    if let Some((_, steps)) = every.zip(steps).filter(|(every, steps)| every >= steps) {
        let message = format!(
            "has no effect: training.steps is {steps}, and the last step is exported to `export`"
        );
        warnings.push(Problem::new("spec.checkpoint.exportEverySteps", message));
    }
    check_optimizer("spec.optimizer", &spec.optimizer, spec, &mut warnings);
    if !spec.algorithm.has_learners() {
        check_untrained(spec, &mut warnings);
    }
    check_tracking(spec, &mut warnings);
    warnings
}

/// What the number of trainer pods or of their learners makes of the sharding.
fn sharding_warning(spec: &RLJobSpec) -> Option<&'static str> {
    let TrainerSpec { replicas, .. } = spec.trainer;
    match spec.training.sharding? {
        Sharding::Gradients if spec.trainer.world_size() == 1 => {
            Some("has no effect: one learner has all weights and gradients")
        }
        Sharding::Hybrid if replicas <= 1 => {
            Some("has no effect: with one trainer pod Hybrid equals Full")
        }
        Sharding::Hybrid if spec.trainer.processes() == 1 => {
            Some("divides nothing: a trainer pod has one learner, which holds the whole model")
        }
        Sharding::Full | Sharding::Gradients | Sharding::Hybrid => None,
    }
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

/// Settings without an effect in a local run.
pub fn local_warnings(spec: &RLJobSpec) -> Vec<Problem> {
    let mut warnings = Vec::new();
    verifiers::check_local(spec, &mut warnings);
    warnings
}

/// What keeps the job from running on a cluster whose operator has default settings, and settings
/// of pods that are rarely meant. The job is valid for a local run.
pub fn cluster_warnings(job: &RLJob) -> Vec<Problem> {
    let spec = &job.spec;
    let mut warnings = rules::problems(job, Policy::of_operator(false));
    check_mounts(spec, &mut warnings);
    check_programs(spec, &mut warnings);
    check_templates(spec, &mut warnings);
    check_host_namespaces(spec, &mut warnings);
    check_memory(spec, &mut warnings);
    verifiers::check_pods(spec, &mut warnings);
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

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::Sharding;
    use rljob_crds::roles::TrainerSpec;

    use super::warnings;
    use crate::validate::test_support::minimal;

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

    #[test]
    fn hybrid_sharding_needs_several_pods_with_several_learners() {
        let mut spec = minimal().spec;
        spec.training.sharding = Some(Sharding::Hybrid);
        let mut found = |replicas, processes| {
            spec.trainer.replicas = replicas;
            spec.trainer.processes_per_replica = Some(processes);
            warnings(&spec).into_iter().map(|warning| warning.to_string()).collect::<Vec<_>>()
        };
        let one_pod =
            "spec.training.sharding: has no effect: with one trainer pod Hybrid equals Full";
        assert_eq!(found(1, 2), [one_pod]);
        let one_learner = "spec.training.sharding: divides nothing: a trainer pod has one learner, \
                           which holds the whole model";
        assert_eq!(found(2, 1), [one_learner]);
        assert!(found(2, 2).is_empty());
    }
}
