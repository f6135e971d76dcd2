//! Out-of-memory errors of libtorch as one line: the part of the step, the size, and what to
//! change. Most operations of tch panic with such an error, so panics are caught too.

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind};

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{Activations, Precision, Sharding};

/// Part of the work of a learner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Moving a batch to the device.
    #[default]
    Batch,
    /// Reading the models, or a checkpoint.
    Loading,
    /// Reading the model of a group of `trainer.groups`.
    LoadingFrozen,
    /// A forward pass of a micro-batch without gradients.
    Logprobs {
        tokens: i64,
    },
    /// The same by a group of `trainer.groups`.
    Frozen {
        tokens: i64,
    },
    /// Forward and backward pass of a micro-batch.
    Training {
        tokens: i64,
    },
    Update,
    /// Copying the weights for engines or an export.
    Publication,
}

/// Memory that libtorch could not allocate.
#[derive(Debug, thiserror::Error)]
#[error("out of memory in {part}{size}: {remedy}")]
pub struct OutOfMemory {
    part: String,
    /// ` (tried to allocate 1.25 GiB)`, if libtorch says so.
    size: String,
    remedy: String,
}

impl OutOfMemory {
    /// The error that `text`, of libtorch, describes.
    fn of(text: &str, phase: Phase, spec: &RLJobSpec) -> Option<Self> {
        is_out_of_memory(text).then(|| Self {
            part: part(phase),
            size: size(text).map(|size| format!(" (tried to allocate {size})")).unwrap_or_default(),
            remedy: remedies(phase, spec).join(", "),
        })
    }
}

/// Whether libtorch says so, on a GPU or a CPU.
fn is_out_of_memory(text: &str) -> bool {
    let text = text.to_lowercase();
    let parts = ["out of memory", "can't allocate memory", "not enough memory"];
    parts.iter().any(|part| text.contains(part))
}

fn part(phase: Phase) -> String {
    match phase {
        Phase::Batch => "moving a batch to the device".to_owned(),
        Phase::Loading => "loading the models".to_owned(),
        Phase::LoadingFrozen => "loading the model of the group".to_owned(),
        Phase::Logprobs { tokens } | Phase::Frozen { tokens } => {
            format!("the forward pass of a micro-batch of {tokens} tokens")
        }
        Phase::Training { tokens } => {
            format!("the forward and backward pass of a micro-batch of {tokens} tokens")
        }
        Phase::Update => "the optimizer's update".to_owned(),
        Phase::Publication => "copying the weights for engines or an export".to_owned(),
    }
}

const END_OTHERS: &str = "end other processes on the GPU";
const MORE_FOR_THE_GROUP: &str = "raise replicas or the GPUs of the group in trainer.groups";

/// What reduces the memory of a phase, beginning with the cheapest that the spec does not have yet.
fn remedies(phase: Phase, spec: &RLJobSpec) -> Vec<&'static str> {
    let training = &spec.training;
    match phase {
        Phase::Frozen { .. } => {
            return vec!["lower training.maxTokensPerMicroBatch", MORE_FOR_THE_GROUP];
        }
        Phase::LoadingFrozen => return vec![END_OTHERS, MORE_FOR_THE_GROUP],
        _ => {}
    }
    let in_a_pass = matches!(phase, Phase::Logprobs { .. } | Phase::Training { .. });
    let recomputes = training.activations == Some(Activations::Recompute);
    let mut remedies = Vec::new();
    if phase == Phase::Loading && spec.trainer.gpus() > 0 {
        remedies.push(END_OTHERS);
    }
    if in_a_pass || phase == Phase::Batch {
        remedies.push("lower training.maxTokensPerMicroBatch");
    }
    if matches!(phase, Phase::Training { .. }) && !recomputes {
        remedies.push("set training.activations to Recompute");
    }
    let replicated = training.sharding == Some(Sharding::Hybrid) && spec.trainer.replicas > 1;
    if replicated || training.sharding == Some(Sharding::Gradients) {
        remedies.push("set training.sharding to Full");
    }
    if spec.trainer.gpus() > 0 && !spec.optimizer.offload {
        remedies.push("set optimizer.offload to true");
    } else if can_offload_weights(spec) {
        remedies.push("set optimizer.offloadWeights to true");
    }
    remedies.push(if training.sharding == Some(Sharding::Hybrid) {
        "raise the GPUs of each trainer"
    } else {
        "raise trainer.replicas or the GPUs of each trainer"
    });
    remedies
}

/// Whether the fp32 weights are on a GPU and need not be.
fn can_offload_weights(spec: &RLJobSpec) -> bool {
    let is_bf16 = spec.precision() == Precision::BF16 && spec.lora.is_none();
    spec.trainer.gpus() > 0 && is_bf16 && !spec.optimizer.offload_weights
}

/// `1.25 GiB` of `… Tried to allocate 1.25 GiB. GPU 0 has …`, or bytes of the CPU's message.
fn size(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("ried to allocate ")?;
    let end = rest.find(". ").or_else(|| rest.find(['\n', '"']))?;
    rest.get(..end).filter(|size| size.len() < 40)
}

/// Runs `action`, whose out-of-memory errors and panics become [`OutOfMemory`]. `state` holds the
/// phase, which the action may change.
///
/// # Errors
/// Those of the action.
pub fn guard<S, T, E>(
    state: &mut S,
    describe: impl Fn(&S) -> (Phase, RLJobSpec),
    action: impl FnOnce(&mut S) -> Result<T, E>,
) -> Result<T, E>
where
    E: std::error::Error + From<OutOfMemory> + 'static,
{
    let outcome = catch_unwind(AssertUnwindSafe(|| action(state)));
    let explain = |text: &str| {
        let (phase, spec) = describe(state);
        OutOfMemory::of(text, phase, &spec).map(E::from)
    };
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(explain(&crate::error_line(&error)).unwrap_or(error)),
        Err(payload) => match message(payload.as_ref()).and_then(explain) {
            Some(error) => Err(error),
            None => resume_unwind(payload),
        },
    }
}

/// Leaves the report of out-of-memory panics to [`guard`].
pub fn silence_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
        if !message(panic.payload()).is_some_and(is_out_of_memory) {
            report(panic);
        }
    }));
}

fn message(payload: &(dyn std::any::Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
}

#[cfg(test)]
mod tests {
    use super::{OutOfMemory, Phase, guard};
    use rljob_crds::RLJobSpec;
    use rljob_crds::algorithm::{Activations, Sharding};
    use serde_json::json;
    use tch::{Device, Kind, Tensor};

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error(transparent)]
        Memory(#[from] OutOfMemory),
        #[error(transparent)]
        Torch(#[from] tch::TchError),
    }

    fn spec() -> RLJobSpec {
        serde_json::from_value(json!({
            "model": {"path": "/model"}, "storage": {"hostPath": {"path": "/runs"}},
            "dataset": {"train": {"path": "/d.jsonl", "prompt": "{{q}}", "completion": "{{a}}"}},
            "algorithm": {"sft": {}}, "training": {"steps": 1},
        }))
        .unwrap()
    }

    const CUDA: &str = "Torch(\"CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total \
        capacity of 79.11 GiB of which 512.00 MiB is free. Process 7 has 78.6 GiB in use.\")";

    #[test]
    fn an_error_names_the_part_the_size_and_what_to_change() {
        let mut spec = spec();
        let line =
            |phase, spec: &RLJobSpec| OutOfMemory::of(CUDA, phase, spec).unwrap().to_string();
        assert_eq!(
            line(Phase::Training { tokens: 16_384 }, &spec),
            "out of memory in the forward and backward pass of a micro-batch of 16384 tokens \
             (tried to allocate 1.25 GiB): lower training.maxTokensPerMicroBatch, set \
             training.activations to Recompute, raise trainer.replicas or the GPUs of each trainer"
        );
        spec.training.activations = Some(Activations::Recompute);
        spec.training.sharding = Some(Sharding::Gradients);
        assert_eq!(
            [
                line(Phase::Training { tokens: 7 }, &spec),
                line(Phase::Logprobs { tokens: 7 }, &spec),
                line(Phase::Update, &spec),
            ]
            .map(|line| line.split_once("GiB): ").unwrap().1.to_owned()),
            [
                "lower training.maxTokensPerMicroBatch, set training.sharding to Full, raise \
                 trainer.replicas or the GPUs of each trainer",
                "lower training.maxTokensPerMicroBatch, set training.sharding to Full, raise \
                 trainer.replicas or the GPUs of each trainer",
                "set training.sharding to Full, raise trainer.replicas or the GPUs of each trainer",
            ]
        );
        spec.training.sharding = Some(Sharding::Hybrid);
        let remedies = [1, 2].map(|replicas| {
            spec.trainer.replicas = replicas;
            line(Phase::Update, &spec).split_once("GiB): ").unwrap().1.to_owned()
        });
        let more = "raise the GPUs of each trainer";
        assert_eq!(remedies, [more.to_owned(), format!("set training.sharding to Full, {more}")]);
        spec.trainer.resources =
            serde_json::from_value(json!({"limits": {"nvidia.com/gpu": 1}})).unwrap();
        assert_eq!(
            [Phase::Loading, Phase::LoadingFrozen]
                .map(|phase| line(phase, &spec))
                .each_ref()
                .map(String::as_str),
            [
                "out of memory in loading the models (tried to allocate 1.25 GiB): end other \
                 processes on the GPU, set training.sharding to Full, set optimizer.offload to \
                 true, raise the GPUs of each trainer",
                "out of memory in loading the model of the group (tried to allocate 1.25 GiB): end \
                 other processes on the GPU, raise replicas or the GPUs of the group in \
                 trainer.groups",
            ]
        );
        assert!(OutOfMemory::of("index 4 is out of range", Phase::Update, &spec).is_none());
    }

    #[test]
    fn a_failed_allocation_of_libtorch_is_one_line_whether_it_panics_or_returns_an_error() {
        let options = (Kind::Float, Device::Cpu);
        let describe = |phase: &Phase| (*phase, spec());
        let panicking = |phase: &mut Phase| {
            *phase = Phase::Publication;
            Ok::<_, Failure>(Tensor::zeros([1 << 55], options))
        };
        let returning = |phase: &mut Phase| {
            *phase = Phase::Publication;
            let made = Tensor::f_zeros([1 << 55], options);
            Ok::<_, Failure>(made?)
        };
        let lines = [
            guard(&mut Phase::Batch, describe, panicking).unwrap_err().to_string(),
            guard(&mut Phase::Batch, describe, returning).unwrap_err().to_string(),
        ];
        for line in lines {
            let expected = "out of memory in copying the weights for engines or an export (tried \
                            to allocate 144115188075855872 bytes): raise trainer.replicas or the \
                            GPUs of each trainer";
            assert_eq!(line, expected);
        }
    }

    #[test]
    #[should_panic(expected = "another defect")]
    fn other_panics_continue() {
        let describe = |phase: &Phase| (*phase, spec());
        let _ = guard(&mut Phase::Batch, describe, |_| -> Result<(), Failure> {
            panic!("another defect")
        });
    }
}
