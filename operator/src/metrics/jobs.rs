//! Metrics of RLJobs: counts, and the state of each job. Computed from the objects at each scrape,
//! without state between two scrapes, which may run at the same time.
//!
//! A job has at most 20 samples. Their labels are its namespace and name, condition types,
//! statuses and reasons, roles, and names of groups.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Registry, Result};
use rljob_crds::RLJob;
use rljob_crds::names::{
    CONDITION_READY, CONDITION_STALLED, CONDITION_SUCCEEDED, CONDITION_WEIGHTS_SYNCED,
    REASON_STARTING,
};
use rljob_crds::status::RLJobStatus;

use super::register::Register;
use crate::desired::Role;

/// Conditions of each job; alerts depend on them.
const CONDITIONS: [&str; 4] =
    [CONDITION_READY, CONDITION_STALLED, CONDITION_SUCCEEDED, CONDITION_WEIGHTS_SYNCED];

/// Metrics of one scrape.
struct JobMetrics {
    conditions: IntGaugeVec,
    restarts: IntCounterVec,
    group_restarts: IntCounterVec,
    unsaved_since: IntGaugeVec,
    desired: IntGaugeVec,
    ready: IntGaugeVec,
}

/// The metrics of these jobs, with those of each one if `of_each`.
///
/// # Errors
/// A name that is registered twice or is not valid.
pub(super) fn families(jobs: &[Arc<RLJob>], of_each: bool) -> Result<Vec<MetricFamily>> {
    let register = Register(Registry::new());
    count(&register, jobs)?;
    if of_each {
        let metrics = JobMetrics::new(&register)?;
        for job in jobs {
            metrics.add(job);
        }
    }
    Ok(register.0.gather())
}

impl JobMetrics {
    fn new(register: &Register) -> Result<Self> {
        Ok(Self {
            conditions: register.gauges(
                "rljob_job_status_condition",
                "1 for the status and reason of a condition of a job.",
                &["namespace", "name", "type", "status", "reason"],
            )?,
            restarts: register.counters(
                "rljob_job_restarts_total",
                "Restarts of a job's learners, whether they count against its budget or not.",
                &["namespace", "name"],
            )?,
            group_restarts: register.counters(
                "rljob_job_group_restarts_total",
                "Restarts of a group of spec.trainer.groups, counted or not.",
                &["namespace", "name", "group"],
            )?,
            unsaved_since: register.gauges(
                "rljob_job_checkpoint_timestamp_seconds",
                "Unix time of the newest checkpoint of a job in training, or of the start or \
                 resume of its training if that is later.",
                &["namespace", "name"],
            )?,
            desired: register.gauges(
                "rljob_job_replicas_desired",
                "Desired pods of a job by role.",
                &["namespace", "name", "role"],
            )?,
            ready: register.gauges(
                "rljob_job_replicas_ready",
                "Ready pods of a job by role.",
                &["namespace", "name", "role"],
            )?,
        })
    }

    fn add(&self, job: &RLJob) {
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let Some(status) = &job.status else { return };
        for Condition { type_, status, reason, .. } in &status.conditions {
            if CONDITIONS.contains(&type_.as_str()) {
                self.conditions.with_label_values(&[namespace, name, type_, status, reason]).set(1);
            }
        }
        self.restarts.with_label_values(&[namespace, name]).inc_by(status.attempt.into());
        for group in &status.trainer_groups {
            let labels = [namespace, name, &group.name];
            self.group_restarts.with_label_values(&labels).inc_by(group.attempt.into());
        }
        if let Some(time) = unsaved_since(status) {
            self.unsaved_since.with_label_values(&[namespace, name]).set(time);
        }
        let inference =
            status.inference.as_ref().map(|pods| (Role::Inference, pods.desired, pods.ready));
        let trainer = status.trainer.as_ref().map(|pods| (Role::Trainer, pods.desired, pods.ready));
        let verifier =
            status.verifiers.as_ref().map(|pods| (Role::Verifier, pods.desired, pods.ready));
        let evaluation =
            status.evaluation.as_ref().map(|pods| (Role::Evaluation, pods.desired, pods.ready));
        let reward = status.reward.as_ref().map(|pods| (Role::Reward, pods.desired, pods.ready));
        let teacher = status.teacher.as_ref().map(|pods| (Role::Teacher, pods.desired, pods.ready));
        let group = status.trainer_groups.first();
        let group = group.map(|group| (Role::Group, group.desired, group.ready));
        for (role, desired, ready) in
            [inference, evaluation, reward, teacher, trainer, group, verifier].into_iter().flatten()
        {
            let labels = [namespace, name, role.as_str()];
            self.desired.with_label_values(&labels).set(desired.into());
            self.ready.with_label_values(&labels).set(ready.into());
        }
    }
}

/// Counts jobs by state and by status of each condition.
fn count(register: &Register, jobs: &[Arc<RLJob>]) -> Result<()> {
    let states = register.gauges(
        "rljob_jobs",
        "RLJobs by state (reason of condition Succeeded).",
        &["state"],
    )?;
    let conditions = register.gauges(
        "rljob_job_conditions",
        "RLJobs by condition type and status.",
        &["type", "status"],
    )?;
    for job in jobs {
        let list = job.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let succeeded = list.iter().find(|condition| condition.type_ == CONDITION_SUCCEEDED);
        let state = succeeded.map_or(REASON_STARTING, |condition| condition.reason.as_str());
        states.with_label_values(&[state]).inc();
        for condition in list {
            conditions.with_label_values(&[&condition.type_, &condition.status]).inc();
        }
    }
    Ok(())
}

/// Time of the newest checkpoint of a job in training, or of the start of its training if that is
/// later, in seconds since 1970.
fn unsaved_since(status: &RLJobStatus) -> Option<i64> {
    let training = status.training_since.as_ref().filter(|_| status.completion_time.is_none())?;
    let checkpoint = status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.time.as_ref());
    Some(checkpoint.map_or(training.0, |checkpoint| checkpoint.0.max(training.0)).as_second())
}

#[cfg(test)]
mod tests;
