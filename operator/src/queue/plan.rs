//! What the operator does to the Workload after a decision: create, update or delete it, or report
//! in its status. Quota is returned only when no pod is left.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use rljob_crds::EnginePurpose;
use serde_json::{Value, json};

use super::queue_name;
use super::workload::{
    ADMITTED, EVICTED, FINISHED, PODS_READY, QUOTA_RESERVED, REQUEUED, Workload,
};
use crate::decide::{Decision, Facts, Obstacle, Outcome, RoleCounts, Roles};
use crate::desired::Role;
use crate::validate::Job;

/// Eviction reasons after which Kueue expects the Workload in its queue at once. After others, it
/// queues the Workload itself, later.
const REQUEUED_AT_ONCE: [&str; 2] = ["Preempted", "NodeFailures"];
/// Longest message of a condition.
const MESSAGE_LIMIT: usize = 32_768;

/// The action on the Workload.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadAction {
    Keep,
    /// Create it, or update it to the spec of the job.
    Apply,
    Delete,
    /// Merge patch of its status.
    Report(Value),
}

/// Plans the action. `job` has the number of engines that have quota. The Workload of a job that
/// cannot start is deleted, so that it holds no quota.
pub fn plan(
    job: &Job,
    workload: Option<&Workload>,
    decision: &Decision,
    facts: &Facts,
    now: Timestamp,
) -> WorkloadAction {
    let roles = &facts.roles;
    let is_blocked = facts.obstacle.as_ref().is_some_and(Obstacle::is_blocking);
    let is_queued = matches!(decision, Decision::Queued { .. }) && !is_blocked;
    let has_queue = queue_name(job).is_some();
    let Some(workload) = workload else {
        return if is_queued && has_queue { WorkloadAction::Apply } else { WorkloadAction::Keep };
    };
    let has_pods = roles.all().iter().any(|role| role.wanted > 0 || role.existing > 0);
    let is_reserved = workload.is_reserved();
    match decision {
        Decision::Finished(outcome) if !has_pods && !workload.is_finished() => {
            report(workload, json!({}), vec![finished(outcome)], now)
        }
        Decision::Finish(_) | Decision::Finished(_) | Decision::Expired(_) => WorkloadAction::Keep,
        _ if is_blocked && !has_pods => WorkloadAction::Delete,
        Decision::Stall { .. } | Decision::AskCoordinator => WorkloadAction::Keep,
        Decision::Suspended => WorkloadAction::Delete,
        _ if workload.is_finished() && !has_pods => WorkloadAction::Delete,
        Decision::Queued { .. } if is_reserved => match workload.holding(EVICTED) {
            Some(evicted) => return_quota(workload, evicted, now),
            None => WorkloadAction::Keep,
        },
        Decision::Queued { .. } => WorkloadAction::Apply,
        Decision::Start(_) | Decision::Run if is_reserved => pods_report(job, workload, roles, now),
        Decision::Start(_) | Decision::Run if !has_queue => WorkloadAction::Delete,
        Decision::Start(_) | Decision::Run | Decision::Drain { .. } | Decision::Release => {
            WorkloadAction::Keep
        }
    }
}

fn finished(outcome: &Outcome) -> Condition {
    let reason = if outcome.succeeded { "Succeeded" } else { "Failed" };
    condition(FINISHED, true, reason, &outcome.message)
}

/// Ends an eviction: the Workload returns to its queue.
fn return_quota(workload: &Workload, evicted: &Condition, now: Timestamp) -> WorkloadAction {
    let at_once = REQUEUED_AT_ONCE.contains(&evicted.reason.as_str());
    let mut conditions = vec![
        condition(REQUEUED, at_once, &evicted.reason, &evicted.message),
        condition(QUOTA_RESERVED, false, "Pending", &evicted.message),
        condition(ADMITTED, false, "NoReservation", "The workload has no reservation"),
    ];
    if workload.condition(PODS_READY).is_some() {
        conditions.push(not_ready("WaitForStart"));
    }
    report(workload, json!({"admission": null, "reclaimablePods": null}), conditions, now)
}

fn not_ready(reason: &str) -> Condition {
    condition(PODS_READY, false, reason, "not all pods are ready")
}

/// Reports ready pods, and engines that the job no longer wants.
fn pods_report(job: &Job, workload: &Workload, roles: &Roles, now: Timestamp) -> WorkloadAction {
    let wants = |counts: RoleCounts, wanted: i32| counts.ready >= wanted;
    let engines = |purpose| job.spec.num_engines(purpose);
    let is_ready = wants(roles.coordinator, 1)
        && wants(roles.trainer, job.spec.trainers())
        && wants(roles.group, job.spec.group_replicas())
        && wants(roles.inference, engines(EnginePurpose::Rollouts))
        && wants(roles.evaluation, engines(EnginePurpose::Evaluation))
        && wants(roles.reward, engines(EnginePurpose::Reward))
        && wants(roles.teacher, engines(EnginePurpose::Teacher));
    let old = workload.condition(PODS_READY);
    let was_ready = old.is_some_and(|old| old.status == "True");
    let recovers = old.is_some_and(|old| ["WaitForRecovery", "Recovered"].contains(&&*old.reason));
    let ready = match (is_ready, was_ready || recovers) {
        (true, _) if recovers => condition(PODS_READY, true, "Recovered", "all pods are ready"),
        (true, _) => condition(PODS_READY, true, "Started", "all pods are ready"),
        (false, true) => not_ready("WaitForRecovery"),
        (false, false) => not_ready("WaitForStart"),
    };
    let engines = Role::Inference.as_str();
    let wanted = job.spec.inference.pods_of(job.spec.inference.replicas);
    let is_reduced = workload.granted(engines).is_some_and(|granted| wanted < granted);
    let fields = match workload.count(engines).filter(|_| is_reduced) {
        Some(count) if !is_scaling_down(job, roles) => {
            let count = count.saturating_sub(wanted);
            json!({"reclaimablePods": [{"name": engines, "count": count}]})
        }
        _ => json!({}),
    };
    report(workload, fields, vec![ready], now)
}

/// Whether engines that the job no longer wants still exist.
fn is_scaling_down(job: &Job, roles: &Roles) -> bool {
    roles.inference.existing.max(roles.inference.wanted) > job.spec.inference.replicas
}

fn condition(type_: &str, is: bool, reason: &str, message: &str) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: if is { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.chars().take(MESSAGE_LIMIT).collect(),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    }
}

/// A patch of the fields and of all conditions, because a merge patch replaces lists; none if
/// nothing changes.
fn report(
    workload: &Workload,
    mut fields: Value,
    changes: Vec<Condition>,
    now: Timestamp,
) -> WorkloadAction {
    let mut conditions = workload.status.conditions.clone();
    for mut change in changes {
        let old = conditions.iter().position(|old| old.type_ == change.type_);
        if let Some(old) = old.and_then(|index| conditions.get_mut(index)) {
            let is_same = old.status == change.status;
            change.last_transition_time =
                if is_same { old.last_transition_time.clone() } else { Time(now) };
            change.observed_generation = old.observed_generation;
            *old = change;
        } else {
            change.last_transition_time = Time(now);
            conditions.push(change);
        }
    }
    let is_unchanged = fields.as_object().is_none_or(serde_json::Map::is_empty)
        && conditions == workload.status.conditions;
    if is_unchanged {
        return WorkloadAction::Keep;
    }
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("conditions".to_owned(), json!(conditions));
    }
    WorkloadAction::Report(fields)
}

#[cfg(test)]
mod tests;
