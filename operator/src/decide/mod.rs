//! Facts and time → [`Decision`]. Pure; knows roles and facts, not pods and not processes.
//!
//! ```text
//!  finished ─▶ directory ─▶ suspended ─▶ failed ─▶ succeeded ─▶ rules ─▶ deadline ─▶ starting ─▶ running      the first policy that answers, decides
//! ```
//!
//! What is true is what was recorded in status, what exists, and what the coordinator reports; no
//! edge is remembered, so a pass that was missed changes nothing. Restarts of learners are the
//! coordinator's: it restarts them within the budget that [`desired_for_coordinator`] hands it, and
//! says `Failed` when it is spent.

use jiff::Timestamp;
use rljob_crds::status::{Failure, Incident};
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::CoordinatorStatus;

use crate::validate::ValidatedJob;

mod coordinator;
mod deadline;
mod directory;
mod failed;
mod finished;
mod rules;
mod running;
mod scaling;
mod starting;
mod succeeded;
mod suspended;

pub use coordinator::{Epoch, assign_epoch, desired_for_coordinator};
pub use deadline::{deadline, removal};
pub use rules::Exit;

/// Everything that a decision rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// `spec.suspend`; in local runs, whether Ctrl-C was pressed.
    pub suspend: bool,
    /// Generation of the desired state that the newest `suspend` belongs to; a `Drained` counts
    /// only if the coordinator reports it for this generation.
    pub generation: i64,
    /// What was recorded in status by earlier passes.
    pub recorded: Recorded,
    /// The newest status of the coordinator, if it has answered. One that acts under another epoch
    /// than the recorded one is not listened to.
    pub coordinator: Option<CoordinatorStatus>,
    /// Identity of the coordinator that exists now: the pod's UID, or the process's number and
    /// start. None while there is none.
    pub coordinator_identity: Option<String>,
    /// What the coordinator said when it found that the run directory belongs to another run.
    pub directory_in_use: Option<String>,
    /// Why something that is wanted cannot be placed, in one line; it may become possible by
    /// itself.
    pub blocked: Option<String>,
    /// What is happening to parts of the run from outside. For people: nothing is decided by it.
    pub incidents: Vec<Incident>,
    /// The newest end of a process that nobody asked for, as the machine it ran on tells it. For
    /// people too.
    pub exit: Option<Failure>,
    /// How containers ended that failed by themselves, by role and name; of each its newest end.
    pub exits: Vec<Exit>,
    /// Every engine that exists.
    pub engines: Vec<EngineEndpoint>,
    /// The roles' counts.
    pub roles: Roles,
}

/// What earlier passes recorded in status.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Recorded {
    /// Whether children were ever created.
    pub started: bool,
    /// Whether a coordinator ever reported.
    pub reported: bool,
    /// How the run ended; final.
    pub outcome: Option<Outcome>,
    /// Since when the run is active: its start or its last resume.
    pub active_since: Option<Timestamp>,
    /// When the run ended.
    pub completed_at: Option<Timestamp>,
    /// When the drain in progress is cut short.
    pub drain_deadline: Option<Timestamp>,
    /// Fencing number and the coordinator that holds it.
    pub epoch: Epoch,
}

/// Counts of every role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Roles {
    /// The inference engines.
    pub inference: RoleCounts,
    /// The coordinator, 0 or 1.
    pub coordinator: RoleCounts,
    /// The trainers (supervisors).
    pub trainer: RoleCounts,
}

/// Pods, or processes, of one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RoleCounts {
    /// What the children of this role are set to now; 0 before they are created and after they are
    /// released.
    pub wanted: i32,
    /// Pods that exist, terminating ones included.
    pub existing: i32,
    /// Pods that are ready.
    pub ready: i32,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it succeeded.
    pub succeeded: bool,
    /// CamelCase reason, shown in the STATUS column: `Completed` or `Failed`.
    pub reason: String,
    /// One line for a person.
    pub message: String,
}

/// Why a run makes no steps yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Processes are being started, or the coordinator waits for them.
    Starting,
    /// The learners are being started again after a failure or a loss.
    Restarting,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Every role is to exist; steps are not made yet.
    Start(Wait),
    /// Every role is to exist; steps are being made.
    Run,
    /// Suspended: the coordinator is to drain, until the deadline.
    Drain {
        /// When the drain is cut short. Recorded in status, so that it does not move.
        deadline: Timestamp,
    },
    /// Suspended: drained, or overdue, or nothing to drain; every pod or process is to go.
    Release,
    /// Suspended, and nothing is left.
    Suspended,
    /// The run has ended: record the outcome, then let every pod or process go.
    Finish(Outcome),
    /// The run ended before; nothing is to run.
    Finished(Outcome),
}

/// What is to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing.
    Nothing,
    /// The roles that ask for no GPUs.
    WithoutGpus,
    /// Every role.
    Everything,
    /// Every role, with so many engines: some are to leave as soon as the coordinator has heard of
    /// it.
    EverythingWith {
        /// Engines.
        engines: i32,
    },
}

impl Decision {
    /// What is to exist. GPUs are asked for when a coordinator has reported for the first time: the
    /// run directory, which the operator cannot read, may be that of a finished run whose job was
    /// made anew.
    pub fn wanted(&self, job: &ValidatedJob, facts: &Facts) -> Wanted {
        let engines = scaling::engines(job, facts);
        match self.keeps_running() {
            false => Wanted::Nothing,
            true if !facts.recorded.reported && facts.report().is_none() => Wanted::WithoutGpus,
            true if engines != job.spec.inference.replicas => Wanted::EverythingWith { engines },
            true => Wanted::Everything,
        }
    }

    /// Whether pods or processes are to exist.
    pub fn keeps_running(&self) -> bool {
        match self {
            Self::Start(_) | Self::Run | Self::Drain { .. } => true,
            Self::Release | Self::Suspended | Self::Finish(_) | Self::Finished(_) => false,
        }
    }
}

impl Facts {
    /// The coordinator's report, if the coordinator acts under the recorded epoch.
    pub fn report(&self) -> Option<&CoordinatorStatus> {
        self.coordinator.as_ref().filter(|status| status.epoch == Some(self.recorded.epoch.number))
    }
}

/// Decides: the first policy that answers.
pub fn decide(job: &ValidatedJob, facts: &Facts, now: Timestamp) -> Decision {
    finished::decide(facts)
        .or_else(|| directory::decide(facts))
        .or_else(|| suspended::decide(job, facts, now))
        .or_else(|| failed::decide(facts))
        .or_else(|| succeeded::decide(facts))
        .or_else(|| rules::decide(job, facts))
        .or_else(|| deadline::decide(job, facts, now))
        .or_else(|| starting::decide(facts))
        .unwrap_or_else(running::decide)
}

#[cfg(test)]
mod tests {
    use super::test_support::{facts, outcome};
    use super::{Decision, Wait, Wanted};
    use crate::validate::test_support::validated;

    #[test]
    fn gpus_are_asked_for_when_a_coordinator_has_reported_once() {
        let (job, mut new, start) = (validated(), facts(), Decision::Start(Wait::Starting));
        new.recorded.reported = false;
        assert_eq!(start.wanted(&job, &new), Wanted::Everything, "it reports now");
        new.coordinator = None;
        assert_eq!(start.wanted(&job, &new), Wanted::WithoutGpus);
        assert_eq!(Decision::Finished(outcome()).wanted(&job, &new), Wanted::Nothing);
        new.recorded.reported = true;
        assert_eq!(
            start.wanted(&job, &new),
            Wanted::Everything,
            "a coordinator that is away takes nothing back"
        );
        let (mut job, running) = (job, facts());
        job.spec.inference.replicas = 1;
        assert_eq!(
            Decision::Run.wanted(&job, &running),
            Wanted::Everything,
            "the coordinator has heard of it"
        );
        let unheard = super::Facts { generation: 5, ..running };
        assert_eq!(Decision::Run.wanted(&job, &unheard), Wanted::EverythingWith { engines: 2 });
    }
}

/// Facts of a run that makes steps, for the policies' table tests.
#[cfg(test)]
pub(crate) mod test_support {
    use super::*;
    use rljob_protocol::status::Phase;

    pub fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    pub fn outcome() -> Outcome {
        Outcome {
            succeeded: true,
            reason: "Completed".to_owned(),
            message: "10 steps are done and the model is exported".to_owned(),
        }
    }

    pub fn report() -> CoordinatorStatus {
        CoordinatorStatus {
            epoch: Some(3),
            generation: Some(4),
            phase: Phase::Running,
            attempt: 0,
            restarts: 0,
            last_failure: None,
            step: 7,
            total_steps: 10,
            metrics: None,
            evaluation: None,
            supervisors: vec![],
            engines: vec![],
            checkpoint: None,
        }
    }

    pub fn facts() -> Facts {
        let all = |count| RoleCounts { wanted: count, existing: count, ready: count };
        let engine = |index| EngineEndpoint {
            name: format!("sums-inference-{index}"),
            url: format!("http://sums-inference-{index}.sums-inference.lab:30000"),
        };
        Facts {
            suspend: false,
            generation: 4,
            recorded: Recorded {
                started: true,
                reported: true,
                epoch: Epoch { number: 3, holder: Some("pod-c".to_owned()) },
                ..Recorded::default()
            },
            coordinator: Some(report()),
            coordinator_identity: Some("pod-c".to_owned()),
            directory_in_use: None,
            blocked: None,
            incidents: vec![],
            exit: None,
            exits: vec![],
            engines: vec![engine(0), engine(1)],
            roles: Roles { inference: all(2), coordinator: all(1), trainer: all(1) },
        }
    }
}
