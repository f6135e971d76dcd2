//! Learning-rate schedule: linear warm-up, then constant, linear or cosine decay. A pure function
//! of the step, so that a restored run continues the schedule.

use rljob_crds::algorithm::{OptimizerSpec, Schedule};

/// The learning rate of optimizer step `step` (from 1) of `steps`. All minibatches of a step share
/// it.
///
/// The full rate is reached at step `warmupSteps`, or at step 1 without warm-up. Decay would reach
/// `minimumLearningRate` one step after the last.
pub fn learning_rate(spec: &OptimizerSpec, step: u32, steps: u32) -> f64 {
    let (step, steps, warmup) = (f64::from(step), f64::from(steps), f64::from(spec.warmup_steps));
    if step < warmup {
        return spec.learning_rate * step / warmup;
    }
    let peak = warmup.max(1.0);
    let progress = ((step - peak) / (steps - peak + 1.0).max(1.0)).clamp(0.0, 1.0);
    let factor = match spec.schedule {
        Schedule::Constant => 1.0,
        Schedule::Linear => 1.0 - progress,
        Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
    };
    let minimum = spec.minimum_learning_rate;
    spec.learning_rate * (minimum + (1.0 - minimum) * factor)
}

#[cfg(test)]
mod tests {
    use super::learning_rate;
    use rljob_crds::algorithm::{OptimizerSpec, Schedule};

    fn rates(schedule: Schedule, warmup_steps: u32, steps: u32) -> Vec<f64> {
        let spec = OptimizerSpec {
            learning_rate: 8.0,
            warmup_steps,
            schedule,
            ..OptimizerSpec::default()
        };
        (1..=steps).map(|step| (learning_rate(&spec, step, steps) * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn the_rate_rises_linearly_and_then_follows_its_schedule_to_the_last_step() {
        assert_eq!(rates(Schedule::Constant, 0, 3), [8.0, 8.0, 8.0]);
        assert_eq!(rates(Schedule::Constant, 4, 6), [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]);
        assert_eq!(rates(Schedule::Linear, 2, 5), [4.0, 8.0, 6.0, 4.0, 2.0]);
        assert_eq!(rates(Schedule::Linear, 0, 4), [8.0, 6.0, 4.0, 2.0]);
        assert_eq!(rates(Schedule::Cosine, 0, 4), [8.0, 6.828_427, 4.0, 1.171_573]);
    }

    #[test]
    fn the_rate_does_not_fall_below_its_minimum() {
        let spec = OptimizerSpec {
            learning_rate: 8.0,
            minimum_learning_rate: 0.5,
            schedule: Schedule::Linear,
            ..OptimizerSpec::default()
        };
        let rates = [1, 2, 3, 4, 9].map(|step| learning_rate(&spec, step, 4).to_string());
        assert_eq!(rates, ["8", "7", "6", "5", "4"]);
    }

    #[test]
    fn a_warm_up_longer_than_the_run_has_no_decay() {
        assert_eq!(rates(Schedule::Linear, 8, 3), [1.0, 2.0, 3.0]);
        assert_eq!(rates(Schedule::Cosine, 2, 2), [4.0, 8.0]);
    }
}
