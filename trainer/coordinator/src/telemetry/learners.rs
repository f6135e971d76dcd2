//! Metrics of the steps that learners report: times, speed, memory.

use prometheus::{Counter, CounterVec, Gauge, Opts, Registry};
use rljob_crds::dataflow::LearnerCall;
use rljob_protocol::metrics::{
    GRADIENT_NORM, MFU, PEAK_MEMORY, ROLLOUT_SECONDS, SYNC_SECONDS, StepMetrics, TOKENS_PER_SECOND,
    TRAIN_SECONDS, WAIT_SECONDS,
};

use super::register::register;

/// What learners report of their steps.
#[derive(Clone)]
pub struct LearnerMetrics {
    /// By phase.
    seconds: CounterVec,
    /// By call of the dataflow.
    calls: CounterVec,
    rollouts: Counter,
    syncs: Counter,
    gradient_norm: Gauge,
    tokens_per_second: Gauge,
    /// NaN on CPUs, as are `mfu` and `peak_memory`.
    tokens_per_second_per_gpu: Gauge,
    mfu: Gauge,
    peak_memory: Gauge,
    /// GPUs of the trainer.
    gpus: u32,
}

impl LearnerMetrics {
    pub fn new(registry: &Registry, gpus: u32) -> Result<Self, prometheus::Error> {
        let real = |name: &str, help: &str| {
            let real = register(registry, Gauge::new(name, help)?)?;
            real.set(f64::NAN);
            Ok::<_, prometheus::Error>(real)
        };
        let total = |name: &str, help: &str| register(registry, Counter::new(name, help)?);
        let help = "Seconds of the learners by phase: `train` for passes and updates, `wait` \
                    without an instruction.";
        let options = Opts::new("rljob_learner_seconds_total", help);
        let seconds = register(registry, CounterVec::new(options, &["phase"])?)?;
        let help = "Seconds of steps by call of learners. Calls are parts of the phase `train`, \
                    except that of a reference in a group of trainer.groups.";
        let options = Opts::new("rljob_learner_call_seconds_total", help);
        let calls = register(registry, CounterVec::new(options, &["call"])?)?;
        for call in LearnerCall::ALL {
            // Creates the series.
            calls.with_label_values(&[label(call)]);
        }
        let rollouts = "Seconds of steps from their first prompt to their last reward.";
        let syncs = "Seconds from the publication of weights to the first engine with them.";
        let per_gpu = "Tokens of the newest step's batch by the seconds of the step and by the \
                       GPUs of the trainer.";
        let mfu = "Share of the GPUs' bf16 operations that the newest step used while it trained.";
        let peak = "Most memory that tensors used on a GPU of a learner since its start.";
        let norm = "L2 norm of the newest step's gradient before clipping.";
        let speed = "Tokens of the newest step's batch by the seconds of the step.";
        Ok(Self {
            seconds,
            calls,
            rollouts: total("rljob_rollout_seconds_total", rollouts)?,
            syncs: total("rljob_weight_sync_seconds_total", syncs)?,
            gradient_norm: real("rljob_gradient_norm", norm)?,
            tokens_per_second: real("rljob_tokens_per_second", speed)?,
            tokens_per_second_per_gpu: real("rljob_tokens_per_second_per_gpu", per_gpu)?,
            mfu: real("rljob_learner_mfu", mfu)?,
            peak_memory: real("rljob_learner_peak_memory_bytes", peak)?,
            gpus,
        })
    }

    pub fn step_done(&self, metrics: &StepMetrics) {
        let seconds = |name: &str| metrics.get(name).unwrap_or_default().max(0.0);
        for (phase, name) in [("train", TRAIN_SECONDS), ("wait", WAIT_SECONDS)] {
            self.seconds.with_label_values(&[phase]).inc_by(seconds(name));
        }
        for call in LearnerCall::ALL {
            self.calls.with_label_values(&[label(call)]).inc_by(seconds(call.seconds()));
        }
        self.rollouts.inc_by(seconds(ROLLOUT_SECONDS));
        self.syncs.inc_by(seconds(SYNC_SECONDS));
        let gauges = [
            (&self.gradient_norm, GRADIENT_NORM),
            (&self.tokens_per_second, TOKENS_PER_SECOND),
            (&self.mfu, MFU),
            (&self.peak_memory, PEAK_MEMORY),
        ];
        for (gauge, name) in gauges {
            gauge.set(metrics.get(name).unwrap_or(f64::NAN));
        }
        let speed = metrics.get(TOKENS_PER_SECOND).filter(|_| self.gpus > 0);
        let per_gpu = speed.map(|speed| speed / f64::from(self.gpus));
        self.tokens_per_second_per_gpu.set(per_gpu.unwrap_or(f64::NAN));
    }
}

/// Name of a call: that of its seconds.
fn label(call: LearnerCall) -> &'static str {
    call.seconds().trim_end_matches("Seconds")
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder as _, TextEncoder};

    use super::*;

    /// Samples after steps, without help and type.
    fn samples(gpus: u32, steps: &[&[(&'static str, f64)]]) -> Vec<String> {
        let registry = Registry::new();
        let metrics = LearnerMetrics::new(&registry, gpus).unwrap();
        for (step, scalars) in (1..).zip(steps) {
            metrics.step_done(&StepMetrics::with_scalars(step, scalars.iter().copied()));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(ToOwned::to_owned).collect()
    }

    #[test]
    fn times_add_up_and_gauges_are_of_the_newest_step() {
        let first = [(TRAIN_SECONDS, 4.0), ("referenceSeconds", 1.0), ("policySeconds", 3.0)];
        let second = [
            (TRAIN_SECONDS, 2.0),
            (WAIT_SECONDS, 1.0),
            ("policySeconds", 2.0),
            (ROLLOUT_SECONDS, 5.0),
            (SYNC_SECONDS, 0.5),
            (TOKENS_PER_SECOND, 1200.0),
            (MFU, 0.4),
            (PEAK_MEMORY, 7.0),
            (GRADIENT_NORM, 0.25),
        ];
        let expected = "\
            rljob_gradient_norm 0.25
            rljob_learner_call_seconds_total{call=\"advantage\"} 0
            rljob_learner_call_seconds_total{call=\"critic\"} 0
            rljob_learner_call_seconds_total{call=\"policy\"} 5
            rljob_learner_call_seconds_total{call=\"proximal\"} 0
            rljob_learner_call_seconds_total{call=\"reference\"} 1
            rljob_learner_call_seconds_total{call=\"value\"} 0
            rljob_learner_mfu 0.4
            rljob_learner_peak_memory_bytes 7
            rljob_learner_seconds_total{phase=\"train\"} 6
            rljob_learner_seconds_total{phase=\"wait\"} 1
            rljob_rollout_seconds_total 5
            rljob_tokens_per_second 1200
            rljob_tokens_per_second_per_gpu 300
            rljob_weight_sync_seconds_total 0.5";
        let expected: Vec<&str> = expected.lines().map(str::trim).collect();
        assert_eq!(samples(4, &[&first, &second]), expected);
        let on_cpus = samples(0, &[&second]);
        assert!(on_cpus.contains(&"rljob_tokens_per_second_per_gpu NaN".to_owned()), "{on_cpus:?}");
    }
}
