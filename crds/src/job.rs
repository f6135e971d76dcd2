//! Root of the RLJob object, and the parts of its spec that belong to no role. Rules across its
//! parts are in [`crate::rules`].

use kube::CustomResource;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::agent::AgentWorkflow;
use crate::algorithm::{AlgorithmSpec, OptimizerSpec, Precision, RolloutSpec, TrainingSpec};
pub use crate::checkpoint::CheckpointSpec;
use crate::data::DatasetSpec;
use crate::evaluation::SeparateEvaluationSpec;
use crate::failure_policy::FailurePolicy;
use crate::gpus::Device;
use crate::lora::LoraSpec;
use crate::model::ModelSpec;
use crate::restore::RestoreSource;
use crate::reward::RewardSpec;
use crate::roles::{CoordinatorSpec, InferenceSpec, SchedulingSpec, TrainerSpec};
use crate::rollback::RollbackTarget;
use crate::status::RLJobStatus;
use crate::storage::{StorageSpec, VolumeSpec};
use crate::tracking::TrackingSpec;
use crate::verifiers::VerifiersSpec;
pub use crate::weight_sync::{RunningCompletions, WeightSyncMethod, WeightSyncSpec};
use crate::workflow::WorkflowSpec;

/// Reinforcement-learning (or supervised) post-training of a language model: inference engines, a
/// coordinator and trainers, run until the last step is done.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "rljob.dev",
    version = "v1alpha1",
    kind = "RLJob",
    doc = "Post-training of a language model as one object: inference engines, a coordinator and \
         trainers run until the last step is done.",
    plural = "rljobs",
    shortname = "rlj",
    category = "rl",
    namespaced,
    derive = "PartialEq",
    status = "RLJobStatus",
    scale(
        spec_replicas_path = ".spec.inference.replicas",
        status_replicas_path = ".status.inference.replicas",
        label_selector_path = ".status.inference.selector"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Succeeded\")].reason"
    ),
    printcolumn(name = "Step", type_ = "integer", json_path = ".status.progress.step"),
    printcolumn(name = "Steps", type_ = "integer", json_path = ".status.progress.totalSteps"),
    printcolumn(name = "Reward", type_ = "number", json_path = ".status.progress.reward"),
    printcolumn(name = "Restarts", type_ = "integer", json_path = ".status.restarts"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".status.attempt", priority = 1),
    printcolumn(
        name = "Engines",
        type_ = "integer",
        json_path = ".status.inference.ready",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Succeeded\")].message",
        priority = 1
    ),
    validation = Rule::new(
        "oldSelf.hasValue() || self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && \
         size(self.metadata.name) <= 40"
    )
        .optional_old_self(true)
        .message("metadata.name must be a DNS label of at most 40 characters that starts with a \
                 letter")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RLJobSpec {
    /// Stop the run after its current step, write a checkpoint and delete every pod. `false`
    /// resumes at the same step. Default false.
    #[serde(default)]
    pub suspend: bool,

    /// Controller that reconciles the job; other controllers ignore it. Immutable. Default
    /// `rljob.dev/operator`.
    #[serde(default = "managed_by")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("spec.managedBy is immutable"))]
    #[schemars(length(min = 1, max = 63))]
    pub managed_by: String,

    /// Model to train.
    pub model: ModelSpec,

    /// Volumes of every pod, for models and data. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub volumes: Vec<VolumeSpec>,

    /// Storage of the run directory `<namespace>/<name>`: journal, checkpoints, exports and
    /// metrics. `rljob run` uses `--dir` instead; with `--use-bucket` it uses `s3`.
    pub storage: StorageSpec,

    /// Training and evaluation data.
    pub dataset: DatasetSpec,

    /// Rewards of a completion. Its reward is the sum of weight · reward. Required by `grpo`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub rewards: Vec<RewardSpec>,

    /// Algorithm and its settings.
    pub algorithm: AlgorithmSpec,

    /// Sampling of completions.
    #[serde(default)]
    pub rollout: RolloutSpec,

    /// AdamW and its learning-rate schedule.
    #[serde(default)]
    pub optimizer: OptimizerSpec,

    /// Trains low-rank adapters (LoRA) of the models instead of all their weights. Default all
    /// weights are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSpec>,

    /// Number of steps, batching and numerics.
    #[serde(default)]
    pub training: TrainingSpec,

    /// Inference engines.
    #[serde(default)]
    pub inference: InferenceSpec,

    /// Evaluation on separate engines, beside training. Default engines of `inference` evaluate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Box<SeparateEvaluationSpec>>,

    /// Trainer pods and their learner processes.
    #[serde(default)]
    pub trainer: TrainerSpec,

    /// Coordinator pod.
    #[serde(default)]
    pub coordinator: CoordinatorSpec,

    /// Pods that run the programs of rewards, tools and agents. Default they run in the container
    /// `rewards` of the coordinator's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifiers: Option<VerifiersSpec>,

    /// Transfer of new weights to the engines.
    #[serde(default)]
    pub weight_sync: WeightSyncSpec,

    /// Interval, number and export of checkpoints.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,

    /// Checkpoint that a run without checkpoints starts from. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_from: Option<RestoreSource>,

    /// Checkpoint of this run to which it goes back when it resumes. Steps, samples, checkpoints
    /// and exports after its step are deleted, and made again. Set it while the run is suspended;
    /// the run does it once. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<RollbackTarget>,

    /// Experiment trackers that get the run's metrics and traces, besides the files
    /// `metrics.jsonl`, `tensorboard` and `traces.jsonl` of the run directory. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracking: Option<TrackingSpec>,

    /// Restarts, hang detection and actions on failures.
    #[serde(default)]
    pub failure_policy: FailurePolicy,

    /// Scheduling of all pods.
    #[serde(default)]
    pub scheduling: SchedulingSpec,

    /// Seconds until the pods of a suspended job are deleted, whether or not the current step and
    /// its checkpoint are complete. Default 300.
    #[serde(default = "drain_timeout_seconds")]
    #[schemars(range(min = 1, max = 86400))]
    pub drain_timeout_seconds: u32,

    /// Maximum seconds from the start or the last resume until training begins. A run that exceeds
    /// them fails with reason StartupDeadlineExceeded and its pods are deleted. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub startup_deadline_seconds: Option<u32>,

    /// Seconds from the start or the last resume until the run fails with reason DeadlineExceeded.
    /// Checkpoints are kept. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub active_deadline_seconds: Option<u32>,

    /// Seconds from the end of the run until its children (StatefulSets, Services, ConfigMap,
    /// Secret and policies) are deleted. The RLJob and the run directory are kept. Default:
    /// children are kept as long as the RLJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<u32>,
}

impl RLJobSpec {
    /// The workflow `agent`, whose programs can post rewards.
    pub fn agent(&self) -> Option<&AgentWorkflow> {
        self.rollout.workflow.as_ref().and_then(|workflow| workflow.agent.as_ref())
    }

    /// Whether rewards, tools, environments or agents are programs, which verifier pods can run.
    pub fn has_programs(&self) -> bool {
        let workflow = self.rollout.workflow.as_ref();
        self.agent().is_some()
            || workflow.is_some_and(WorkflowSpec::has_commands)
            || self.rewards.iter().any(RewardSpec::runs_programs)
    }

    /// Whether programs of rewards, environments, agents or tools run in the coordinator's pod.
    pub fn runs_programs(&self) -> bool {
        self.verifiers.is_none() && self.has_programs()
    }

    /// Method of weight sync. Default Distributed where engines and learners can form a process
    /// group, else Disk.
    pub fn weight_sync_method(&self) -> WeightSyncMethod {
        // The engines of an evaluation read the model folder.
        if !self.algorithm.has_learners() {
            return WeightSyncMethod::Disk;
        }
        self.weight_sync.method.unwrap_or(if self.can_broadcast_weights() {
            WeightSyncMethod::Distributed
        } else {
            WeightSyncMethod::Disk
        })
    }

    /// Whether engines and learners can form a process group: both on CPUs (Gloo) or both on NVIDIA
    /// GPUs (NCCL).
    pub fn can_broadcast_weights(&self) -> bool {
        let devices = [&self.inference.resources, &self.trainer.resources].map(Device::of);
        matches!(devices, [Device::Cpu, Device::Cpu] | [Device::Cuda, Device::Cuda])
    }

    /// Trainer pods: none of an evaluation.
    pub fn trainers(&self) -> i32 {
        if self.algorithm.has_learners() { self.trainer.replicas } else { 0 }
    }

    /// Compute type. Default BF16 on GPUs, else FP32.
    pub fn precision(&self) -> Precision {
        let has_gpus = self.inference.gpus() > 0 || self.trainer.gpus() > 0;
        let default = if has_gpus { Precision::BF16 } else { Precision::FP32 };
        self.training.precision.unwrap_or(default)
    }
}

fn managed_by() -> String {
    crate::names::MANAGED_BY.to_owned()
}

fn drain_timeout_seconds() -> u32 {
    300
}
