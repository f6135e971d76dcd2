//! Facts and decision → the status to write. Pure; computed whole in every pass and written once,
//! before anything is destroyed.
//!
//! | State | Succeeded | Ready | Reconciling | Stalled |
//! |---|---|---|---|---|
//! | starting, restarting, draining | Unknown | False | True | False |
//! | running | Unknown | True | False | False |
//! | suspended | Unknown, reason Suspended | True | False | False |
//! | done | True | True | False | False |
//! | failed, or a spec that cannot run | False | False | False | True |
//!
//! `attempt` and `restarts` are the larger of what was recorded and what the coordinator says, so
//! that a lost status resets no budget.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::names::{
    CONDITION_SUCCEEDED, CONDITION_SUSPENDED, REASON_CHILD_REJECTED, REASON_FAILED,
};
use rljob_crds::status::{CheckpointStatus, InferenceStatus, Progress, RLJobStatus, RoleStatus};
use rljob_protocol::status::CoordinatorStatus;

use crate::decide::{Decision, Epoch, Facts, Outcome, Recorded, RoleCounts};
use crate::validate::ValidatedJob;

mod conditions;
mod engines;
mod events;
mod failure;
mod incidents;
mod settle;

pub use events::{StatusEvent, events, new_incidents};
pub use settle::settle;

/// Longest message that is copied into status, in characters.
const MESSAGE_LIMIT: usize = 4096;

/// What earlier passes recorded.
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
        active_since: status.active_since.as_ref().map(|time| time.0),
        completed_at: status.completion_time.as_ref().map(|time| time.0),
        drain_deadline: status.drain_deadline.as_ref().map(|time| time.0),
        epoch: Epoch { number: status.epoch, holder: status.coordinator_uid.clone() },
    }
}

/// Whether the job is to be suspended and has pods yet. A spec that has become invalid, by an edit
/// or by an operator with more rules, does not keep it from that: only a suspended job's spec can
/// be mended.
pub fn is_to_release(suspend: bool, status: &RLJobStatus) -> bool {
    let is_suspended = status
        .conditions
        .iter()
        .any(|condition| condition.type_ == CONDITION_SUSPENDED && condition.status == "True");
    suspend && status.start_time.is_some() && status.completion_time.is_none() && !is_suspended
}

/// The status after a decision. `epoch` is what [`crate::decide::assign_epoch`] gave.
pub fn compute(
    job: &ValidatedJob,
    old: &RLJobStatus,
    facts: &Facts,
    decision: &Decision,
    epoch: &Epoch,
    now: Timestamp,
) -> RLJobStatus {
    let report = facts.report();
    let keeps_running = decision.keeps_running();
    let finishes = matches!(decision, Decision::Finish(_));
    let counts = |role: RoleCounts, wanted: i32| RoleStatus {
        desired: if keeps_running { wanted } else { 0 },
        ready: role.ready,
    };
    let inference = engines::inference(job, old, facts, keeps_running);
    RLJobStatus {
        observed_generation: Some(job.generation),
        conditions: conditions::compute(job, old, facts, decision, now),
        attempt: old.attempt.max(report.map_or(0, |report| report.attempt)),
        restarts: old.restarts.max(report.map_or(0, |report| report.restarts)),
        epoch: epoch.number,
        coordinator_uid: epoch.holder.clone(),
        start_time: old.start_time.clone().or_else(|| keeps_running.then_some(Time(now))),
        active_since: active_since(old, decision, now),
        drain_deadline: drain_deadline(old, facts, decision),
        completion_time: old.completion_time.clone().or_else(|| finishes.then_some(Time(now))),
        last_failure: failure::newest(old, report, facts.exit.as_ref(), now),
        incidents: incidents::merge(&old.incidents, &facts.incidents, now),
        progress: progress(old, report, &inference, now),
        inference: Some(inference),
        trainer: Some(counts(facts.roles.trainer, job.spec.trainer.replicas)),
        checkpoint: checkpoint(old, report, now),
    }
}

/// The status of a job that does not get further by itself: a spec that cannot run, or children
/// that cannot be made. What runs is left alone, and its record kept.
pub fn stalled(
    generation: i64,
    old: &RLJobStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> RLJobStatus {
    let conditions = conditions::stalled(generation, old, old, reason, &clip(message), now);
    RLJobStatus { observed_generation: Some(generation), conditions, ..old.clone() }
}

/// A computed status, of a job whose children the API server refused in the pass before: stalled,
/// with all that is known of its parts.
pub fn rejected(
    old: &RLJobStatus,
    computed: RLJobStatus,
    message: &str,
    now: Timestamp,
) -> RLJobStatus {
    let generation = computed.observed_generation.unwrap_or_default();
    let conditions =
        conditions::stalled(generation, old, &computed, REASON_CHILD_REJECTED, &clip(message), now);
    RLJobStatus { conditions, ..computed }
}

/// Kept while pods are wanted, and after the end as a record; a suspension ends it.
fn active_since(old: &RLJobStatus, decision: &Decision, now: Timestamp) -> Option<Time> {
    match decision {
        Decision::Release | Decision::Suspended => None,
        Decision::Start(_) | Decision::Run | Decision::Drain { .. } => {
            old.active_since.clone().or(Some(Time(now)))
        }
        Decision::Finish(_) | Decision::Finished(_) => old.active_since.clone(),
    }
}

fn drain_deadline(old: &RLJobStatus, facts: &Facts, decision: &Decision) -> Option<Time> {
    match decision {
        Decision::Drain { deadline } => Some(Time(*deadline)),
        _ if facts.suspend => old.drain_deadline.clone(),
        _ => None,
    }
}

fn progress(
    old: &RLJobStatus,
    report: Option<&CoordinatorStatus>,
    inference: &InferenceStatus,
    now: Timestamp,
) -> Option<Progress> {
    let Some(report) = report else {
        return old.progress.clone();
    };
    let metrics = report.metrics.as_ref();
    let mut new = Progress {
        step: report.step,
        total_steps: report.total_steps,
        reward: metrics.and_then(|metrics| metrics.reward),
        tokens_per_second: metrics.map(|metrics| metrics.tokens_per_second),
        time: old.progress.as_ref().and_then(|old| old.time.clone()),
    };
    let engines = old.inference.as_ref().map(|old| &old.engines);
    if old.progress.as_ref() != Some(&new) || engines != Some(&inference.engines) {
        new.time = Some(Time(now));
    }
    Some(new)
}

fn checkpoint(
    old: &RLJobStatus,
    report: Option<&CoordinatorStatus>,
    now: Timestamp,
) -> Option<CheckpointStatus> {
    let Some(version) = report.and_then(|report| report.checkpoint) else {
        return old.checkpoint.clone();
    };
    let path = format!("{}/{version}", rljob_crds::names::CHECKPOINTS_DIR);
    let unchanged = old.checkpoint.as_ref().filter(|old| old.path == path);
    Some(unchanged.cloned().unwrap_or(CheckpointStatus {
        step: version.step,
        path,
        time: Some(Time(now)),
    }))
}

/// The last part of a message that is too long: the end of a log says why.
fn clip(message: &str) -> String {
    let length = message.chars().count();
    if length <= MESSAGE_LIMIT {
        message.to_owned()
    } else {
        message.chars().skip(length - MESSAGE_LIMIT).collect()
    }
}

#[cfg(test)]
mod tests;
