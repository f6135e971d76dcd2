//! Rules of evaluations on separate engines.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Capabilities;
use rljob_crds::data::EvaluationDataset;
use rljob_crds::evaluation::SeparateEvaluationSpec;

use super::roles::check_further_engines;
use crate::validate::Problem;

const PATH: &str = "spec.evaluation";

pub(super) fn check_evaluation(
    spec: &RLJobSpec,
    evaluation: &SeparateEvaluationSpec,
    problems: &mut Vec<Problem>,
) {
    check_further_engines("evaluation.engines", &evaluation.engines, spec, problems);
    let mut problem = |path: String, message: &str| problems.push(Problem::new(path, message));
    let algorithm = spec.algorithm.capabilities();
    if !spec.algorithm.has_learners() {
        let message = "is not used by algorithm.evaluation, which has no training beside it: \
                       inference engines evaluate; remove it";
        return problem(PATH.to_owned(), message);
    }
    if algorithm.is_some_and(Capabilities::trains_scores) {
        let message = "is not used by algorithm.rewardModel: engines serve language models only; \
                       remove it";
        return problem(PATH.to_owned(), message);
    }
    let samples =
        spec.dataset.evaluation.as_ref().is_some_and(EvaluationDataset::measures_accuracy);
    if !samples {
        let message = "needs dataset.evaluation with answer, whose prompts the engines complete";
        problem(PATH.to_owned(), message);
    }
    if spec.storage.s3.is_some() {
        let message = "cannot read weights from storage.s3: store the run on a volume, or remove \
                       evaluation";
        problem(format!("{PATH}.engines"), message);
    }
}
