//! Facts and decision → the status to write. Pure; computed whole in every pass and written once,
//! before any other side effect.
//!
//! | State | Succeeded | Ready | Reconciling | Stalled |
//! |---|---|---|---|---|
//! | starting, restarting, draining | Unknown | False | True | False |
//! | a deleted job of this name still has objects | Unknown | False | True | False |
//! | running | Unknown | True | False | False |
//! | suspended | Unknown, reason Suspended | True | False | False |
//! | waits in a queue | Unknown, reason Queued | False | True | False |
//! | succeeded | True | True | False | False |
//! | failed | False | False | False | True |
//! | a spec that cannot run, foreign objects | Unknown | False | False | True |
//!
//! `attempt` and `restarts` are the larger of the recorded and the reported number, so a lost
//! status resets no budget.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::EnginePurpose;
use rljob_crds::names::{
    CONDITION_SUCCEEDED, REASON_CHILD_REJECTED, REASON_FAILED, REASON_INVALID_SPEC,
    REASON_PODS_CANNOT_START,
};
use rljob_crds::status::{AppliedRules, RLJobStatus, RoleStatus};

use crate::decide::{
    Decision, Epoch, Facts, Obstacle, Outcome, Recorded, RoleCounts, num_verifiers,
};
use crate::validate::Job;

mod checkpoints;
mod conditions;
mod engines;
mod events;
mod failure;
mod groups;
mod incidents;
mod memory;
mod progress;
mod text;
mod throttle;

pub use conditions::wait;
pub use events::{StatusEvent, events, new_incidents};
pub use memory::planned;
pub use text::{failure_text, outage_text};
pub use throttle::StatusUpdate;

/// Reads the record of earlier passes.
pub fn recorded(status: &RLJobStatus) -> Recorded {
    let outcome = status.completion_time.as_ref().map(|_| {
        let succeeded =
            status.conditions.iter().find(|condition| condition.type_ == CONDITION_SUCCEEDED);
        Outcome {
            succeeded: succeeded.is_some_and(|condition| condition.status == "True"),
            reason: succeeded
                .map_or_else(|| REASON_FAILED.to_owned(), |condition| condition.reason.clone()),
            message: succeeded.map(|condition| condition.message.clone()).unwrap_or_default(),
        }
    });
    Recorded {
        started: status.start_time.is_some(),
        reported: status.progress.is_some(),
        outcome,
        total_steps: status.progress.as_ref().map(|progress| progress.total_steps),
        progress: status
            .progress
            .as_ref()
            .and_then(|progress| Some((progress.step, progress.time.as_ref()?.0))),
        active_since: status.active_since.as_ref().map(|time| time.0),
        training_since: status.training_since.as_ref().map(|time| time.0),
        completed_at: status.completion_time.as_ref().map(|time| time.0),
        drain_deadline: status.drain_deadline.as_ref().map(|time| time.0),
        epoch: Epoch { number: status.epoch, holder: status.coordinator_uid.clone() },
        incidents: status.incidents.clone(),
    }
}

/// Computes the status after a decision. `last_write` is the time of this operator's last write of
/// the job's status; it throttles details and progress of a running job.
pub fn next(
    job: &Job,
    old: &RLJobStatus,
    facts: &Facts,
    decision: &Decision,
    last_write: Option<Timestamp>,
    now: Timestamp,
) -> StatusUpdate {
    match decision {
        Decision::AskCoordinator => StatusUpdate::now(old.clone()),
        Decision::Stall { reason, message } => {
            StatusUpdate::now(stalled(job.generation, old, reason, message, now))
        }
        _ => {
            let is_running = matches!(decision, Decision::Start(_) | Decision::Run);
            let new = compute(job, old, facts, decision, now);
            throttle::throttle(old, new, last_write.filter(|_| is_running), now)
        }
    }
}

/// The status of a job whose spec cannot run, or whose children cannot be created. Its pods, and
/// their part of the status, stay unchanged.
pub fn stalled(
    generation: i64,
    old: &RLJobStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> RLJobStatus {
    let message = text::clip(message);
    let conditions = conditions::stalled(generation, old, old, reason, &message, now);
    RLJobStatus { observed_generation: Some(generation), conditions, ..old.clone() }
}

fn compute(
    job: &Job,
    old: &RLJobStatus,
    facts: &Facts,
    decision: &Decision,
    now: Timestamp,
) -> RLJobStatus {
    let report = facts.report();
    let keeps_running = decision.keeps_running();
    let counts = |role: RoleCounts, wanted: i32| RoleStatus {
        desired: if keeps_running { wanted } else { 0 },
        ready: role.ready,
    };
    let of_engines = |purpose, role: RoleCounts| {
        job.spec.engines(purpose).map(|engines| counts(role, engines.replicas))
    };
    let inference = engines::inference(job, old, facts, keeps_running);
    let verifiers = || counts(facts.roles.verifier, num_verifiers(job, facts));
    let (checkpoint, checkpoints) = checkpoints::checkpoints(old, report, now);
    let status = RLJobStatus {
        observed_generation: Some(job.generation),
        conditions: conditions::compute(job, old, facts, decision, now),
        attempt: old.attempt.max(report.map_or(0, |report| report.attempt)),
        restarts: old.restarts.max(report.map_or(0, |report| report.restarts)),
        epoch: facts.epoch.number,
        coordinator_uid: facts.epoch.holder.clone(),
        start_time: old.start_time.clone().or_else(|| keeps_running.then_some(Time(now))),
        active_since: active_since(old, decision, now),
        training_since: training_since(old, decision, now),
        drain_deadline: drain_deadline(old, facts, decision),
        completion_time: completion_time(old, decision, now),
        failure_rules: applied_rules(old, facts, now),
        last_failure: failure::newest(old, report, facts.exit.as_ref(), now),
        incidents: incidents::merge(&old.incidents, &facts.incidents, now),
        progress: progress::progress(old, report, &inference, now),
        inference: Some(inference),
        evaluation: of_engines(EnginePurpose::Evaluation, facts.roles.evaluation),
        reward: of_engines(EnginePurpose::Reward, facts.roles.reward),
        teacher: of_engines(EnginePurpose::Teacher, facts.roles.teacher),
        trainer: Some(counts(facts.roles.trainer, job.spec.trainers())),
        trainer_groups: groups::groups(job, old, facts, keeps_running),
        verifiers: job.spec.verifiers.as_ref().map(|_| verifiers()),
        memory: memory::memory(old, report),
        checkpoint,
        checkpoints,
    };
    match facts.obstacle.as_ref().filter(|obstacle| is_shown(obstacle, decision)) {
        Some(obstacle) => blocked(old, status, obstacle, now),
        None => status,
    }
}

/// Whether the obstacle is what the user must know first. A run that drains or ends needs no new
/// objects.
fn is_shown(obstacle: &Obstacle, decision: &Decision) -> bool {
    match decision {
        Decision::Start(_) => true,
        Decision::Run | Decision::Queued { .. } => obstacle.reason != REASON_PODS_CANNOT_START,
        Decision::Drain { .. } => obstacle.reason == REASON_CHILD_REJECTED,
        Decision::Suspended => obstacle.is_blocking(),
        Decision::Finished(_) | Decision::Expired(_) => obstacle.reason == REASON_INVALID_SPEC,
        Decision::Stall { .. }
        | Decision::AskCoordinator
        | Decision::Release
        | Decision::Finish(_) => false,
    }
}

/// Marks a job as stalled whose objects cannot be created or changed.
fn blocked(
    old: &RLJobStatus,
    computed: RLJobStatus,
    obstacle: &Obstacle,
    now: Timestamp,
) -> RLJobStatus {
    let generation = computed.observed_generation.unwrap_or_default();
    let message = text::clip(&obstacle.message);
    let conditions =
        conditions::stalled(generation, old, &computed, obstacle.reason, &message, now);
    RLJobStatus { conditions, ..computed }
}

/// The failure rules in force: new ones apply to failures from now on.
fn applied_rules(old: &RLJobStatus, facts: &Facts, now: Timestamp) -> Option<AppliedRules> {
    let sha256 = facts.rules_digest.clone()?;
    let known = old.failure_rules.clone().filter(|known| known.sha256 == sha256);
    Some(known.unwrap_or(AppliedRules { sha256, since: Time(now) }))
}

/// End of the run. A run that resumes because its steps were raised has none.
fn completion_time(old: &RLJobStatus, decision: &Decision, now: Timestamp) -> Option<Time> {
    match decision {
        Decision::Finish(_) => old.completion_time.clone().or(Some(Time(now))),
        Decision::Stall { .. } | Decision::Finished(_) | Decision::Expired(_) => {
            old.completion_time.clone()
        }
        Decision::AskCoordinator
        | Decision::Start(_)
        | Decision::Run
        | Decision::Drain { .. }
        | Decision::Release
        | Decision::Suspended
        | Decision::Queued { .. } => None,
    }
}

/// Start of the active period. A suspension ends it; the end of the run keeps it as a record, and a
/// run that resumes after its end has a new one.
fn active_since(old: &RLJobStatus, decision: &Decision, now: Timestamp) -> Option<Time> {
    match decision {
        Decision::Release | Decision::Suspended | Decision::Queued { .. } => None,
        Decision::AskCoordinator | Decision::Start(_) | Decision::Run | Decision::Drain { .. } => {
            let active = old.active_since.clone().filter(|_| old.completion_time.is_none());
            active.or(Some(Time(now)))
        }
        Decision::Stall { .. }
        | Decision::Finish(_)
        | Decision::Finished(_)
        | Decision::Expired(_) => old.active_since.clone(),
    }
}

/// First time in the active period at which the run trained.
fn training_since(old: &RLJobStatus, decision: &Decision, now: Timestamp) -> Option<Time> {
    let known = old.training_since.clone();
    match decision {
        Decision::Release | Decision::Suspended | Decision::Queued { .. } => None,
        Decision::Run => known.filter(|_| old.completion_time.is_none()).or(Some(Time(now))),
        Decision::AskCoordinator | Decision::Start(_) | Decision::Drain { .. } => {
            known.filter(|_| old.completion_time.is_none())
        }
        Decision::Stall { .. }
        | Decision::Finish(_)
        | Decision::Finished(_)
        | Decision::Expired(_) => known,
    }
}

fn drain_deadline(old: &RLJobStatus, facts: &Facts, decision: &Decision) -> Option<Time> {
    match decision {
        Decision::Drain { deadline } => Some(Time(*deadline)),
        _ if facts.must_stop() => old.drain_deadline.clone(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
