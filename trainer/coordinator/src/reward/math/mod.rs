//! `reward.math`: does a completion's final answer equal the reference answer by value? Pure, and
//! bounded in time for any text.
//!
//! ```text
//!  completion ─ extract ─▶ text of the answer ─ lex ─▶ characters ─ answer, expression ─▶ Answer ─┐
//!  reference  ─ extract ─▶ …                                                                      ┴─▶ equals
//! ```
//!
//! Rationals, square roots and π are compared exactly ([`surd`]); what has no such form is compared
//! as doubles to nine digits ([`number`]). Units, currencies and names (`x =`) are passed over: `5
//! cm` is 5. Texts with variables (`2x + 1`) are no answers here: a reference answer of that kind
//! is refused before the run begins.

mod answer;
mod expression;
mod extract;
mod lex;
mod number;
mod scan;
mod surd;

use rljob_crds::reward::AnswerPlace;

/// Whether the completion's final answer, looked for at `places` in turn, equals the reference
/// answer.
pub fn correct(completion: &str, reference: &str, places: &[AnswerPlace]) -> bool {
    let expected = extract::reference_answer(reference);
    let found = extract::final_answer(completion, places);
    expected.iter().any(|expected| found.iter().any(|found| expected.equals(found)))
}

/// Whether a completion could equal the reference answer.
pub fn is_usable(reference: &str) -> bool {
    !extract::reference_answer(reference).is_empty()
}

/// For each completion the index of the first one whose final answer, looked for at `places` in
/// turn, equals its own; none without an answer.
pub fn answers(completions: &[&str], places: &[AnswerPlace]) -> Vec<Option<usize>> {
    let found: Vec<_> =
        completions.iter().map(|completion| extract::final_answer(completion, places)).collect();
    let equal = |one: &[answer::Answer], other: &[answer::Answer]| {
        one.iter().any(|one| other.iter().any(|other| one.equals(other)))
    };
    found.iter().map(|own| found.iter().position(|other| equal(own, other))).collect()
}

#[cfg(test)]
mod tests;
