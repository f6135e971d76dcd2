//! Prometheus metrics. Labels are the cause of rejected samples, phase and call of learners, the
//! suite of an evaluation, tool and outcome of a call, the state of calls in verifier pods, and the
//! group of the trainer.

mod evaluation;
mod learners;
mod register;
#[cfg(test)]
mod tests;
mod tool_calls;
mod verifier_calls;

use std::time::Duration;

use prometheus::{
    Counter, Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use rljob_protocol::metrics::{EvaluationMetrics, REWARD, StepMetrics};
use rljob_protocol::status::CoordinatorStatus;

pub use tool_calls::ToolCalls;

use evaluation::EvaluationGauges;
use learners::LearnerMetrics;
use register::{counter, gauge, register};
use verifier_calls::VerifierCalls;

/// 0, 1, … up to this, and above.
const STALENESS_BUCKETS: usize = 17;

/// The coordinator's metrics.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    step: IntGauge,
    reward: Gauge,
    restarts: IntGauge,
    /// By group of `trainer.groups`, of which a job has few.
    group_restarts: IntGaugeVec,
    lag: IntGauge,
    rollout_tokens: IntCounter,
    samples: IntCounter,
    /// Interruptions of samples.
    pub interrupted: IntCounter,
    /// Groups dropped by dynamic sampling.
    pub dropped_groups: IntCounter,
    /// Rows skipped by the curriculum.
    pub skipped_rows: IntCounter,
    /// Number of samples that were sampled again because they were too old.
    pub stale_samples: IntCounter,
    /// Samples that were rejected because their verifier failed, by cause.
    pub rejected_samples: IntCounterVec,
    /// Dataset rows that were dropped because of their reference answers.
    pub dropped_rows: IntGauge,
    /// Calls of tools.
    pub tool_calls: ToolCalls,
    verifier_calls: VerifierCalls,
    evaluation: EvaluationGauges,
    staleness: Histogram,
    step_seconds: Histogram,
    learners: LearnerMetrics,
    engine_idle: Counter,
    pending_evaluations: IntGauge,
}

impl Metrics {
    /// All metrics, at 0. `gpus` is the number of the trainer's GPUs.
    pub fn new(gpus: u32) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let integer = |name: &str, help: &str| gauge(&registry, name, help);
        let count = |name: &str, help: &str| counter(&registry, name, help);
        Ok(Self {
            step: integer("rljob_step", "Steps done.")?,
            reward: register(
                &registry,
                Gauge::new("rljob_reward", "Mean reward of the newest step.")?,
            )?,
            restarts: integer(
                "rljob_counted_restarts",
                "Restarts of the learners that count against failurePolicy.maxRestarts.",
            )?,
            group_restarts: group_restarts(&registry)?,
            lag: integer(
                "rljob_engine_version_lag",
                "Steps by which the engine with the oldest weights lags the trainer.",
            )?,
            rollout_tokens: count(
                "rljob_rollout_tokens_total",
                "Completion tokens sampled for batches.",
            )?,
            samples: count("rljob_samples_total", "Samples finished and scored for batches.")?,
            interrupted: count(
                "rljob_interruptions_total",
                "Interruptions of samples, which were continued or retried.",
            )?,
            dropped_groups: count(
                "rljob_dropped_groups_total",
                "Groups left out of batches because their rewards have zero variance.",
            )?,
            skipped_rows: count("rljob_skipped_rows_total", "Rows that the curriculum skipped.")?,
            stale_samples: count(
                "rljob_stale_samples_total",
                "Samples made again because they were too old to be trained on.",
            )?,
            rejected_samples: rejected_samples(&registry)?,
            dropped_rows: integer(
                "rljob_dropped_rows",
                "Dataset rows dropped because no reward can compare their reference answers.",
            )?,
            tool_calls: ToolCalls::new(&registry)?,
            verifier_calls: VerifierCalls::new(&registry)?,
            evaluation: EvaluationGauges::new(&registry)?,
            staleness: staleness(&registry)?,
            step_seconds: step_seconds(&registry)?,
            learners: LearnerMetrics::new(&registry, gpus)?,
            engine_idle: engine_idle(&registry)?,
            pending_evaluations: integer(
                "rljob_pending_evaluations",
                "Evaluations that wait or run on separate engines.",
            )?,
            registry,
        })
    }

    /// A sample is finished.
    pub fn sampled(&self, tokens: usize) {
        self.samples.inc();
        self.rollout_tokens.inc_by(tokens as u64);
    }

    /// A step is done.
    pub fn step_done(&self, metrics: &StepMetrics, seconds: f64) {
        self.step_seconds.observe(seconds);
        self.learners.step_done(metrics);
        if let Some(reward) = metrics.get(REWARD) {
            self.reward.set(reward);
        }
        for (staleness, samples) in &metrics.staleness {
            for _ in 0..*samples {
                self.staleness.observe(f64::from(*staleness));
            }
        }
    }

    /// An evaluation is done.
    pub fn evaluated(&self, metrics: &EvaluationMetrics) {
        self.evaluation.set(metrics);
    }

    /// The text form, with the gauges as the status has them.
    /// `idle` is the time in which engines had no request.
    pub fn render(
        &self,
        status: &CoordinatorStatus,
        idle: Duration,
    ) -> Result<String, prometheus::Error> {
        // The total only grows.
        self.engine_idle.inc_by((idle.as_secs_f64() - self.engine_idle.get()).max(0.0));
        self.step.set(status.step.into());
        self.restarts.set(status.restarts.into());
        for group in &status.groups {
            let labels = [group.name.as_str()];
            self.group_restarts.with_label_values(&labels).set(group.restarts.into());
        }
        let steps = status.engines.iter().filter_map(|engine| engine.version);
        let oldest = steps.map(|version| version.step).min();
        let lag = oldest.map_or(0, |oldest| status.step.saturating_sub(oldest));
        self.lag.set(lag.into());
        self.pending_evaluations.set(status.pending_evaluations.unwrap_or_default().into());
        if let Some(load) = status.verifiers {
            self.verifier_calls.set(load);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn group_restarts(registry: &Registry) -> Result<IntGaugeVec, prometheus::Error> {
    let help = "Restarts of a group of trainer.groups that count against \
                failurePolicy.maxRestarts.";
    let options = Opts::new("rljob_group_counted_restarts", help);
    register(registry, IntGaugeVec::new(options, &["group"])?)
}

fn step_seconds(registry: &Registry) -> Result<Histogram, prometheus::Error> {
    let help = "Seconds from the end of the step before to the end of a step.";
    let options = HistogramOpts::new("rljob_step_seconds", help)
        .buckets(prometheus::exponential_buckets(0.1, 2.0, 16)?);
    register(registry, Histogram::with_opts(options)?)
}

fn engine_idle(registry: &Registry) -> Result<Counter, prometheus::Error> {
    let help = "Seconds in which engines responded and had no request, summed over engines.";
    register(registry, Counter::new("rljob_engine_idle_seconds_total", help)?)
}

fn staleness(registry: &Registry) -> Result<Histogram, prometheus::Error> {
    let help = "Steps done since the oldest weights that a sample trained on was sampled with.";
    let options = HistogramOpts::new("rljob_sample_staleness", help)
        .buckets(prometheus::linear_buckets(0.0, 1.0, STALENESS_BUCKETS)?);
    register(registry, Histogram::with_opts(options)?)
}

fn rejected_samples(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Samples left out of batches because their verifier failed.";
    let options = Opts::new("rljob_rejected_samples_total", help);
    register(registry, IntCounterVec::new(options, &["cause"])?)
}
