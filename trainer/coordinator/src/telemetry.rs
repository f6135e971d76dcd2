//! Prometheus metrics. The only label is the cause of rejected samples.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};
use rljob_protocol::metrics::{EvaluationMetrics, REWARD, StepMetrics};
use rljob_protocol::status::CoordinatorStatus;

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
    /// Number of samples that were sampled again because they were too old.
    pub stale_samples: IntCounter,
    /// Samples that were rejected because their verifier failed, by cause.
    pub rejected_samples: IntCounterVec,
    /// Dataset rows that were dropped because of their reference answers.
    pub dropped_rows: IntGauge,
    evaluation: EvaluationGauges,
    staleness: Histogram,
    step_seconds: Histogram,
}

impl Metrics {
    /// All metrics, at 0.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        Ok(Self {
            step: gauge(&registry, "rljob_step", "Steps done.")?,
            reward: register(
                &registry,
                Gauge::new("rljob_reward", "Mean reward of the newest step.")?,
            )?,
            restarts: gauge(
                &registry,
                "rljob_counted_restarts",
                "Restarts of the learners that count against failurePolicy.maxRestarts.",
            )?,
            lag: gauge(
                &registry,
                "rljob_engine_version_lag",
                "Steps by which the engine furthest behind lags the newest published weights.",
            )?,
            rollout_tokens: counter(
                &registry,
                "rljob_rollout_tokens_total",
                "Completion tokens sampled for batches.",
            )?,
            samples: counter(
                &registry,
                "rljob_samples_total",
                "Samples finished and scored for batches.",
            )?,
            interrupted: counter(
                &registry,
                "rljob_interruptions_total",
                "Interruptions of samples, which were continued or retried.",
            )?,
            dropped_groups: counter(
                &registry,
                "rljob_dropped_groups_total",
                "Groups left out of batches because their rewards have zero variance.",
            )?,
            stale_samples: counter(
                &registry,
                "rljob_stale_samples_total",
                "Samples made again because they were too old to be trained on.",
            )?,
            rejected_samples: rejected_samples(&registry)?,
            dropped_rows: gauge(
                &registry,
                "rljob_dropped_rows",
                "Dataset rows dropped because no reward can compare their reference answers.",
            )?,
            evaluation: EvaluationGauges::new(&registry)?,
            staleness: staleness(&registry)?,
            step_seconds: step_seconds(&registry)?,
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
        let EvaluationGauges { step, sampled, greedy, rejected } = &self.evaluation;
        step.set(metrics.step.into());
        let set = |gauges: &[Gauge; 2], mean: Option<f64>, error: Option<f64>| {
            let [value, standard_error] = gauges;
            value.set(mean.unwrap_or(f64::NAN));
            standard_error.set(error.unwrap_or(f64::NAN));
        };
        set(sampled, metrics.sampled, metrics.sampled_standard_error);
        set(greedy, metrics.greedy, metrics.greedy_standard_error);
        rejected.set(metrics.rejected.unwrap_or(0).into());
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
        let (newest, oldest) = (versions().max(), versions().min());
        self.lag.set(newest.unwrap_or_default().saturating_sub(oldest.unwrap_or_default()));
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn step_seconds(registry: &Registry) -> Result<Histogram, prometheus::Error> {
    let help = "Seconds from the end of the step before to the end of a step.";
    let options = HistogramOpts::new("rljob_step_seconds", help)
        .buckets(prometheus::exponential_buckets(0.1, 2.0, 16)?);
    register(registry, Histogram::with_opts(options)?)
}

fn staleness(registry: &Registry) -> Result<Histogram, prometheus::Error> {
    let help = "Steps done since the oldest weights that a sample trained on was sampled with.";
    let options = HistogramOpts::new("rljob_sample_staleness", help)
        .buckets(prometheus::linear_buckets(0.0, 1.0, STALENESS_BUCKETS)?);
    register(registry, Histogram::with_opts(options)?)
}

/// The newest evaluation. NaN before the first one and for what it does not measure.
#[derive(Clone)]
struct EvaluationGauges {
    step: IntGauge,
    /// Mean and standard error.
    sampled: [Gauge; 2],
    greedy: [Gauge; 2],
    rejected: IntGauge,
}

impl EvaluationGauges {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let real = |name: &str, help: &str| {
            let real = register(registry, Gauge::new(name, help)?)?;
            real.set(f64::NAN);
            Ok::<_, prometheus::Error>(real)
        };
        let integer = |name: &str, help: &str| gauge(registry, name, help);
        Ok(Self {
            step: integer("rljob_evaluation_step", "Steps done at the newest evaluation.")?,
            sampled: [
                real("rljob_evaluation_sampled", "Mean reward of sampled completions.")?,
                real("rljob_evaluation_sampled_standard_error", "Its standard error.")?,
            ],
            greedy: [
                real("rljob_evaluation_greedy", "Mean reward of greedy completions.")?,
                real("rljob_evaluation_greedy_standard_error", "Its standard error.")?,
            ],
            rejected: integer(
                "rljob_evaluation_rejected",
                "Completions of the newest evaluation whose verifier failed.",
            )?,
        })
    }
}

fn rejected_samples(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Samples left out of batches because their verifier failed.";
    let options = Opts::new("rljob_rejected_samples_total", help);
    register(registry, IntCounterVec::new(options, &["cause"])?)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    register(registry, IntGauge::new(name, help)?)
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    register(registry, IntCounter::new(name, help)?)
}

fn register<C>(registry: &Registry, metric: C) -> Result<C, prometheus::Error>
where
    C: prometheus::core::Collector + Clone + 'static,
{
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
