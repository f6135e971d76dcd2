//! Gauges of the newest evaluation.

use prometheus::{Gauge, GaugeVec, IntGauge, Opts, Registry};
use rljob_protocol::metrics::EvaluationMetrics;

use super::register::{gauge, register};

/// The newest evaluation. NaN before the first one and for what it does not measure.
#[derive(Clone)]
pub struct EvaluationGauges {
    step: IntGauge,
    /// Mean and standard error.
    sampled: [Gauge; 2],
    greedy: [Gauge; 2],
    rejected: IntGauge,
    /// Sampled and greedy completions by suite.
    suites: [GaugeVec; 2],
}

impl EvaluationGauges {
    /// All gauges; means are NaN.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let real = |name: &str, help: &str| {
            let real = register(registry, Gauge::new(name, help)?)?;
            real.set(f64::NAN);
            Ok::<_, prometheus::Error>(real)
        };
        let integer = |name: &str, help: &str| gauge(registry, name, help);
        let of_suites = |name: &str, help: &str| {
            register(registry, GaugeVec::new(Opts::new(name, help), &["suite"])?)
        };
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
            suites: [
                of_suites("rljob_evaluation_suite_sampled", "Mean reward of sampled completions.")?,
                of_suites("rljob_evaluation_suite_greedy", "Mean reward of greedy completions.")?,
            ],
        })
    }

    /// Sets the numbers of an evaluation.
    pub fn set(&self, metrics: &EvaluationMetrics) {
        let Self { step, sampled, greedy, rejected, suites } = self;
        step.set(metrics.step.into());
        let set = |gauges: &[Gauge; 2], mean: Option<f64>, error: Option<f64>| {
            let [value, standard_error] = gauges;
            value.set(mean.unwrap_or(f64::NAN));
            standard_error.set(error.unwrap_or(f64::NAN));
        };
        set(sampled, metrics.sampled, metrics.sampled_standard_error);
        set(greedy, metrics.greedy, metrics.greedy_standard_error);
        rejected.set(metrics.rejected.unwrap_or(0).into());
        for (suite, own) in &metrics.suites {
            let [sampled, greedy] = suites;
            sampled.with_label_values(&[suite]).set(own.sampled.unwrap_or(f64::NAN));
            greedy.with_label_values(&[suite]).set(own.greedy.unwrap_or(f64::NAN));
        }
    }
}
