//! Metrics of the operator and its jobs, for `/metrics`. Labels are bounded: verbs, steps,
//! condition types, a limited number of reasons. Only the metrics `rljob_job_*` of each job have
//! its name.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::reflector::Store;
use prometheus::core::Collector;
use prometheus::proto::{LabelPair, Metric, MetricFamily};
use prometheus::{
    Encoder, Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder,
};
use rljob_crds::RLJob;
use rljob_crds::names::{CONDITION_READY, REASON_RESTARTING};
use rljob_crds::status::RLJobStatus;
use rljob_protocol::status::{CoordinatorStatus, Phase};

use crate::desired::Role;
use crate::status;
use register::Register;

mod jobs;
mod register;

/// Buckets of the duration of a pass, in seconds.
const PASS_BUCKETS: [f64; 10] = [0.001, 0.0025, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// Buckets of the time from a failure to resumed training, in seconds.
const RECOVERY_BUCKETS: [f64; 11] =
    [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0];
/// Limit of distinct reasons; later ones are counted as `Other`.
const REASONS: usize = 32;

#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    duration: Histogram,
    errors: IntCounterVec,
    status_writes: IntCounter,
    requests: IntCounterVec,
    leader: IntGauge,
    watches: IntGaugeVec,
    runs: RunMetrics,
    /// Whether `rljob_job_*` are served.
    of_each_job: bool,
}

/// Metrics of runs.
#[derive(Clone)]
struct RunMetrics {
    restarts: IntCounterVec,
    incidents: IntCounterVec,
    recovery: Histogram,
    weight_lag: IntGauge,
    checkpoint_age: Gauge,
}

impl RunMetrics {
    fn new(register: &Register) -> prometheus::Result<Self> {
        Ok(Self {
            restarts: register.counters(
                "rljob_restarts_total",
                "Restarts of learners by reason; `NotCounted`: after lost pods and suspensions.",
                &["reason"],
            )?,
            incidents: register.counters(
                "rljob_incidents_total",
                "Incidents of pods by reason and role.",
                &["reason", "role"],
            )?,
            recovery: register.histogram(
                "rljob_recovery_seconds",
                "Seconds from a failure of learners to resumed training.",
                &RECOVERY_BUCKETS,
            )?,
            weight_lag: register.gauge(
                "rljob_weight_version_lag_steps_max",
                "Largest lag of an engine's weights behind training, in steps.",
            )?,
            checkpoint_age: register.add(Gauge::new(
                "rljob_checkpoint_age_seconds_max",
                "Largest age of the newest checkpoint of a running job, or of its start.",
            )?)?,
        })
    }
}

impl Metrics {
    /// Registers every metric, those of each job if `of_each_job`.
    ///
    /// # Errors
    /// A name that is registered twice or is not valid.
    pub fn new(of_each_job: bool) -> prometheus::Result<Self> {
        let register = Register(Registry::new());
        Ok(Self {
            duration: register.histogram(
                "rljob_reconcile_duration_seconds",
                "Duration of a pass in seconds.",
                &PASS_BUCKETS,
            )?,
            errors: register.counters(
                "rljob_reconcile_errors_total",
                "Failed passes by failed step.",
                &["variant"],
            )?,
            status_writes: register
                .add(IntCounter::new("rljob_status_writes_total", "Status writes.")?)?,
            requests: register.counters(
                "rljob_api_requests_total",
                "Requests to the API server by verb, without leader election.",
                &["verb"],
            )?,
            leader: register.gauge("rljob_leader", "1 for the leader, 0 for a standby.")?,
            watches: register.gauges(
                "rljob_watch_healthy",
                "1 if the leader's watch of a resource works, 0 if it fails or is not listed yet.",
                &["resource"],
            )?,
            runs: RunMetrics::new(&register)?,
            of_each_job,
            registry: register.0,
        })
    }

    /// Counter of requests by verb.
    pub fn requests(&self) -> IntCounterVec {
        self.requests.clone()
    }

    /// Records a pass, with the variant of its error if it failed.
    pub fn reconciled(&self, took: Duration, error: Option<&str>) {
        self.duration.observe(took.as_secs_f64());
        if let Some(variant) = error {
            self.errors.with_label_values(&[variant]).inc();
        }
    }

    /// Records a status write, and the restarts, incidents and recovery between both statuses.
    pub fn status_written(&self, old: &RLJobStatus, new: &RLJobStatus, now: Timestamp) {
        self.status_writes.inc();
        let restarts = new.attempt.saturating_sub(old.attempt);
        let counted = new.restarts.saturating_sub(old.restarts).min(restarts);
        let reason = new.last_failure.as_ref().map_or("Unknown", |failure| failure.reason.as_str());
        if counted > 0 {
            self.runs
                .restarts
                .with_label_values(&[self.bounded(reason)])
                .inc_by(u64::from(counted));
        }
        let lost = restarts.saturating_sub(counted);
        if lost > 0 {
            self.runs.restarts.with_label_values(&["NotCounted"]).inc_by(u64::from(lost));
        }
        for incident in status::new_incidents(old, new) {
            self.runs.incidents.with_label_values(&[&incident.reason, role(&incident.pod)]).inc();
        }
        if let Some(seconds) = recovery(old, new, now) {
            self.runs.recovery.observe(seconds);
        }
    }

    /// The reason, or `Other` for a new one beyond the limit.
    fn bounded<'a>(&self, reason: &'a str) -> &'a str {
        let families = self.runs.restarts.collect();
        let labels = families.iter().flat_map(MetricFamily::get_metric).flat_map(Metric::get_label);
        let known: Vec<&str> = labels.map(LabelPair::value).collect();
        if known.contains(&reason) || known.len() < REASONS { reason } else { "Other" }
    }

    /// Encodes all metrics in the Prometheus text format.
    ///
    /// # Errors
    /// If the encoding fails.
    pub fn text(
        &self,
        is_leader: bool,
        jobs: Option<&Store<RLJob>>,
        reports: &[CoordinatorStatus],
        watches: &[(String, Option<String>)],
        now: Timestamp,
    ) -> prometheus::Result<Vec<u8>> {
        self.leader.set(i64::from(is_leader));
        let jobs = jobs.map(Store::state).unwrap_or_default();
        self.watches.reset();
        for (resource, problem) in watches {
            self.watches.with_label_values(&[resource]).set(i64::from(problem.is_none()));
        }
        let statuses = jobs.iter().filter_map(|job| job.status.as_ref());
        self.runs
            .checkpoint_age
            .set(statuses.filter_map(|status| checkpoint_age(status, now)).fold(0.0, f64::max));
        self.runs.weight_lag.set(reports.iter().filter_map(weight_lag).max().unwrap_or(0));
        let mut text = Vec::new();
        let mut families = self.registry.gather();
        families.extend(jobs::families(&jobs, self.of_each_job)?);
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}

fn condition<'a>(status: &'a RLJobStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Role in a pod name `<job>-<role>-<ordinal>`, or `<job>-trainer-<group>-<ordinal>`.
fn role(pod: &str) -> &'static str {
    let of_group = || pod.contains("-trainer-").then_some(Role::Group);
    let role = pod.rsplit('-').nth(1).and_then(Role::parse).or_else(of_group);
    role.map_or("", Role::as_str)
}

/// Seconds since the run was last ready, for the change from restarting to ready.
fn recovery(old: &RLJobStatus, new: &RLJobStatus, now: Timestamp) -> Option<f64> {
    let before = condition(old, CONDITION_READY)
        .filter(|ready| ready.status == "False" && ready.reason == REASON_RESTARTING)?;
    condition(new, CONDITION_READY)
        .filter(|ready| ready.status == "True" && new.completion_time.is_none())?;
    Some(now.duration_since(before.last_transition_time.0).as_secs_f64())
}

/// Age of the newest checkpoint of a running job, or of its start, in seconds.
fn checkpoint_age(status: &RLJobStatus, now: Timestamp) -> Option<f64> {
    let since = status
        .checkpoint
        .as_ref()
        .and_then(|checkpoint| checkpoint.time.as_ref())
        .or(status.active_since.as_ref())?;
    let trains = status.completion_time.is_none() && status.active_since.is_some();
    trains.then(|| now.duration_since(since.0).as_secs_f64().max(0.0))
}

/// Completed steps minus the step of the oldest weights of an engine, for a run that is training.
fn weight_lag(report: &CoordinatorStatus) -> Option<i64> {
    let oldest = report
        .engines
        .iter()
        .filter_map(|engine| engine.version)
        .map(|version| version.step)
        .min()?;
    (report.phase == Phase::Running)
        .then(|| i64::from(report.step).saturating_sub(i64::from(oldest)))
}

#[cfg(test)]
mod tests;
