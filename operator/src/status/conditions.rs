//! The conditions, by the truth table of the module above. An unchanged condition keeps its
//! transition time.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use rljob_crds::names::{
    CONDITION_CHECKPOINT_AVAILABLE, CONDITION_INFERENCE_READY, CONDITION_READY,
    CONDITION_RECONCILING, CONDITION_STALLED, CONDITION_SUCCEEDED, CONDITION_SUSPENDED,
    CONDITION_TRAINER_READY, CONDITION_WEIGHTS_SYNCED, INCIDENT_VANISHED, REASON_AS_EXPECTED,
    REASON_CHECKPOINT_COMPLETE, REASON_DRAINING, REASON_NO_CHECKPOINT, REASON_NOT_SUSPENDED,
    REASON_NOT_WANTED, REASON_OVERDUE, REASON_PODS_NOT_READY, REASON_PODS_READY, REASON_RELEASING,
    REASON_RESTARTING, REASON_RUNNING, REASON_STARTING, REASON_SUSPENDED, REASON_SYNCED,
    REASON_SYNCING, REASON_UNKNOWN,
};
use rljob_crds::status::RLJobStatus;
use rljob_protocol::status::EngineCondition;

use crate::decide::{Decision, Facts, RoleCounts, Wait};
use crate::validate::ValidatedJob;

/// An engine that answers but holds other weights for longer than this is a failure.
const SYNC_OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// Status of a condition.
#[derive(Clone, Copy)]
enum Is {
    True,
    False,
    Unknown,
}

impl From<bool> for Is {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// Conditions in the making: knows the old ones, so that transition times are kept.
struct Conditions<'a> {
    old: &'a RLJobStatus,
    generation: i64,
    now: Timestamp,
    list: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    fn new(old: &'a RLJobStatus, generation: i64, now: Timestamp) -> Self {
        Self { old, generation, now, list: Vec::new() }
    }

    fn old(&self, type_: &str) -> Option<&'a Condition> {
        self.old.conditions.iter().find(|condition| condition.type_ == type_)
    }

    fn set(&mut self, type_: &str, is: impl Into<Is>, reason: &str, message: impl Into<String>) {
        let status = match is.into() {
            Is::True => "True",
            Is::False => "False",
            Is::Unknown => "Unknown",
        };
        let kept = self
            .old(type_)
            .filter(|old| old.status == status)
            .map(|old| old.last_transition_time.clone());
        self.list.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            last_transition_time: kept.unwrap_or(Time(self.now)),
            observed_generation: Some(self.generation),
        });
    }

    /// The four of the truth table.
    fn summary(
        &mut self,
        succeeded: Is,
        ready: bool,
        reconciling: bool,
        stalled: bool,
        reason: &str,
        message: &str,
    ) {
        self.set(CONDITION_SUCCEEDED, succeeded, reason, message);
        self.set(CONDITION_READY, ready, reason, message);
        for (type_, is) in [(CONDITION_RECONCILING, reconciling), (CONDITION_STALLED, stalled)] {
            if is {
                self.set(type_, true, reason, message)
            } else {
                self.set(type_, false, REASON_AS_EXPECTED, "")
            }
        }
    }
}

/// Conditions after a decision.
pub(super) fn compute(
    job: &ValidatedJob,
    old: &RLJobStatus,
    facts: &Facts,
    decision: &Decision,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = Conditions::new(old, job.generation, now);
    set_summary(&mut conditions, job, facts, decision);
    set_suspended(&mut conditions, decision);
    let keeps_running = decision.keeps_running();
    for (type_, counts, wanted) in [
        (CONDITION_INFERENCE_READY, facts.roles.inference, job.spec.inference.replicas),
        (CONDITION_TRAINER_READY, facts.roles.trainer, job.spec.trainer.replicas),
    ] {
        set_role(&mut conditions, type_, counts, wanted, keeps_running);
    }
    set_weights_synced(&mut conditions, job, facts, keeps_running);
    set_checkpoint(&mut conditions, old, facts);
    conditions.list
}

/// Conditions of a job that does not get further by itself. Those of its parts are as `parts` has
/// them.
pub(super) fn stalled(
    generation: i64,
    old: &RLJobStatus,
    parts: &RLJobStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = Conditions::new(old, generation, now);
    conditions.summary(Is::False, false, false, true, reason, message);
    for type_ in [
        CONDITION_SUSPENDED,
        CONDITION_INFERENCE_READY,
        CONDITION_TRAINER_READY,
        CONDITION_WEIGHTS_SYNCED,
        CONDITION_CHECKPOINT_AVAILABLE,
    ] {
        match parts.conditions.iter().find(|condition| condition.type_ == type_) {
            Some(part) => conditions
                .list
                .push(Condition { observed_generation: Some(generation), ..part.clone() }),
            None => conditions.set(type_, Is::Unknown, REASON_UNKNOWN, "nothing is known yet"),
        }
    }
    conditions.list
}

fn set_summary(
    conditions: &mut Conditions<'_>,
    job: &ValidatedJob,
    facts: &Facts,
    decision: &Decision,
) {
    match decision {
        Decision::Start(Wait::Starting) => conditions.summary(
            Is::Unknown,
            false,
            true,
            false,
            REASON_STARTING,
            &waits_for(job, facts),
        ),
        Decision::Start(Wait::Restarting) => {
            let waits = if missing(job, facts).is_empty() {
                String::new()
            } else {
                format!("; {}", waits_for(job, facts))
            };
            let message =
                format!("the learners are being started again from the newest checkpoint{waits}");
            conditions.summary(Is::Unknown, false, true, false, REASON_RESTARTING, &message);
        }
        Decision::Run => {
            let missing = missing(job, facts);
            let without = if missing.is_empty() {
                String::new()
            } else {
                format!(" without {missing}{}", trouble(facts))
            };
            conditions.summary(
                Is::Unknown,
                true,
                false,
                false,
                REASON_RUNNING,
                &format!("steps are being made{without}"),
            );
        }
        Decision::Drain { deadline } => {
            let message = format!(
                "the step in progress is being finished and a checkpoint written, until {} at the latest",
                Seconds(*deadline)
            );
            conditions.summary(Is::Unknown, false, true, false, REASON_DRAINING, &message);
        }
        Decision::Release => conditions.summary(
            Is::Unknown,
            false,
            true,
            false,
            REASON_RELEASING,
            "the pods are being removed",
        ),
        Decision::Suspended => conditions.summary(
            Is::Unknown,
            true,
            false,
            false,
            REASON_SUSPENDED,
            "suspended; set spec.suspend to false to go on",
        ),
        Decision::Finish(outcome) | Decision::Finished(outcome) => {
            let succeeded = outcome.succeeded;
            conditions.summary(
                succeeded.into(),
                succeeded,
                false,
                !succeeded,
                &outcome.reason,
                &super::clip(&outcome.message),
            );
        }
    }
}

fn set_suspended(conditions: &mut Conditions<'_>, decision: &Decision) {
    match decision {
        Decision::Suspended => {
            conditions.set(CONDITION_SUSPENDED, true, REASON_SUSPENDED, "no pod is left")
        }
        Decision::Drain { .. } => {
            conditions.set(CONDITION_SUSPENDED, false, REASON_DRAINING, "draining")
        }
        Decision::Release => conditions.set(
            CONDITION_SUSPENDED,
            false,
            REASON_RELEASING,
            "the pods are being removed",
        ),
        Decision::Start(_) | Decision::Run | Decision::Finish(_) | Decision::Finished(_) => {
            conditions.set(CONDITION_SUSPENDED, false, REASON_NOT_SUSPENDED, "not suspended");
        }
    }
}

fn set_role(
    conditions: &mut Conditions<'_>,
    type_: &str,
    counts: RoleCounts,
    wanted: i32,
    keeps_running: bool,
) {
    if !keeps_running {
        conditions.set(type_, false, REASON_NOT_WANTED, "no pods are wanted now");
    } else if wanted == 0 {
        conditions.set(type_, true, REASON_NOT_WANTED, "the spec wants no pods");
    } else {
        let ready = counts.ready >= wanted;
        let reason = if ready { REASON_PODS_READY } else { REASON_PODS_NOT_READY };
        conditions.set(
            type_,
            ready,
            reason,
            format!("{} of {wanted} pods are ready", counts.ready),
        );
    }
}

fn set_weights_synced(
    conditions: &mut Conditions<'_>,
    job: &ValidatedJob,
    facts: &Facts,
    keeps_running: bool,
) {
    let type_ = CONDITION_WEIGHTS_SYNCED;
    let synced = facts.report().is_some_and(|report| {
        report.engines.iter().any(|engine| engine.state == EngineCondition::Ready)
    });
    let overdue = conditions.old(type_).is_some_and(|old| {
        old.status == "False"
            || (old.reason == REASON_SYNCING
                && conditions.now.duration_since(old.last_transition_time.0) > SYNC_OVERDUE)
    });
    if !keeps_running || job.spec.inference.replicas == 0 {
        conditions.set(type_, Is::Unknown, REASON_NOT_WANTED, "no engines are wanted now");
    } else if synced {
        conditions.set(type_, true, REASON_SYNCED, "engines hold the current weights");
    } else if overdue {
        conditions.set(
            type_,
            false,
            REASON_OVERDUE,
            format!(
                "no engine has held the current weights for more than {} minutes",
                SYNC_OVERDUE.as_mins()
            ),
        );
    } else {
        conditions.set(
            type_,
            Is::Unknown,
            REASON_SYNCING,
            "no engine holds the current weights yet",
        );
    }
}

fn set_checkpoint(conditions: &mut Conditions<'_>, old: &RLJobStatus, facts: &Facts) {
    let exists = old.checkpoint.is_some()
        || facts.report().is_some_and(|report| report.checkpoint.is_some());
    if exists {
        conditions.set(
            CONDITION_CHECKPOINT_AVAILABLE,
            true,
            REASON_CHECKPOINT_COMPLETE,
            "a complete checkpoint exists",
        );
    } else {
        conditions.set(
            CONDITION_CHECKPOINT_AVAILABLE,
            false,
            REASON_NO_CHECKPOINT,
            "no checkpoint has been completed yet",
        );
    }
}

/// What a starting job waits for, in the order in which it comes up.
fn waits_for(job: &ValidatedJob, facts: &Facts) -> String {
    let missing = missing(job, facts);
    match (missing.is_empty(), facts.report()) {
        (false, _) => format!("waiting for {missing}{}", trouble(facts)),
        (true, None) => "all pods are ready; the coordinator has not reported yet".to_owned(),
        (true, Some(_)) => {
            "all pods are ready; the coordinator waits for learners and engines".to_owned()
        }
    }
}

/// Why pods are missing: what cannot be placed, or what is happening to one that exists.
fn trouble(facts: &Facts) -> String {
    let incident = facts
        .incidents
        .iter()
        .find(|incident| incident.reason != INCIDENT_VANISHED)
        .map(|incident| &incident.message);
    facts.blocked.as_ref().or(incident).map(|why| format!("; {why}")).unwrap_or_default()
}

/// The pods that are not ready, by role.
fn missing(job: &ValidatedJob, facts: &Facts) -> String {
    let roles = [
        ("coordinator", facts.roles.coordinator, 1),
        ("trainer", facts.roles.trainer, job.spec.trainer.replicas),
        ("inference", facts.roles.inference, job.spec.inference.replicas),
    ];
    let missing: Vec<String> = roles
        .iter()
        .filter(|(_, counts, wanted)| counts.ready < *wanted)
        .map(|(role, counts, wanted)| format!("{} of {wanted} {role} pods", wanted - counts.ready))
        .collect();
    missing.join(", ")
}

/// A time in whole seconds.
struct Seconds(Timestamp);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0}", self.0)
    }
}
