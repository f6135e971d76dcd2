//! Rules of `distillation`: its teacher, and the settings of off-policy distillation.

use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::algorithm::distillation::{DistillationSpec, TeacherSpec};
use rljob_crds::algorithm::grpo::LossAggregation;

use super::common::check_union;
use crate::validate::Problem;

/// Rules of the settings.
pub(super) fn check(
    distillation: &DistillationSpec,
    rollout: &RolloutSpec,
    problems: &mut Vec<Problem>,
) {
    check_teacher(&distillation.teacher, rollout, problems);
    check_off_policy(distillation, problems);
}

fn check_teacher(teacher: &TeacherSpec, rollout: &RolloutSpec, problems: &mut Vec<Problem>) {
    let path = "spec.algorithm.distillation.teacher";
    check_union(path, teacher, problems);
    if teacher.server.is_some() && rollout.temperature.to_bits() != 1.0_f64.to_bits() {
        let message = format!(
            "needs rollout.temperature 1, at which servers compute log-probabilities of given \
                tokens; found {}",
            rollout.temperature
        );
        problems.push(Problem::new(format!("{path}.server"), message));
    }
}

fn check_off_policy(distillation: &DistillationSpec, problems: &mut Vec<Problem>) {
    if distillation.off_policy.is_none() {
        return;
    }
    let path = "spec.algorithm.distillation";
    if distillation.teacher.path.is_none() {
        let message = "needs teacher.path: learners compute the teacher's most likely tokens";
        problems.push(Problem::new(format!("{path}.offPolicy"), message));
    }
    for (field, is_set) in [
        ("groupSize", distillation.group_size != 1),
        ("lossAggregation", distillation.loss_aggregation != LossAggregation::Token),
    ] {
        if is_set {
            let message = "is not used with offPolicy; remove it";
            problems.push(Problem::new(format!("{path}.{field}"), message));
        }
    }
}
