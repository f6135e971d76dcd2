//! Labels, condition types, reasons, ports and file names that more than one process knows.

/// API group.
pub const GROUP: &str = "rljob.dev";
/// Value of `spec.managedBy` that the operator acts on, and its field manager.
pub const MANAGED_BY: &str = "rljob.dev/operator";
/// Label: the job's name.
pub const LABEL_JOB: &str = "rljob.dev/job";
/// Label: `inference`, `coordinator` or `trainer`.
pub const LABEL_ROLE: &str = "rljob.dev/role";

/// Port of the coordinator's HTTP interface.
pub const COORDINATOR_PORT: u16 = 8080;
/// Port of an engine's HTTP interface.
pub const ENGINE_PORT: u16 = 30000;
/// Port of a supervisor's health endpoint.
pub const SUPERVISOR_PORT: u16 = 8081;

/// Where pods see the volume of run directories.
pub const STORAGE_MOUNT: &str = "/rljob/runs";
/// Where pods see the run configuration (`run.json`).
pub const CONFIG_MOUNT: &str = "/rljob/config";
/// Where pods see the tokens, one file each.
pub const TOKENS_MOUNT: &str = "/rljob/tokens";
/// File name of the run configuration.
pub const RUN_CONFIG_FILE: &str = "run.json";

/// Token of the operator (or `rljob run`) towards the coordinator.
pub const TOKEN_OPERATOR: &str = "operator";
/// Token of supervisors and learners towards the coordinator.
pub const TOKEN_LEARNER: &str = "learner";
/// Token for an engine's generate routes.
pub const TOKEN_ENGINE_API: &str = "engine-api";
/// Token for an engine's control routes.
pub const TOKEN_ENGINE_ADMIN: &str = "engine-admin";

/// In the run directory: the journal.
pub const JOURNAL_FILE: &str = "journal.sqlite";
/// In the run directory: the folder of checkpoints, `step-N.attempt-K` each.
pub const CHECKPOINTS_DIR: &str = "checkpoints";
/// In the run directory: the exported Hugging Face folder; complete when [`EXPORT_COMPLETE_FILE`] is in it.
pub const EXPORT_DIR: &str = "export";
/// Written last into an exported folder.
pub const EXPORT_COMPLETE_FILE: &str = "complete.json";
/// In the run directory: folders of published weights for weight sync by disk.
pub const WEIGHTS_DIR: &str = "weights";
/// In the run directory: one JSON line a step.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// In the run directory: one JSON line an evaluation.
pub const EVALUATIONS_FILE: &str = "evaluations.jsonl";
/// In the run directory: sample rollouts to read, one JSON line each.
pub const SAMPLES_FILE: &str = "samples.jsonl";
