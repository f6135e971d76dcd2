//! Prometheus metrics, without labels.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Registry, TextEncoder,
};
use rljob_protocol::status::{CoordinatorStatus, StepMetrics};

/// 0, 1, … up to this, and above.
const STALENESS_BUCKETS: usize = 17;

/// The coordinator's metrics.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    step: IntGauge,
    reward: Gauge,
    restarts: IntGauge,
    lag: IntGauge,
    rollout_tokens: IntCounter,
    samples: IntCounter,
    /// Interruptions of samples.
    pub interrupted: IntCounter,
    /// Groups dropped by dynamic sampling.
    pub dropped_groups: IntCounter,
    /// Samples made again because they were too old.
    pub stale_samples: IntCounter,
    staleness: Histogram,
    step_seconds: Histogram,
}

impl Metrics {
    /// All metrics, at 0.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let seconds = HistogramOpts::new(
            "rljob_step_seconds",
            "Seconds from the end of the step before to the end of a step.",
        );
        let staleness = HistogramOpts::new(
            "rljob_sample_staleness",
            "Steps done since the oldest weights that a sample trained on was sampled with.",
        );
        let metrics = Self {
            step: IntGauge::new("rljob_step", "Steps done.")?,
            reward: Gauge::new("rljob_reward", "Mean reward of the newest step.")?,
            restarts: IntGauge::new("rljob_restarts_total", "Counted restarts of the learners.")?,
            lag: IntGauge::new(
                "rljob_engine_version_lag",
                "Steps by which the engine furthest behind lags the newest published weights.",
            )?,
            rollout_tokens: IntCounter::new(
                "rljob_rollout_tokens_total",
                "Completion tokens sampled for batches.",
            )?,
            samples: IntCounter::new(
                "rljob_samples_total",
                "Samples finished and scored for batches.",
            )?,
            interrupted: IntCounter::new(
                "rljob_interruptions_total",
                "Interruptions of samples, which were continued or retried.",
            )?,
            dropped_groups: IntCounter::new(
                "rljob_dropped_groups_total",
                "Groups left out of batches because their rewards have zero variance.",
            )?,
            stale_samples: IntCounter::new(
                "rljob_stale_samples_total",
                "Samples made again because they were too old to be trained on.",
            )?,
            staleness: Histogram::with_opts(staleness.buckets(prometheus::linear_buckets(
                0.0,
                1.0,
                STALENESS_BUCKETS,
            )?))?,
            step_seconds: Histogram::with_opts(
                seconds.buckets(prometheus::exponential_buckets(0.1, 2.0, 16)?),
            )?,
            registry,
        };
        let Self {
            registry,
            step,
            reward,
            restarts,
            lag,
            rollout_tokens,
            samples,
            interrupted,
            dropped_groups,
            stale_samples,
            staleness,
            step_seconds,
        } = &metrics;
        registry.register(Box::new(step.clone()))?;
        registry.register(Box::new(reward.clone()))?;
        registry.register(Box::new(restarts.clone()))?;
        registry.register(Box::new(lag.clone()))?;
        registry.register(Box::new(rollout_tokens.clone()))?;
        registry.register(Box::new(samples.clone()))?;
        registry.register(Box::new(interrupted.clone()))?;
        registry.register(Box::new(dropped_groups.clone()))?;
        registry.register(Box::new(stale_samples.clone()))?;
        registry.register(Box::new(staleness.clone()))?;
        registry.register(Box::new(step_seconds.clone()))?;
        Ok(metrics)
    }

    /// A sample is finished.
    pub fn sampled(&self, tokens: usize) {
        self.samples.inc();
        self.rollout_tokens.inc_by(tokens as u64);
    }

    /// A step is done.
    pub fn step_done(&self, metrics: &StepMetrics, seconds: f64) {
        self.step_seconds.observe(seconds);
        if let Some(reward) = metrics.reward {
            self.reward.set(reward);
        }
        for (staleness, samples) in &metrics.staleness {
            for _ in 0..*samples {
                self.staleness.observe(f64::from(*staleness));
            }
        }
    }

    /// The text form, with the gauges as the status has them.
    pub fn render(&self, status: &CoordinatorStatus) -> Result<String, prometheus::Error> {
        self.step.set(status.step.into());
        self.restarts.set(status.restarts.into());
        let versions = || {
            status
                .engines
                .iter()
                .map(|engine| engine.version.map_or(0, |version| i64::from(version.step)))
        };
        self.lag.set(versions().max().unwrap_or(0) - versions().min().unwrap_or(0));
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
