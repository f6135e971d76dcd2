//! The root of the RLJob object and the parts of its spec that belong to no role.

use kube::CustomResource;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::algorithm::{AlgorithmSpec, OptimizerSpec, RolloutSpec, TrainingSpec};
use crate::data::{DatasetSpec, ModelSpec, StorageSpec, VolumeSpec};
use crate::failure_policy::FailurePolicy;
use crate::reward::RewardSpec;
use crate::roles::{CoordinatorSpec, InferenceSpec, TrainerSpec};
use crate::status::RLJobStatus;

/// What a run is, for good, once it has started: its checkpoints fit nothing else.
const IDENTITY_RULE: &str = "!has(oldSelf.status) || !has(oldSelf.status.startTime) || \
(self.spec.model == oldSelf.spec.model && self.spec.storage == oldSelf.spec.storage && has(self.spec.algorithm.grpo) == has(oldSelf.spec.algorithm.grpo))";

/// What pods were made from stays while there are any: it changes only between `Suspended` and the
/// resume.
const FROZEN_RULE: &str = "!has(oldSelf.status) || !has(oldSelf.status.startTime) || \
(oldSelf.spec.suspend && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'Suspended' && c.status == 'True')) || \
(has(self.spec.volumes) == has(oldSelf.spec.volumes) && (!has(self.spec.volumes) || self.spec.volumes == oldSelf.spec.volumes) && \
has(self.spec.reward) == has(oldSelf.spec.reward) && (!has(self.spec.reward) || self.spec.reward == oldSelf.spec.reward) && \
self.spec.dataset == oldSelf.spec.dataset && self.spec.algorithm == oldSelf.spec.algorithm && self.spec.rollout == oldSelf.spec.rollout && \
self.spec.optimizer == oldSelf.spec.optimizer && self.spec.training == oldSelf.spec.training && self.spec.weightSync == oldSelf.spec.weightSync && \
self.spec.trainer == oldSelf.spec.trainer && self.spec.coordinator == oldSelf.spec.coordinator && \
self.spec.inference.engine == oldSelf.spec.inference.engine && self.spec.inference.resources == oldSelf.spec.inference.resources && \
self.spec.inference.gpusPerReplica == oldSelf.spec.inference.gpusPerReplica && self.spec.inference.gpuResourceName == oldSelf.spec.inference.gpuResourceName && \
has(self.spec.inference.extraArgs) == has(oldSelf.spec.inference.extraArgs) && \
(!has(self.spec.inference.extraArgs) || self.spec.inference.extraArgs == oldSelf.spec.inference.extraArgs) && \
has(self.spec.inference.image) == has(oldSelf.spec.inference.image) && (!has(self.spec.inference.image) || self.spec.inference.image == oldSelf.spec.inference.image))";

/// Reinforcement-learning (or supervised) post-training of a language model: inference engines, a
/// coordinator and trainers, run until the last step is done.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "rljob.dev",
    version = "v1alpha1",
    kind = "RLJob",
    doc = "Post-training of a language model as one object: inference engines, a coordinator and trainers run until the last step is done.",
    plural = "rljobs",
    shortname = "rlj",
    category = "all",
    namespaced,
    derive = "PartialEq",
    status = "RLJobStatus",
    scale(
        spec_replicas_path = ".spec.inference.replicas",
        status_replicas_path = ".status.inference.replicas",
        label_selector_path = ".status.inference.selector"
    ),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Succeeded\")].reason"),
    printcolumn(name = "Step", type_ = "integer", json_path = ".status.progress.step"),
    printcolumn(name = "Steps", type_ = "integer", json_path = ".spec.training.steps"),
    printcolumn(name = "Reward", type_ = "number", json_path = ".status.progress.reward"),
    printcolumn(name = "Restarts", type_ = "integer", json_path = ".status.restarts"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".status.attempt", priority = 1),
    printcolumn(name = "Engines", type_ = "integer", json_path = ".status.inference.ready", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Succeeded\")].message", priority = 1),
    validation = Rule::new("oldSelf.hasValue() || self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 40").optional_old_self(true).message("metadata.name must be a DNS label of at most 40 characters that starts with a letter"),
    validation = Rule::new(IDENTITY_RULE).message("spec.model, spec.storage and the kind of spec.algorithm never change once the run has started"),
    validation = Rule::new(FROZEN_RULE).message("the run has started: to change its spec, set spec.suspend to true, wait for condition Suspended, edit and resume (one apply may do both); only suspend, inference.replicas, checkpoint, failurePolicy, drainTimeoutSeconds, activeDeadlineSeconds and ttlSecondsAfterFinished may change while it runs")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("!has(self.algorithm.grpo) || has(self.reward)").message("algorithm.grpo needs a reward"))]
#[x_kube(validation = Rule::new("!has(self.algorithm.grpo) || !has(self.dataset.evaluation) || !has(self.dataset.evaluation.completion)").message("dataset.evaluation.completion is not used by algorithm.grpo; remove it"))]
#[x_kube(validation = Rule::new("!has(self.algorithm.grpo) || self.inference.replicas >= 1").message("algorithm.grpo needs inference.replicas of at least 1"))]
#[x_kube(validation = Rule::new("self.inference.gpusPerReplica == 0 || self.weightSync.method == 'Disk'").message("learners run on CPUs: engines on GPUs need weightSync.method Disk"))]
#[x_kube(validation = Rule::new("self.weightSync.everySteps <= self.rollout.maxStaleness + 1").message("weightSync.everySteps must be at most rollout.maxStaleness + 1: the batch of the next step could not be sampled"))]
#[x_kube(validation = Rule::new("!has(self.storage.s3) || self.inference.replicas == 0 || self.weightSync.method == 'Distributed'").message("storage.s3 is no folder that engines could read weights from: set weightSync.method to Distributed, or keep the run on a volume"))]
#[x_kube(validation = Rule::new("!has(self.storage.s3) || !has(self.model.exportOf)").message("storage.s3 is no folder that engines could read a model from: put the export on a volume and name it by model.path"))]
#[x_kube(validation = Rule::new("has(self.storage.s3) || !has(self.checkpoint.restoreFrom) || !self.checkpoint.restoreFrom.startsWith('s3://')").message("checkpoint.restoreFrom in a bucket needs storage.s3, which says how it is reached"))]
pub struct RLJobSpec {
    /// Stop the run at the end of its step, write a checkpoint and free every pod; false goes on at
    /// the same step. Default false.
    #[serde(default)]
    pub suspend: bool,

    /// The controller that acts on this object; others leave it alone. Immutable. Default
    /// `rljob.dev/operator`.
    #[serde(default = "managed_by")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("spec.managedBy is immutable"))]
    #[schemars(length(min = 1, max = 63))]
    pub managed_by: String,

    /// The model to train.
    pub model: ModelSpec,

    /// Volumes mounted into every role's pods, for models and data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub volumes: Vec<VolumeSpec>,

    /// Where the run directory (`<namespace>/<name>`: journal, checkpoints, exports, metrics) is
    /// kept. `rljob run` uses its `--dir` instead, but for `s3` with `--use-bucket`.
    pub storage: StorageSpec,

    /// Training and evaluation data.
    pub dataset: DatasetSpec,

    /// How a completion is scored. Needed by `grpo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<RewardSpec>,

    /// What is optimised. Exactly one algorithm.
    pub algorithm: AlgorithmSpec,

    /// How completions are sampled.
    #[serde(default)]
    pub rollout: RolloutSpec,

    /// AdamW and its learning-rate schedule.
    #[serde(default)]
    pub optimizer: OptimizerSpec,

    /// Number of steps, batching and numerics.
    pub training: TrainingSpec,

    /// The inference engines.
    #[serde(default)]
    pub inference: InferenceSpec,

    /// The trainer pods and the learner processes in them.
    #[serde(default)]
    pub trainer: TrainerSpec,

    /// The coordinator pod.
    #[serde(default)]
    pub coordinator: CoordinatorSpec,

    /// How new weights reach the engines.
    #[serde(default)]
    pub weight_sync: WeightSyncSpec,

    /// When checkpoints are written and how many are kept.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,

    /// What follows from failures: rules, restarts, hangs.
    #[serde(default)]
    pub failure_policy: FailurePolicy,

    /// Seconds that a suspended job may take to finish its step and write a checkpoint before its
    /// pods are removed. Default 300.
    #[serde(default = "drain_timeout_seconds")]
    #[schemars(range(min = 1, max = 86400))]
    pub drain_timeout_seconds: u32,

    /// Seconds that the run may take from its start, or from its last resume, before it fails with
    /// reason DeadlineExceeded. Checkpoints stay. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub active_deadline_seconds: Option<u32>,

    /// Seconds after the run's end in which its children (StatefulSets, Services, ConfigMap,
    /// Secret, policies) are kept; then they are removed. The RLJob and the run directory stay.
    /// Default for as long as the RLJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<u32>,
}

fn managed_by() -> String {
    crate::names::MANAGED_BY.to_owned()
}

fn drain_timeout_seconds() -> u32 {
    300
}

/// How new weights reach the engines.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightSyncSpec {
    /// `Disk`: the learner writes a Hugging Face folder to the run directory and engines read it.
    /// `Distributed`: learners broadcast to each engine in a group of its own (Gloo on CPU).
    /// Default Disk.
    #[serde(default)]
    pub method: WeightSyncMethod,
    /// Steps between publications; at most `rollout.maxStaleness` + 1. Default 1.
    #[serde(default = "sync_every_steps")]
    #[schemars(range(min = 1, max = 65))]
    pub every_steps: u32,
}

fn sync_every_steps() -> u32 {
    1
}

impl Default for WeightSyncSpec {
    fn default() -> Self {
        Self { method: WeightSyncMethod::default(), every_steps: sync_every_steps() }
    }
}

/// How new weights reach the engines.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum WeightSyncMethod {
    /// Through the run directory.
    #[default]
    Disk,
    /// By broadcast from a learner, one group per engine.
    Distributed,
}

/// When checkpoints are written and how many are kept.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointSpec {
    /// Steps between checkpoints; the last step always writes one. Default 20.
    #[serde(default = "checkpoint_every_steps")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub every_steps: u32,
    /// Complete checkpoints kept; older ones are removed. Default 3.
    #[serde(default = "keep_last")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_last: u32,
    /// Steps between exports of the model while training goes on, each a Hugging Face folder
    /// `exports/step-N` of the run directory that is complete once `complete.json` is in it; the
    /// newest `keepLast` are kept. The last step's is `export`, whether this is set or not. Default
    /// none on the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub export_every_steps: Option<u32>,
    /// A complete checkpoint of the same model: a run that has no checkpoint of its own starts from
    /// its weights and optimizer state after step N. Either the name of another RLJob of the
    /// namespace on the same storage, whose newest checkpoint at that time is taken, once and for
    /// all; or a folder `step-N.attempt-K` as the pods see it, with `storage.s3` also
    /// `s3://bucket/…/step-N.attempt-K` of a bucket on the same server. `rljob run` resolves a
    /// relative path against the job file. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 4096),
        regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$|(^|/)step-[0-9]+\\.attempt-[0-9]+/?$")
    )]
    pub restore_from: Option<String>,
}

impl CheckpointSpec {
    /// The job whose newest checkpoint the run starts from, if `restoreFrom` names one and no
    /// folder.
    pub fn restored_job(&self) -> Option<&str> {
        // The folder of a checkpoint has a dot in its name, that of no job has.
        self.restore_from.as_deref().filter(|from| !from.contains(['/', '.']))
    }
}

fn checkpoint_every_steps() -> u32 {
    20
}

fn keep_last() -> u32 {
    3
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            every_steps: checkpoint_every_steps(),
            keep_last: keep_last(),
            export_every_steps: None,
            restore_from: None,
        }
    }
}
