//! Rules of `distillation`: its teacher, and the settings of off-policy distillation.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::distillation::{DistillationSpec, TeacherSpec};
use rljob_crds::algorithm::grpo::LossAggregation;

use super::common::check_union;
use super::roles::check_further_engines;
use super::sources::check_run_path;
use crate::validate::Problem;

/// Field of the teacher.
const TEACHER: &str = "algorithm.distillation.teacher";

/// Rules of the settings.
pub(super) fn check(
    distillation: &DistillationSpec,
    spec: &RLJobSpec,
    problems: &mut Vec<Problem>,
) {
    check_teacher(&distillation.teacher, spec, problems);
    check_off_policy(distillation, problems);
}

fn check_teacher(teacher: &TeacherSpec, spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let path = format!("spec.{TEACHER}");
    check_union(&path, teacher, problems);
    if let Some(folder) = &teacher.path {
        check_run_path(&format!("{path}.path"), folder, problems);
    }
    if let Some(engines) = &teacher.engines {
        check_further_engines(&format!("{TEACHER}.engines"), engines, spec, problems);
    }
    let mut problem = |own: &str, message: String| {
        problems.push(Problem::new(format!("{path}.{own}"), message));
    };
    if teacher.engines.is_some() && teacher.path.is_none() {
        problem("path", "is missing: the folder of the model of engines".to_owned());
    }
    if teacher.calls.is_some() && teacher.engines.is_none() {
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
    if distillation.teacher.held().is_none() {
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
