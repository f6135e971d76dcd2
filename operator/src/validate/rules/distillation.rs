//! Rules of teachers, of `distillation` and beside the rewards of `grpo`, and of off-policy
//! distillation.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::distillation::DistillationSpec;
use rljob_crds::algorithm::grpo::{GrpoSpec, LossAggregation};
use rljob_crds::algorithm::teacher::TeacherSource;

use super::common::check_union;
use super::roles::check_further_engines;
use super::sources::check_run_path;
use crate::validate::Problem;

/// Rules of the settings.
pub(super) fn check(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    if let Some((path, teacher)) = spec.algorithm.teacher_field() {
        check_teacher(path, teacher, spec, problems);
    }
    if let Some(grpo) = &spec.algorithm.grpo {
        check_joint(grpo, problems);
    }
    if let Some(distillation) = &spec.algorithm.distillation {
        check_union("spec.algorithm.distillation.teacher", &distillation.teacher, problems);
        check_off_policy(distillation, problems);
    }
}

fn check_joint(grpo: &GrpoSpec, problems: &mut Vec<Problem>) {
    let Some(joint) = &grpo.distillation else { return };
    check_union("spec.algorithm.grpo.distillation.teacher", &joint.teacher, problems);
    if grpo.kl_coefficient > 0.0 {
        let message = "is not used with distillation: the teacher takes the place of the \
            reference model; remove one of them";
        problems.push(Problem::new("spec.algorithm.grpo.klCoefficient", message));
    }
}

fn check_teacher(
    path: &str,
    teacher: TeacherSource<'_>,
    spec: &RLJobSpec,
    problems: &mut Vec<Problem>,
) {
    if let Some(folder) = teacher.path {
        check_run_path(&format!("{path}.path"), folder, problems);
    }
    if let Some(engines) = teacher.engines {
        let field = format!("{}.engines", path.trim_start_matches("spec."));
        check_further_engines(&field, engines, spec, problems);
    }
    let mut problem = |own: &str, message: String| {
        problems.push(Problem::new(format!("{path}.{own}"), message));
    };
    if teacher.engines.is_some() && teacher.path.is_none() {
        problem("path", "is missing: the folder of the model of engines".to_owned());
    }
    if teacher.has_calls() && teacher.engines.is_none() {
        problem("calls", "are those of engines: set engines, or remove it".to_owned());
    }
    let sources = [("server", teacher.server.is_some()), ("engines", teacher.engines.is_some())];
    let served = sources.into_iter().find(|(_, is_set)| *is_set);
    let temperature = spec.rollout.temperature;
    if let Some((own, _)) = served.filter(|_| temperature.to_bits() != 1.0_f64.to_bits()) {
        let message = format!(
            "needs rollout.temperature 1, at which a served teacher computes log-probabilities of \
                given tokens; found {temperature}"
        );
        problem(own, message);
    }
}

fn check_off_policy(distillation: &DistillationSpec, problems: &mut Vec<Problem>) {
    if distillation.off_policy.is_none() {
        return;
    }
    let path = "spec.algorithm.distillation";
    if distillation.teacher.source().held().is_none() {
        let message = "needs teacher.path without teacher.engines: learners compute the teacher's \
                       most likely tokens";
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
