//! Rules of preference pairs: algorithms that learn from them need them, others have no use for
//! them.

use rljob_crds::algorithm::dpo::{DpoLoss, DpoSpec};
use rljob_crds::algorithm::{Algorithm, DataKind};
use rljob_crds::data::DatasetSpec;

use crate::validate::Problem;

pub(super) fn check_pairs(
    dataset: &DatasetSpec,
    algorithm: Algorithm<'_>,
    problems: &mut Vec<Problem>,
) {
    let name = algorithm.name();
    let learns_pairs = algorithm.data() == DataKind::Pairs;
    let train = &dataset.train;
    let sides = [train.chosen.is_some(), train.rejected.is_some()];
    check_both("spec.dataset.train", sides, problems);
    // A missing `train` is reported by `check_training`.
    if learns_pairs && sides == [false, false] && !train.is_absent() {
        let message = format!("is missing; algorithm.{name} learns from chosen and rejected");
        problems.push(Problem::new("spec.dataset.train.chosen", message));
    }
    let unused = |path: &str| {
        let message = format!("is not used by algorithm.{name}; remove it");
        Problem::new(format!("spec.dataset.{path}"), message)
    };
    if !learns_pairs && train.chosen.is_some() {
        problems.push(unused("train.chosen"));
    }
    if learns_pairs && train.completion.is_some() {
        problems.push(unused("train.completion"));
    }
    let Some(evaluation) = &dataset.evaluation else { return };
    let sides = [evaluation.chosen.is_some(), evaluation.rejected.is_some()];
    check_both("spec.dataset.evaluation", sides, problems);
    if !learns_pairs && evaluation.chosen.is_some() {
        problems.push(unused("evaluation.chosen"));
    }
    if algorithm.trains_scores() && evaluation.measures_accuracy() {
        problems.push(unused("evaluation.answer"));
    }
}

fn check_both(path: &str, sides: [bool; 2], problems: &mut Vec<Problem>) {
    let missing = match sides {
        [true, false] => "rejected",
        [false, true] => "chosen",
        _ => return,
    };
    let message = "is missing; set chosen and rejected together";
    problems.push(Problem::new(format!("{path}.{missing}"), message));
}

/// Rules of the loss of `dpo`.
pub(super) fn check_dpo(dpo: &DpoSpec, problems: &mut Vec<Problem>) {
    if dpo.loss != DpoLoss::Sigmoid && dpo.label_smoothing > 0.0 {
        let message = "needs loss Sigmoid";
        problems.push(Problem::new("spec.algorithm.dpo.labelSmoothing", message));
    }
}
