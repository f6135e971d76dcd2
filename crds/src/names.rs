//! Labels, condition types, reasons, ports and file names that more than one process knows.

/// API group.
pub const GROUP: &str = "rljob.dev";
/// Value of `spec.managedBy` that the operator acts on, and its field manager.
pub const MANAGED_BY: &str = "rljob.dev/operator";
/// Label: the job's name.
pub const LABEL_JOB: &str = "rljob.dev/job";
/// Label: `inference`, `evaluation`, `reward`, `teacher`, `coordinator`, `trainer` or `verifier`.
pub const LABEL_ROLE: &str = "rljob.dev/role";

/// Recommended label of Kubernetes: the application.
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// Recommended label of Kubernetes: the job.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
/// Recommended label of Kubernetes: the role.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// Recommended label of Kubernetes: the managing program.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`LABEL_NAME`].
pub const APP: &str = "rljob";
/// Annotation of a StatefulSet: its pod template, as rendered at the start or the last resume.
/// Applies keep it until the next resume.
pub const ANNOTATION_TEMPLATE: &str = "rljob.dev/pod-template";
/// Annotation of a ConfigMap: SHA-256 of its run configuration, which detects changes by others.
pub const ANNOTATION_DIGEST: &str = "rljob.dev/sha256";
/// Annotation of pods that serve metrics with TLS, `https`: monitors of pods select the scheme.
pub const ANNOTATION_METRICS_SCHEME: &str = "rljob.dev/metrics-scheme";

/// Condition: summary of the run. Its reason is the STATUS column.
pub const CONDITION_SUCCEEDED: &str = "Succeeded";
/// Condition for GitOps tools: the observed state matches the spec.
pub const CONDITION_READY: &str = "Ready";
/// Condition for GitOps tools: the operator works towards the spec.
pub const CONDITION_RECONCILING: &str = "Reconciling";
/// Condition for GitOps tools: no progress without a change by a user.
pub const CONDITION_STALLED: &str = "Stalled";
/// Condition: suspended, and all pods are deleted.
pub const CONDITION_SUSPENDED: &str = "Suspended";
/// Condition: every engine is up.
pub const CONDITION_INFERENCE_READY: &str = "InferenceReady";
/// Condition: every trainer pod is up.
pub const CONDITION_TRAINER_READY: &str = "TrainerReady";
/// Condition: every engine that only evaluates is up; absent in jobs without them.
pub const CONDITION_EVALUATION_READY: &str = "EvaluationReady";
/// Condition: every engine of the reward model is up; absent in jobs without them.
pub const CONDITION_REWARD_READY: &str = "RewardReady";
/// Condition: every engine of the teacher is up; absent in jobs without them.
pub const CONDITION_TEACHER_READY: &str = "TeacherReady";
/// Condition: every verifier pod is up; absent in jobs without them.
pub const CONDITION_VERIFIERS_READY: &str = "VerifiersReady";
/// Condition: some engine holds the current weights.
pub const CONDITION_WEIGHTS_SYNCED: &str = "WeightsSynced";
/// Condition: a complete checkpoint exists.
pub const CONDITION_CHECKPOINT_AVAILABLE: &str = "CheckpointAvailable";
/// Condition: False if a setting of the spec has no effect, or one that is rarely meant; absent
/// otherwise.
pub const CONDITION_SETTINGS_EFFECTIVE: &str = "SettingsEffective";
/// Condition: False while an experiment tracker does not take the metrics; absent otherwise.
pub const CONDITION_METRICS_TRACKED: &str = "MetricsTracked";

/// Reason: processes are starting.
pub const REASON_STARTING: &str = "Starting";
/// Reason: learners are restarting.
pub const REASON_RESTARTING: &str = "Restarting";
/// The coordinator does not answer the operator.
pub const REASON_COORDINATOR_UNRESPONSIVE: &str = "CoordinatorUnresponsive";
/// Pods cannot start until the user changes something: an image, a quota, a Secret.
pub const REASON_PODS_CANNOT_START: &str = "PodsCannotStart";
/// No step is completed for longer than steps take.
pub const REASON_NO_PROGRESS: &str = "NoProgress";
/// The storage of the run fails the coordinator's writes.
pub const REASON_STORAGE_UNAVAILABLE: &str = "StorageUnavailable";
/// A verifier is down, and sampling waits for it.
pub const REASON_REWARD_UNAVAILABLE: &str = "RewardUnavailable";
/// The coordinator restarted too often without an answer.
pub const REASON_COORDINATOR_FAILED: &str = "CoordinatorFailed";
/// Reason: the run is training.
pub const REASON_RUNNING: &str = "Running";
/// Reason: suspended; the current step is completed first.
pub const REASON_DRAINING: &str = "Draining";
/// Reason: suspended; pods are being deleted.
pub const REASON_RELEASING: &str = "Releasing";
/// Reason: suspended by the user.
pub const REASON_SUSPENDED: &str = "Suspended";
/// Reason: the job waits in a queue of Kueue, without pods.
pub const REASON_QUEUED: &str = "Queued";
/// Reason: not suspended.
pub const REASON_NOT_SUSPENDED: &str = "NotSuspended";
/// Reason: the last step is complete.
pub const REASON_COMPLETED: &str = "Completed";
/// Reason: the run failed.
pub const REASON_FAILED: &str = "Failed";
/// Reason: the run did not train within `spec.startupDeadlineSeconds`.
pub const REASON_STARTUP_DEADLINE_EXCEEDED: &str = "StartupDeadlineExceeded";
/// Reason: the run took longer than `spec.activeDeadlineSeconds`.
pub const REASON_DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// Reason: the run directory belongs to another run.
pub const REASON_RUN_DIRECTORY_IN_USE: &str = "RunDirectoryInUse";
/// Reason: the spec cannot run; the message lists every problem.
pub const REASON_INVALID_SPEC: &str = "InvalidSpec";
/// Reason: an object of another owner has the name of a child.
pub const REASON_FOREIGN_OBJECT: &str = "ForeignObject";
/// Reason: children of a deleted RLJob of the same name still exist.
pub const REASON_AWAITING_DELETION: &str = "AwaitingDeletion";
/// Reason: a process of another release cannot serve a request.
pub const REASON_PROTOCOL_UNSUPPORTED: &str = "ProtocolUnsupported";
/// Reason: the API server rejected a child.
pub const REASON_CHILD_REJECTED: &str = "ChildRejected";
/// Reason: no problem.
pub const REASON_AS_EXPECTED: &str = "AsExpected";
/// Reason of a part's condition: all of its pods are ready.
pub const REASON_PODS_READY: &str = "PodsReady";
/// Reason of a part's condition: some of its pods are not ready.
pub const REASON_PODS_NOT_READY: &str = "PodsNotReady";
/// Reason of a part's condition: no pods are wanted.
pub const REASON_NOT_WANTED: &str = "NotWanted";
/// Reason: some engine holds the current weights.
pub const REASON_SYNCED: &str = "Synced";
/// Reason: no engine holds the current weights yet.
pub const REASON_SYNCING: &str = "Syncing";
/// Reason: no engine has held the current weights for too long.
pub const REASON_OVERDUE: &str = "Overdue";
/// Reason: not observed yet.
pub const REASON_UNKNOWN: &str = "Unknown";
/// Reason: a complete checkpoint exists.
pub const REASON_CHECKPOINT_COMPLETE: &str = "CheckpointComplete";
/// Reason: settings without effect, which the message lists.
pub const REASON_WITHOUT_EFFECT: &str = "WithoutEffect";
/// Reason: an experiment tracker fails, for the cause in the message.
pub const REASON_TRACKER_UNAVAILABLE: &str = "TrackerUnavailable";
/// Reason: no checkpoint has been completed yet.
pub const REASON_NO_CHECKPOINT: &str = "NoCheckpoint";

/// Incident: the pod was evicted through the eviction API, as `kubectl drain` does.
pub const INCIDENT_EVICTED: &str = "Evicted";
/// Incident: the scheduler preempted the pod for one of higher priority.
pub const INCIDENT_PREEMPTED: &str = "Preempted";
/// Incident: the pod's node is not ready.
pub const INCIDENT_NODE_NOT_READY: &str = "NodeNotReady";
/// Incident: the pod's node is ready and has a taint that the pod does not tolerate.
pub const INCIDENT_NODE_TAINTED: &str = "NodeTainted";
/// Incident: the pod's node was deleted.
pub const INCIDENT_NODE_GONE: &str = "NodeGone";
/// Incident: kubelet terminated the pod because of node pressure or a shutdown.
pub const INCIDENT_ENDED_BY_KUBELET: &str = "EndedByKubelet";
/// Incident: the pod is stuck in termination; the operator force-deletes it.
pub const INCIDENT_POD_LOST: &str = "PodLost";
/// Incident: the engine is unresponsive while its container runs; the operator deletes its pod.
pub const INCIDENT_ENGINE_HUNG: &str = "EngineHung";
/// Incident: another pod of the same engine was lost or restarted; the operator deletes this pod.
pub const INCIDENT_ENGINE_INCOMPLETE: &str = "EngineIncomplete";
/// Incident: a GPU of the pod reported a critical Xid error or an uncorrectable memory error.
pub const INCIDENT_GPU_FAULT: &str = "GpuFault";
/// Incident: the pod was deleted by a user or another controller.
pub const INCIDENT_DELETED: &str = "Deleted";
/// Incident: the pod disappeared for an unknown reason.
pub const INCIDENT_VANISHED: &str = "Vanished";

/// Failure: an engine process exited.
pub const FAILURE_ENGINE_EXITED: &str = "EngineExited";
/// Failure: a coordinator process exited.
pub const FAILURE_COORDINATOR_EXITED: &str = "CoordinatorExited";
/// Failure: the container of programs of a verifier pod exited.
pub const FAILURE_VERIFIER_EXITED: &str = "VerifierExited";
/// Failure: a supervisor process exited.
pub const FAILURE_SUPERVISOR_EXITED: &str = "SupervisorExited";
/// Failure: the kernel killed a process for its memory use; the reason that kubelet reports.
pub const FAILURE_OUT_OF_MEMORY: &str = "OOMKilled";

/// Readiness gate of an engine's pod: its container holds weights of the run.
pub const GATE_WEIGHTS_SYNCED: &str = "rljob.dev/weights-synced";

/// HTTP port of the coordinator.
pub const COORDINATOR_PORT: u16 = 8080;
/// HTTP port of an engine.
pub const ENGINE_PORT: u16 = 30000;
/// Port of the first pod of an engine at which its other pods join its process group.
pub const ENGINE_GROUP_PORT: u16 = 30001;
/// Port of the health endpoint of a supervisor.
pub const SUPERVISOR_PORT: u16 = 8081;
/// Port of a verifier pod.
pub const VERIFIER_PORT: u16 = 8083;
/// Port of the dashboard on loopback addresses of the coordinator's pod.
pub const DASHBOARD_PORT: u16 = 8082;
/// Environment variable with the address of the dashboard. Coordinators of earlier releases ignore
/// it.
pub const DASHBOARD_VARIABLE: &str = "RLJOB_DASHBOARD";

/// Mount path of the volume of run directories.
pub const STORAGE_MOUNT: &str = "/rljob/runs";
/// Mount path of the run configuration (`run.json`).
pub const CONFIG_MOUNT: &str = "/rljob/config";
/// Mount path of the tokens, one file each.
pub const TOKENS_MOUNT: &str = "/rljob/tokens";
/// In the run directory: the folder of repositories downloaded from the Hugging Face Hub.
pub const HUB_DIR: &str = "hub";
/// Mount path of the access tokens of the Hugging Face Hub, one file each: [`HUB_MODEL_TOKEN`],
/// [`HUB_TRAIN_TOKEN`] and [`HUB_EVALUATION_TOKEN`], with `-INDEX` for parts of
/// mixtures and for suites.
pub const HUB_TOKENS_MOUNT: &str = "/rljob/hub";
/// Token file of `model.huggingFace`.
pub const HUB_MODEL_TOKEN: &str = "model";
/// Token file of `dataset.train.huggingFace`.
pub const HUB_TRAIN_TOKEN: &str = "train";
/// Token file of `dataset.evaluation.huggingFace`.
pub const HUB_EVALUATION_TOKEN: &str = "evaluation";
/// Mount path of the tokens for servers outside the job: a file `NAME/KEY` for each key of a
/// Secret.
pub const SECRETS_MOUNT: &str = "/rljob/secrets";
/// Environment variable with the folder of these files in place of [`SECRETS_MOUNT`].
pub const SECRETS_VARIABLE: &str = "RLJOB_SECRETS";
/// Name of the engine container.
pub const CONTAINER_ENGINE: &str = "engine";
/// Name of the coordinator container.
pub const CONTAINER_COORDINATOR: &str = "coordinator";
/// Name of the container that runs programs of rewards, tools and agents: of the coordinator's pod,
/// or of a verifier pod.
pub const CONTAINER_REWARDS: &str = "rewards";
/// Name of the container of a verifier pod that connects the coordinator with the reward runner.
pub const CONTAINER_BRIDGE: &str = "bridge";
/// Name of the init container that copies the reward runner into a pod whose image may lack it.
pub const CONTAINER_RUNNER: &str = "reward-runner";
/// Mount path of the copy.
pub const RUNNER_MOUNT: &str = "/rljob/runner";
/// Mount path of the folder with the socket of the reward runner.
pub const REWARDS_MOUNT: &str = "/rljob/rewards";
/// Socket of the reward runner in its folder.
pub const REWARDS_SOCKET: &str = "socket";
/// Name of the trainer container.
pub const CONTAINER_TRAINER: &str = "trainer";
/// Mount path of the keys of the bucket, one file each.
pub const S3_KEYS_MOUNT: &str = "/rljob/s3";
/// Key of a bucket's Secret: access key id.
pub const S3_ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
/// Key of a bucket's Secret: secret access key.
pub const S3_SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
/// Key of a bucket's Secret: session token of temporary credentials. Optional.
pub const S3_SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
/// Exit code of a coordinator whose run directory belongs to another run (EX_CONFIG of sysexits.h):
/// a restart cannot help.
pub const EXIT_RUN_DIRECTORY_IN_USE: i32 = 78;
/// Exit code of a process that cannot read the run configuration of another release (`EX_PROTOCOL`
/// of sysexits.h): a restart cannot help.
pub const EXIT_PROTOCOL_UNSUPPORTED: i32 = 76;
/// Exit code of a learner whose model or checkpoint cannot be used (EX_DATAERR of sysexits.h):
/// a restart cannot help.
pub const EXIT_LEARNER_INPUT: i32 = 65;
/// Exit code of a learner that lost a peer of its group, which is rarely the first cause
/// (`EX_UNAVAILABLE` of sysexits.h).
pub const EXIT_LEARNER_PEER: i32 = 69;

/// File name of the run configuration.
pub const RUN_CONFIG_FILE: &str = "run.json";

/// Token of requests from the operator, or from `rljob run`, to the coordinator.
pub const TOKEN_OPERATOR: &str = "operator";
/// Token of requests from supervisors and learners to the coordinator.
pub const TOKEN_LEARNER: &str = "learner";
/// Token of the generate routes of an engine.
pub const TOKEN_ENGINE_API: &str = "engine-api";
/// Token of the control routes of an engine.
pub const TOKEN_ENGINE_ADMIN: &str = "engine-admin";

/// In the folder of tokens: configuration file of SGLang with both engine tokens, because SGLang
/// cannot read keys from separate files.
pub const SGLANG_CONFIG_FILE: &str = "sglang.yaml";

/// In the run directory: the journal.
pub const JOURNAL_FILE: &str = "journal.sqlite";
/// In the run directory: the folder of checkpoints, `step-N.attempt-K` each.
pub const CHECKPOINTS_DIR: &str = "checkpoints";
/// In the run directory: the exported Hugging Face folder, complete when it contains
/// [`EXPORT_COMPLETE_FILE`].
pub const EXPORT_DIR: &str = "export";
/// In the run directory: intermediate exports, `step-N` each, complete like [`EXPORT_DIR`].
pub const EXPORTS_DIR: &str = "exports";
/// Marker of a complete exported folder; written last.
pub const EXPORT_COMPLETE_FILE: &str = "complete.json";
/// Folder of an export with the adapters of `spec.lora`, in the format of PEFT.
pub const EXPORT_ADAPTER_DIR: &str = "adapter";
/// In the run directory: folders of published weights for weight sync by disk.
pub const WEIGHTS_DIR: &str = "weights";
/// In a folder of published weights: elements that an engine must hold that has read it.
pub const WEIGHT_PROBES_FILE: &str = "probes.json";
/// In the run directory: folders of weights that evaluations on separate engines need,
/// `step-N.attempt-K` each.
pub const EVALUATION_WEIGHTS_DIR: &str = "evaluation-weights";
/// In the run directory: one JSON line per step.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// In the run directory: one JSON line per evaluation.
pub const EVALUATIONS_FILE: &str = "evaluations.jsonl";
/// In the run directory: completions of the newest evaluations, one JSON line each.
pub const EVALUATION_SAMPLES_FILE: &str = "evaluation-samples.jsonl";
/// In the run directory: results of the newest evaluations by prompt, one JSON line each.
pub const EVALUATION_PROMPTS_FILE: &str = "evaluation-prompts.jsonl";
/// In the run directory: some samples of each step, one JSON line each.
pub const SAMPLES_FILE: &str = "samples.jsonl";
/// In the run directory: what processes did in the newest steps, one JSON line per step.
pub const TRACES_FILE: &str = "traces.jsonl";
/// In the run directory: dataset rows whose reference answers no reward can compare, one JSON line
/// each.
pub const DROPPED_ROWS_FILE: &str = "dropped-rows.jsonl";
/// The JSONL files of a run directory.
pub const JSONL_FILES: [&str; 7] = [
    METRICS_FILE,
    EVALUATIONS_FILE,
    SAMPLES_FILE,
    EVALUATION_SAMPLES_FILE,
    EVALUATION_PROMPTS_FILE,
    DROPPED_ROWS_FILE,
    TRACES_FILE,
];
/// In the run directory: event files of TensorBoard, which reads files with `tfevents` in their
/// names: metrics of steps, then those of evaluations.
pub const TENSORBOARD_FILES: [&str; 2] = [
    "tensorboard/train/events.out.tfevents.rljob",
    "tensorboard/evaluation/events.out.tfevents.rljob",
];
/// Label of an RLJob: its LocalQueue of Kueue.
pub const LABEL_QUEUE: &str = "kueue.x-k8s.io/queue-name";
