//! Rules of evaluations on separate engines.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Algorithm;
use rljob_crds::data::EvaluationDataset;
use rljob_crds::evaluation::SeparateEvaluationSpec;
use rljob_crds::roles::{EngineKind, InferenceSpec};

use super::common::EVALUATION;
use super::roles::check_inference;
use crate::validate::Problem;

const PATH: &str = "spec.evaluation";

pub(super) fn check_evaluation(
    spec: &RLJobSpec,
    evaluation: &SeparateEvaluationSpec,
    problems: &mut Vec<Problem>,
) {
    let engines = &evaluation.engines;
    check_inference(EVALUATION.field, engines, problems);
    let mut problem = |path: String, message: &str| problems.push(Problem::new(path, message));
    if engines.replicas < 1 {
        problem(format!("{PATH}.engines.replicas"), "must be at least 1");
    }
    if is_unset(engines) && spec.inference.engine() == EngineKind::SGLang {
        let message = "must set sglang, or embedded for a small model on CPUs: inference runs \
                       SGLang, and nothing is inherited";
        problem(format!("{PATH}.engines"), message);
    }
    if engines.min_replicas.is_some() {
        let message = "has no effect: a queue admits all of them; remove it";
        problem(format!("{PATH}.engines.minReplicas"), message);
    }
    let algorithm = spec.algorithm.resolve();
    if !spec.algorithm.has_learners() {
        let message = "is not used by algorithm.evaluation, which has no training beside it: \
                       inference engines evaluate; remove it";
        return problem(PATH.to_owned(), message);
    }
    if algorithm.is_some_and(Algorithm::trains_scores) {
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

/// Whether the kind of the engines follows from nothing in their spec.
fn is_unset(engines: &InferenceSpec) -> bool {
    engines.sglang.is_none() && engines.embedded.is_none() && engines.gpus() == 0
}
