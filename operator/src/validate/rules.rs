//! Rules across fields: those that the API server checks by CEL, so that no cluster is needed to
//! hear of them, and those that CEL cannot see.

use std::path::Path;

use rljob_crds::data::{InitialWeights, ModelSpec, VolumeSpec};
use rljob_crds::job::WeightSyncMethod;
use rljob_crds::names::{CONFIG_MOUNT, S3_KEYS_MOUNT, STORAGE_MOUNT, TOKENS_MOUNT};
use rljob_crds::roles::{EngineKind, Resources};
use rljob_crds::{RLJob, RLJobSpec};
use rljob_protocol::version::Version;

use super::Problem;
use crate::sglang;

mod algorithm;

use algorithm::{check_algorithm, check_grpo};

/// Longest name of a job; the longest suffix of a child still fits a pod's host name.
const NAME_LIMIT: usize = 40;
/// Paths of the containers that are not free for a user's volume.
const TAKEN: [&str; 6] =
    [STORAGE_MOUNT, CONFIG_MOUNT, TOKENS_MOUNT, S3_KEYS_MOUNT, "/tmp", "/dev/shm"];

/// Every problem of a job that its types do not rule out.
pub(super) fn problems(job: &RLJob) -> Vec<Problem> {
    let spec = &job.spec;
    let mut problems = Vec::new();
    check_name(job.metadata.name.as_deref(), &mut problems);
    check_model(&spec.model, job.metadata.name.as_deref(), &mut problems);
    check_volumes(&spec.volumes, &mut problems);
    check_storage(spec, &mut problems);
    check_algorithm(&spec.algorithm, spec.reward.as_ref(), &spec.dataset, &mut problems);
    if let Some(grpo) = &spec.algorithm.grpo {
        check_grpo(grpo, spec.rollout.max_new_tokens, &mut problems);
    }
    check_engines(spec, &mut problems);
    check_inference(spec, &mut problems);
    check_batches(spec, &mut problems);
    check_policies(spec, &mut problems);
    if spec
        .checkpoint
        .restored_job()
        .is_some_and(|other| job.metadata.name.as_deref() == Some(other))
    {
        problems.push(Problem::new("spec.checkpoint.restoreFrom", "names this job itself"));
    }
    for (role, resources) in [
        ("inference", &spec.inference.resources),
        ("trainer", &spec.trainer.resources),
        ("coordinator", &spec.coordinator.resources),
    ] {
        check_resources(role, resources, &mut problems);
    }
    problems
}

fn check_name(name: Option<&str>, problems: &mut Vec<Problem>) {
    let Some(name) = name else {
        return problems.push(Problem::new("metadata.name", "is missing"));
    };
    let starts_well = name.starts_with(|first: char| first.is_ascii_lowercase());
    if !starts_well || !is_dns_label(name) || name.len() > NAME_LIMIT {
        problems
            .push(Problem::new("metadata.name", format!("must be a DNS label of at most {NAME_LIMIT} characters that starts with a letter, found \"{name}\"")));
    }
}

fn is_dns_label(text: &str) -> bool {
    let inner =
        text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    inner && !text.is_empty() && !text.starts_with('-') && !text.ends_with('-')
}

fn exactly_one(path: &str, fields: &[(&str, bool)], problems: &mut Vec<Problem>) {
    let set: Vec<&str> = fields.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    if set.len() != 1 {
        let all: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let found = if set.is_empty() { "none".to_owned() } else { set.join(" and ") };
        problems.push(Problem::new(
            path,
            format!("set exactly one of {}, found {found}", all.join(", ")),
        ));
    }
}

fn check_model(model: &ModelSpec, name: Option<&str>, problems: &mut Vec<Problem>) {
    exactly_one(
        "spec.model",
        &[("path", model.path.is_some()), ("exportOf", model.export_of.is_some())],
        problems,
    );
    if model.export_of.is_some() && model.weights != InitialWeights::Pretrained {
        problems.push(Problem::new(
            "spec.model.weights",
            "exportOf names trained weights: weights must be Pretrained",
        ));
    }
    if model.export_of.is_some() && model.export_of.as_deref() == name {
        problems.push(Problem::new("spec.model.exportOf", "names this job itself"));
    }
    if model.export_of.as_deref().is_some_and(|other| !is_dns_label(other)) {
        problems.push(Problem::new("spec.model.exportOf", "must be the name of an RLJob"));
    }
}

fn check_volumes(volumes: &[VolumeSpec], problems: &mut Vec<Problem>) {
    for (index, volume) in volumes.iter().enumerate() {
        let path = format!("spec.volumes[{index}]");
        let sources = [
            ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
            ("hostPath", volume.host_path.is_some()),
            ("configMap", volume.config_map.is_some()),
        ];
        exactly_one(&path, &sources, problems);
        let earlier = &volumes[..index];
        if earlier.iter().any(|other| other.name == volume.name) {
            problems.push(Problem::new(
                format!("{path}.name"),
                format!("`{}` is the name of an earlier volume", volume.name),
            ));
        }
        let mount = volume.mount_path.trim_end_matches('/');
        if earlier.iter().any(|other| other.mount_path.trim_end_matches('/') == mount) {
            problems.push(Problem::new(
                format!("{path}.mountPath"),
                format!("`{mount}` is the mount path of an earlier volume"),
            ));
        }
        if mount.is_empty()
            || TAKEN.iter().any(|taken| {
                mount == *taken
                    || taken.starts_with(&format!("{mount}/"))
                    || mount.starts_with(&format!("{taken}/"))
            })
        {
            problems.push(Problem::new(
                format!("{path}.mountPath"),
                format!(
                    "`{}` covers a folder that rljob uses: {}",
                    volume.mount_path,
                    TAKEN.join(", ")
                ),
            ));
        }
        if mount.contains(':') || mount.split('/').any(|part| part == "..") {
            problems
                .push(Problem::new(format!("{path}.mountPath"), "must not contain `:` or `..`"));
        }
    }
}

fn check_storage(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let storage = &spec.storage;
    let sources = [
        ("persistentVolumeClaim", storage.persistent_volume_claim.is_some()),
        ("hostPath", storage.host_path.is_some()),
        ("s3", storage.s3.is_some()),
    ];
    exactly_one("spec.storage", &sources, problems);
    if storage.s3.is_some() {
        check_s3(spec, problems);
    } else if spec.checkpoint.restore_from.as_ref().is_some_and(|path| path.starts_with("s3://")) {
        problems.push(Problem::new(
            "spec.checkpoint.restoreFrom",
            "is in a bucket and needs storage.s3, which says how it is reached",
        ));
    }
    let sub_path = storage
        .persistent_volume_claim
        .as_ref()
        .and_then(|claim| claim.sub_path.as_deref())
        .unwrap_or_default();
    if sub_path.starts_with('/') || sub_path.split('/').any(|part| part == "..") {
        problems.push(Problem::new(
            "spec.storage.persistentVolumeClaim.subPath",
            "must be relative and must not contain `..`",
        ));
    }
}

/// Pods share no folder.
fn check_s3(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    if spec.inference.replicas > 0 && spec.weight_sync.method == WeightSyncMethod::Disk {
        let message = "must be Distributed with storage.s3, which is no folder that engines could read weights from; or keep the run on a volume";
        problems.push(Problem::new("spec.weightSync.method", message));
    }
    if spec.model.export_of.is_some() {
        let message = "needs a volume: storage.s3 is no folder that engines could read a model from; put the export on a volume and name it by model.path";
        problems.push(Problem::new("spec.model.exportOf", message));
    }
}

fn check_inference(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let inference = &spec.inference;
    if inference.engine == EngineKind::Embedded {
        if inference.gpus_per_replica > 0 {
            problems.push(Problem::new(
                "spec.inference.gpusPerReplica",
                "needs engine SGLang: the embedded engine runs on CPUs",
            ));
        }
        if !inference.extra_args.is_empty() {
            problems.push(Problem::new(
                "spec.inference.extraArgs",
                "needs engine SGLang: the embedded engine takes none",
            ));
        }
    }
    if inference.gpus_per_replica > 0 && spec.weight_sync.method == WeightSyncMethod::Distributed {
        problems.push(Problem::new(
            "spec.weightSync.method",
            "must be Disk where engines run on GPUs: learners run on CPUs",
        ));
    }
    let limits = &inference.resources.limits;
    if inference.gpus_per_replica > 0 && limits.contains_key(&inference.gpu_resource_name) {
        let path = format!("spec.inference.resources.limits.{}", inference.gpu_resource_name);
        problems
            .push(Problem::new(path, "is set by spec.inference.gpusPerReplica; remove it here"));
    }
    for (index, argument) in inference.extra_args.iter().enumerate() {
        if let Some(flag) = sglang::own_flag(argument) {
            problems.push(Problem::new(
                format!("spec.inference.extraArgs[{index}]"),
                format!("{flag} is set by the run itself; remove it"),
            ));
        }
    }
}

fn check_engines(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    if spec.inference.replicas >= 1 {
        return;
    }
    let accuracy =
        spec.dataset.evaluation.as_ref().is_some_and(|evaluation| evaluation.answer.is_some());
    for (needed, by) in
        [(spec.algorithm.grpo.is_some(), "algorithm.grpo"), (accuracy, "dataset.evaluation.answer")]
    {
        if needed {
            problems.push(Problem::new(
                "spec.inference.replicas",
                format!("must be at least 1: {by} samples from engines"),
            ));
        }
    }
}

fn check_batches(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let minibatches = spec.training.minibatches.max(1);
    let mut divides = |path: &str, batch: u32, what: &str| {
        if !batch.is_multiple_of(minibatches) {
            problems.push(Problem::new(path, format!("{batch} {what} cannot be split into training.minibatches = {minibatches} equal parts")));
        }
    };
    if spec.algorithm.grpo.is_some() {
        divides("spec.rollout.batchSize", spec.rollout.batch_size, "groups");
    }
    if let Some(sft) = &spec.algorithm.sft {
        divides("spec.algorithm.sft.batchSize", sft.batch_size, "sequences");
    }
}

fn check_policies(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    if spec.weight_sync.every_steps > spec.rollout.max_staleness + 1 {
        let message = format!(
            "must be at most rollout.maxStaleness + 1 = {}: the batch of the next step could not be sampled",
            spec.rollout.max_staleness + 1
        );
        problems.push(Problem::new("spec.weightSync.everySteps", message));
    }
    let backoff = &spec.failure_policy.backoff;
    if backoff.initial_seconds > backoff.max_seconds {
        problems.push(Problem::new(
            "spec.failurePolicy.backoff.initialSeconds",
            format!("must not exceed maxSeconds = {}", backoff.max_seconds),
        ));
    }
    if spec.optimizer.warmup_steps > spec.training.steps {
        problems.push(Problem::new(
            "spec.optimizer.warmupSteps",
            format!("must not exceed training.steps = {}", spec.training.steps),
        ));
    }
    let restored = spec
        .checkpoint
        .restore_from
        .as_deref()
        .and_then(|path| Path::new(path).file_name()?.to_str()?.parse::<Version>().ok());
    if let Some(version) = restored.filter(|version| version.step > spec.training.steps) {
        let message =
            format!("{version} has more steps than training.steps = {}", spec.training.steps);
        problems.push(Problem::new("spec.checkpoint.restoreFrom", message));
    }
    if spec.optimizer.epsilon <= 0.0 {
        problems.push(Problem::new("spec.optimizer.epsilon", "must be above 0"));
    }
}

fn check_resources(role: &str, resources: &Resources, problems: &mut Vec<Problem>) {
    for (kind, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, amount) in amounts {
            if !is_quantity(&amount.0) {
                problems.push(Problem::new(
                    format!("spec.{role}.resources.{kind}.{name}"),
                    format!("must be a quantity such as 500m, 2 or 4Gi, found \"{}\"", amount.0),
                ));
            }
        }
    }
}

/// Whether the text is a non-negative Kubernetes quantity: digits with at most one point, then a
/// binary or decimal suffix or an exponent.
fn is_quantity(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let digits =
        number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    let unit =
        ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
            .contains(&suffix);
    let exponent =
        suffix.strip_prefix(['e', 'E']).is_some_and(|exponent| exponent.parse::<i8>().is_ok());
    digits && (unit || exponent)
}

#[cfg(test)]
mod tests;
