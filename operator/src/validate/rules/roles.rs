//! Rules of engines, trainers and the resources of all roles.

use k8s_openapi::api::core::v1::ResourceRequirements;
use rljob_crds::RLJobSpec;
use rljob_crds::data::EvaluationDataset;
use rljob_crds::gpus::{Device, is_gpu, is_nvidia_gpu};
use rljob_crds::job::WeightSyncMethod;
use rljob_crds::roles::{EngineKind, InferenceSpec, TrainerSpec};

use super::common::{Role, TRAINER};
use crate::sglang;
use crate::validate::Problem;

/// Most GPUs of one engine or trainer pod.
const MAX_GPUS: u32 = 8;

pub(super) fn check_engines(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    if let Some(algorithm) = spec.algorithm.resolve().filter(|one| one.trains_scores()) {
        if spec.inference.replicas > 0 {
            let message = format!(
                "must be 0: algorithm.{} trains a reward model, and engines serve language models \
                    only",
                algorithm.name()
            );
            problems.push(Problem::new("spec.inference.replicas", message));
        }
        return;
    }
    if spec.inference.replicas >= 1 {
        return;
    }
    let accuracy = spec.evaluation.is_none()
        && spec.dataset.evaluation.as_ref().is_some_and(EvaluationDataset::measures_accuracy);
    let algorithm = spec.algorithm.resolve().filter(|algorithm| algorithm.has_rollouts());
    let algorithm = algorithm.map(|algorithm| format!("algorithm.{}", algorithm.name()));
    let accuracy = accuracy.then(|| "dataset.evaluation.answer".to_owned());
    for user in algorithm.into_iter().chain(accuracy) {
        problems.push(Problem::new(
            "spec.inference.replicas",
            format!("must be at least 1: {user} samples from engines"),
        ));
    }
}

/// Rules of engines at `field` of the spec.
pub(super) fn check_inference(field: &str, inference: &InferenceSpec, problems: &mut Vec<Problem>) {
    let path = |own: &str| format!("spec.{field}{own}");
    if inference.sglang.is_some() && inference.embedded.is_some() {
        problems.push(Problem::new(path(""), "set at most one of sglang and embedded"));
    }
    let gpus = inference.gpus();
    if inference.engine() == EngineKind::Embedded && gpus > 0 {
        problems.push(Problem::new(
            path(".resources.limits"),
            "the embedded engine runs on CPUs: remove the GPUs or use sglang",
        ));
    }
    if inference.engine() == EngineKind::Embedded && inference.pods_per_engine() > 1 {
        problems.push(Problem::new(
            path(".podsPerReplica"),
            "the embedded engine is one process: remove it or use sglang",
        ));
    }
    if gpus > MAX_GPUS {
        problems.push(Problem::new(
            path(".resources.limits"),
            format!("a pod of an engine has at most {MAX_GPUS} GPUs, found {gpus}"),
        ));
    }
    for (index, argument) in inference.extra_args().iter().enumerate() {
        let message = match (joined(argument), sglang::own_flag(argument)) {
            (Some((flag, value)), _) => {
                format!("an item is one argument: write {flag}={value}, or two items")
            }
            (None, Some(flag)) => format!("the run sets {flag}; remove it"),
            (None, None) => continue,
        };
        problems.push(Problem::new(path(&format!(".sglang.extraArgs[{index}]")), message));
    }
}

/// Rules of engines at `field` of the spec besides those of `inference`.
pub(super) fn check_further_engines(
    field: &str,
    engines: &InferenceSpec,
    spec: &RLJobSpec,
    problems: &mut Vec<Problem>,
) {
    check_inference(field, engines, problems);
    let mut problem = |own: &str, message: &str| {
        problems.push(Problem::new(format!("spec.{field}{own}"), message));
    };
    if engines.replicas < 1 {
        problem(".replicas", "must be at least 1");
    }
    // The kind follows from nothing in the engines' spec.
    let is_unset = engines.sglang.is_none() && engines.embedded.is_none() && engines.gpus() == 0;
    if is_unset && spec.inference.engine() == EngineKind::SGLang {
        let message = "must set sglang, or embedded for a small model on CPUs: inference runs \
                       SGLang, and nothing is inherited";
        problem("", message);
    }
    if engines.min_replicas.is_some() {
        problem(".minReplicas", "has no effect: a queue admits all of them; remove it");
    }
}

/// Flag and value of an item that joins them by a space.
fn joined(argument: &str) -> Option<(&str, &str)> {
    let (flag, value) = argument.split_once(char::is_whitespace)?;
    (flag.starts_with('-') && !flag.contains('=')).then_some((flag, value.trim_start()))
}

/// Checks the learners of the pods that a field of the spec describes.
pub(super) fn check_learners(field: &str, trainer: &TrainerSpec, problems: &mut Vec<Problem>) {
    let gpus = trainer.gpus();
    if gpus > MAX_GPUS {
        problems.push(Problem::new(
            format!("spec.{field}.resources.limits"),
            format!("a trainer pod has at most {MAX_GPUS} GPUs, found {gpus}"),
        ));
    }
    if gpus > 0 && trainer.processes() != gpus {
        problems.push(Problem::new(
            format!("spec.{field}.processesPerReplica"),
            format!(
                "must equal the {gpus} GPUs in resources.limits, since each learner has one; \
                    remove it or set it to {gpus}"
            ),
        ));
    }
}

pub(super) fn check_weight_sync(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let is_broadcast = spec.weight_sync_method() == WeightSyncMethod::Distributed;
    let is_in_bucket = spec.storage.s3.is_some() && spec.inference.replicas > 0;
    let group = group_problem(spec);
    let problem = match (is_in_bucket, group) {
        (true, Some(group)) => Problem::new(
            "spec.storage.s3",
            format!(
                "engines cannot read weights from a bucket, and a broadcast {group}; store the \
                    run on a volume"
            ),
        ),
        (true, None) if !is_broadcast => Problem::new(
            "spec.weightSync.method",
            "must be Distributed: engines cannot read weights from storage.s3; or store the run on \
                a volume",
        ),
        (false, Some(group)) if is_broadcast => {
            Problem::new("spec.weightSync.method", format!("must be Disk: a broadcast {group}"))
        }
        _ => return,
    };
    problems.push(problem);
}

/// Why engines and learners cannot form a process group, as the end of a sentence.
fn group_problem(spec: &RLJobSpec) -> Option<String> {
    let [engines, learners] =
        [&spec.inference.resources, &spec.trainer.resources].map(|own| Device::of(own).name());
    (!spec.can_broadcast_weights()).then(|| {
        format!(
            "needs engines and learners in one process group, both on CPUs or both on NVIDIA \
                GPUs; engines have {engines}, learners have {learners}"
        )
    })
}

pub(super) fn check_resources(
    role: Role<'_>,
    resources: &ResourceRequirements,
    problems: &mut Vec<Problem>,
) {
    let path = format!("spec.{}.resources", role.field);
    for (kind, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, amount) in amounts.iter().flatten() {
            let field = format!("{path}.{kind}.{name}");
            if !name.contains('/') && !is_native(name) {
                let message = "is no resource of Kubernetes: names of others have a domain, for \
                    example nvidia.com/gpu";
                problems.push(Problem::new(field, message));
            } else if is_gpu(name) && amount.0.parse::<u32>().is_err() {
                let message = format!("must be a whole number, found \"{}\"", amount.0);
                problems.push(Problem::new(field, message));
            } else if quantity(&amount.0).is_none() {
                let message =
                    format!("must be a quantity such as 500m, 2 or 4Gi, found \"{}\"", amount.0);
                problems.push(Problem::new(field, message));
            } else if role.container == TRAINER.container && is_gpu(name) && !is_nvidia_gpu(name) {
                problems.push(Problem::new(
                    field,
                    "learners support NVIDIA GPUs only (nvidia.com/gpu, nvidia.com/mig-*); remove \
                        it",
                ));
            }
        }
    }
    check_requests(&path, resources, problems);
}

/// Whether Kubernetes defines a resource of containers with this name, which has no domain.
fn is_native(name: &str) -> bool {
    ["cpu", "memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-")
}

/// Kubernetes rejects requests above their limit, and requests of devices that differ from it.
fn check_requests(path: &str, resources: &ResourceRequirements, problems: &mut Vec<Problem>) {
    let limits = resources.limits.as_ref();
    for (name, request) in resources.requests.iter().flatten() {
        let limit = limits.and_then(|limits| limits.get(name));
        let amounts = (quantity(&request.0), limit.map(|limit| quantity(&limit.0)));
        let message = match (amounts, limit) {
            ((Some(_), None), _) if is_gpu(name) => "needs the same limit".to_owned(),
            ((Some(request), Some(Some(most))), Some(limit))
                if request > most || is_gpu(name) && request < most =>
            {
                let relation = if is_gpu(name) { "equal" } else { "be at most" };
                format!("must {relation} the limit of {}", limit.0)
            }
            _ => continue,
        };
        problems.push(Problem::new(format!("{path}.requests.{name}"), message));
    }
}

/// The value of a non-negative Kubernetes quantity: digits with at most one point, then a binary or
/// decimal suffix or an exponent.
fn quantity(text: &str) -> Option<f64> {
    const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    if let Some((power, _)) = (-3_i32..).zip(DECIMAL).find(|(_, unit)| *unit == suffix) {
        return Some(number * 1000_f64.powi(power));
    }
    if let Some((power, _)) = (1_i32..).zip(BINARY).find(|(_, unit)| *unit == suffix) {
        return Some(number * 1024_f64.powi(power));
    }
    let exponent: i8 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some(number * 10_f64.powi(i32::from(exponent)))
}
