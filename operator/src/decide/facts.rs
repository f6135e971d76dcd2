//! Inputs of decisions and of the status, for a cluster and for local runs alike.

use jiff::Timestamp;
use rljob_crds::failure_policy::FailureRole;
use rljob_crds::names::{REASON_AWAITING_DELETION, REASON_FOREIGN_OBJECT, REASON_INVALID_SPEC};
use rljob_crds::status::{Failure, Incident};
use rljob_protocol::desired::{EngineEndpoint, SupervisorIdentity, VerifierEndpoint};
use rljob_protocol::status::CoordinatorStatus;

use super::decision::Outcome;

/// The state of a run. `incidents` and `exit` only reach the status; no decision depends on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// `spec.suspend`; in local runs, whether Ctrl-C was pressed.
    pub suspend: bool,
    /// The job's place in a queue of Kueue; `None` if it is not queued.
    pub queue: Option<Queue>,
    /// Generation of the desired state with the newest `suspend`. A `Drained` report counts only
    /// for this generation.
    pub generation: i64,
    /// The record of earlier passes in the status.
    pub recorded: Recorded,
    /// Epoch of the coordinator that exists now, from [`assign_epoch`](super::assign_epoch).
    pub epoch: Epoch,
    /// The newest status of the coordinator, if it has answered. See [`Facts::report`].
    pub coordinator: Option<CoordinatorStatus>,
    /// Identity of the coordinator that exists now: the pod's UID, or the process's number and
    /// start time.
    pub coordinator_identity: Option<String>,
    /// Whether the coordinator has an address and this operator has not asked it yet.
    pub coordinator_unasked: bool,
    /// Set while the coordinator does not answer, although it has an address.
    pub silence: Option<Silence>,
    /// Termination message of a coordinator that found another run in the run directory.
    pub directory_in_use: Option<String>,
    /// Causes that keep pods from running, one of each role, those that need the user first.
    pub waiting: Vec<Waiting>,
    /// Disruptions of pods.
    pub incidents: Vec<Incident>,
    /// The newest unexpected exit of a container.
    pub exit: Option<Failure>,
    /// The newest failure of each container, by role and name.
    pub exits: Vec<Exit>,
    /// The `exits` since the failure rules in force were set.
    pub exits_under_rules: Vec<Exit>,
    /// Digest of the failure rules of the spec; none without rules.
    pub rules_digest: Option<String>,
    /// A request between this operator and the coordinator that one of the two cannot serve.
    pub unsupported: Option<String>,
    /// What keeps the operator from creating and changing the job's objects.
    pub obstacle: Option<Obstacle>,
    /// Time since which an engine is up, and could hold weights.
    pub engine_up_since: Option<Timestamp>,
    /// Every engine that exists and is not about to be deleted.
    pub engines: Vec<EngineEndpoint>,
    /// Those that only evaluate.
    pub evaluation_engines: Vec<EngineEndpoint>,
    /// Those that serve the reward model.
    pub reward_engines: Vec<EngineEndpoint>,
    /// Those that serve the teacher.
    pub teacher_engines: Vec<EngineEndpoint>,
    /// Every verifier pod that serves; empty in local runs.
    pub verifiers: Vec<VerifierEndpoint>,
    /// Every trainer pod that exists; empty in local runs.
    pub supervisors: Vec<SupervisorIdentity>,
    pub roles: Roles,
}

impl Facts {
    /// Whether the run must drain and have no pods: it is suspended, or has no quota.
    pub fn must_stop(&self) -> bool {
        self.suspend || self.hold().is_some()
    }

    /// Why the queue lets the job have no pods.
    pub fn hold(&self) -> Option<&str> {
        self.queue.as_ref()?.hold.as_deref()
    }

    /// The coordinator's report, if the coordinator acts under the epoch that it was assigned.
    pub fn report(&self) -> Option<&CoordinatorStatus> {
        self.coordinator.as_ref().filter(|status| status.epoch == Some(self.epoch.number))
    }

    /// The coordinator's report, or that of one that cannot open the run yet, which acts under no
    /// epoch: of the latter, only the failure of the storage counts.
    pub fn storage_report(&self) -> Option<&CoordinatorStatus> {
        let opening = || self.coordinator.as_ref().filter(|status| status.epoch.is_none());
        self.report().or_else(opening)
    }
}

/// The place of a job in a queue of Kueue.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Queue {
    /// Why the job may have no pods, in one line; `None` while it is admitted.
    pub hold: Option<String>,
    /// Settings that have no effect until the job is queued again.
    pub ignored: Vec<String>,
}

/// What keeps the operator from creating and changing the job's objects until the user acts, or the
/// garbage collector has deleted those of a deleted job. The rest of a pass continues: pods are
/// watched, drained and released, and the run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// CamelCase: `InvalidSpec`, `ForeignObject`, `AwaitingDeletion`, `ChildRejected` or
    /// `PodsCannotStart`.
    pub reason: &'static str,
    /// One line for the user.
    pub message: String,
}

impl Obstacle {
    /// Other owners have objects (`Kind name`) with names that the job needs.
    pub fn foreign_objects(names: &[String]) -> Option<Self> {
        (!names.is_empty()).then(|| Self {
            reason: REASON_FOREIGN_OBJECT,
            message: format!(
                "the job needs these names, and other owners have objects with them: {}; \
                 rename the job or delete the objects",
                names.join(", ")
            ),
        })
    }

    /// A deleted job of the same name has left these children (`Kind name`).
    pub fn leftovers(names: &[String]) -> Option<Self> {
        (!names.is_empty()).then(|| Self {
            reason: REASON_AWAITING_DELETION,
            message: format!(
                "waiting until Kubernetes has deleted the objects of a deleted RLJob of this \
                 name: {}",
                names.join(", ")
            ),
        })
    }

    /// Whether no object may be created or changed. A rejected child and a pod are tried again.
    pub fn is_blocking(&self) -> bool {
        [REASON_INVALID_SPEC, REASON_FOREIGN_OBJECT, REASON_AWAITING_DELETION]
            .contains(&self.reason)
    }
}

/// Why a pod does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The pod or StatefulSet.
    pub name: String,
    /// CamelCase: the kubelet's, the scheduler's or the controller's reason.
    pub reason: String,
    /// One line with name, reason and detail.
    pub message: String,
    /// Whether only a change by the user resolves it.
    pub needs_user: bool,
}

/// A coordinator that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Time of the first request without an answer.
    pub since: Timestamp,
    /// The failure of the newest request, in one line.
    pub error: String,
    /// Restarts of its container since its last answer.
    pub restarts: u32,
}

/// A fencing number and its holder. Recorded before the coordinator receives it, so that no two
/// coordinators act under the same number.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Epoch {
    /// 0 before the first coordinator.
    pub number: u64,
    /// Identity of the coordinator that holds it.
    pub holder: Option<String>,
}

/// The record of earlier passes in the status.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Recorded {
    /// Whether children were ever created.
    pub started: bool,
    /// Whether a coordinator ever reported.
    pub reported: bool,
    /// The end of the run; final unless `training.steps` is raised.
    pub outcome: Option<Outcome>,
    /// Steps of the run as of the last report.
    pub total_steps: Option<u32>,
    /// Completed steps as of the last report, and the time of their last change.
    pub progress: Option<(u32, Timestamp)>,
    /// Start or last resume of the run.
    pub active_since: Option<Timestamp>,
    /// First time since then at which the run trained.
    pub training_since: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    /// Deadline of the drain in progress.
    pub drain_deadline: Option<Timestamp>,
    pub epoch: Epoch,
    /// The log of incidents.
    pub incidents: Vec<Incident>,
}

/// Counts of every role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Roles {
    pub inference: RoleCounts,
    /// Engines that only evaluate.
    pub evaluation: RoleCounts,
    /// Engines that serve the reward model.
    pub reward: RoleCounts,
    /// Engines that serve the teacher.
    pub teacher: RoleCounts,
    /// 0 or 1.
    pub coordinator: RoleCounts,
    /// Supervisors.
    pub trainer: RoleCounts,
    /// Supervisors of the group of `trainer.groups`.
    pub group: RoleCounts,
    pub verifier: RoleCounts,
}

impl Roles {
    /// The counts of all roles.
    pub fn all(&self) -> [RoleCounts; 8] {
        let Self { inference, evaluation, reward, teacher, coordinator, trainer, group, verifier } =
            *self;
        [inference, evaluation, reward, teacher, coordinator, trainer, group, verifier]
    }
}

/// Pods, or processes, of one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RoleCounts {
    /// Replicas that the children of this role request now; 0 before they are created and after
    /// they are released.
    pub wanted: i32,
    /// Pods that exist, terminating ones included.
    pub existing: i32,
    pub ready: i32,
}

impl RoleCounts {
    /// The counts of two roles together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            wanted: self.wanted.saturating_add(other.wanted),
            existing: self.existing.saturating_add(other.existing),
            ready: self.ready.saturating_add(other.ready),
        }
    }
}

/// The exit of a container, as its kubelet reports it, or of a process of a local run. Exits of
/// terminating pods are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub role: FailureRole,
    /// The pod or process.
    pub name: String,
    /// CamelCase, such as `Error` or `OOMKilled`.
    pub reason: String,
    /// 128 + n for signal n.
    pub exit_code: i32,
    /// Termination message; may be empty.
    pub message: String,
}
