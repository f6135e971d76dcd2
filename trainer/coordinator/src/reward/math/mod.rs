//! Math reward: 1 if a completion's final answer equals the reference answer by value. Pure, with
//! bounded time for any text.
//!
//! ```text
//!  completion ─ extract ─▶ text ─ lex ─▶ characters ─ answer, expression ─▶ Answer ─┐
//!  reference  ─ extract ─▶ …                                                        ┴─▶ equals
//! ```
//!
//! Rationals, square roots and π are compared exactly ([`surd`]), other values as doubles to nine
//! digits ([`number`]), formulas with variables by canonical form ([`algebra`]). Units and
//! currencies are ignored: `5 cm` is 5. A text that is not understood as a whole has no answer: it
//! equals nothing, and is rejected as a reference answer when the data is opened.

mod algebra;
mod answer;
mod expression;
mod extract;
mod lex;
mod number;
mod scan;
mod surd;
mod words;

use futures::future::{BoxFuture, FutureExt as _, ready};
use rljob_crds::reward::{AnswerPlace, MathReward};

use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

#[derive(Debug)]
pub struct MathVerifier {
    places: Vec<AnswerPlace>,
}

impl MathVerifier {
    pub fn new(spec: &MathReward) -> Self {
        Self { places: spec.extract.clone() }
    }
}

impl Verifier for MathVerifier {
    fn description(&self) -> String {
        "math".to_owned()
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        let is_correct = |answer| correct(question.completion, answer, &self.places);
        ready(Ok(question.answer.is_some_and(is_correct).into())).boxed()
    }

    fn needs_answers(&self) -> bool {
        true
    }

    fn check_answer(&self, answer: &str) -> Result<(), &'static str> {
        let usable = is_usable(answer);
        usable.then_some(()).ok_or("expected a number, tuple, interval, set, formula or words")
    }

    fn answer_classes(&self, completions: &[&str]) -> Option<Vec<Option<usize>>> {
        Some(answer_classes(completions, &self.places))
    }
}

/// Whether the completion's final answer equals the reference answer. The first of `places` in the
/// completion has the answer.
fn correct(completion: &str, reference: &str, places: &[AnswerPlace]) -> bool {
    let expected = extract::reference_answer(reference);
    let found = extract::final_answer(completion, places);
    expected.iter().any(|expected| found.iter().any(|found| expected.equals(found)))
}

/// Whether the text can be parsed as a reference answer.
fn is_usable(reference: &str) -> bool {
    !extract::reference_answer(reference).is_empty()
}

/// For each completion the index of the first completion with an equal final answer; `None` without
/// an answer.
fn answer_classes(completions: &[&str], places: &[AnswerPlace]) -> Vec<Option<usize>> {
    let found: Vec<_> =
        completions.iter().map(|completion| extract::final_answer(completion, places)).collect();
    let equal = |left: &[answer::Answer], right: &[answer::Answer]| {
        left.iter().any(|left| right.iter().any(|right| left.equals(right)))
    };
    found.iter().map(|left| found.iter().position(|right| equal(left, right))).collect()
}

#[cfg(test)]
mod tests;
