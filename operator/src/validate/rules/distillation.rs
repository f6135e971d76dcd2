//! Rules of teachers, of `distillation` and beside the rewards of `grpo`, and of off-policy
//! distillation.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::distillation::{DistillationSpec, TeacherSpec};
use rljob_crds::grpo::{GrpoSpec, LossAggregation};

use super::common::check_union;
use crate::validate::Problem;

/// Rules of the settings.
pub(super) fn check(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    if let Some((path, teacher)) = spec.algorithm.teacher_field() {
        check_teacher((path, teacher), &spec.rollout, problems);
    }
    if let Some(grpo) = &spec.algorithm.grpo {
        check_joint(grpo, problems);
    }
    if let Some(distillation) = &spec.algorithm.distillation {
        check_off_policy(distillation, problems);
    }
}

fn check_joint(grpo: &GrpoSpec, problems: &mut Vec<Problem>) {
    if grpo.distillation.is_some() && grpo.kl_coefficient > 0.0 {
        let message = "is not used with distillation: the teacher takes the place of the \
            reference model; remove one of them";
        problems.push(Problem::new("spec.algorithm.grpo.klCoefficient", message));
    }
}

fn check_teacher(
    (path, teacher): (&str, &TeacherSpec),
    rollout: &RolloutSpec,
    problems: &mut Vec<Problem>,
) {
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
