//! Equality of mathematical answers: is the final answer of a completion equal to the reference
//! answer? Pure, exact, and bounded in time and memory for any text.
//!
//! ```text
//!  completion ─ extract ─▶ text ─ lex ─▶ tokens ─ answer ─▶ Answer ─┐
//!                (Place)                   │ ▲                      ├─▶ equals ─▶ bool
//!  reference  ─ extract ─▶ text ─ lex ─▶ tokens ─ answer ─▶ Answer ─┘
//!                                          ▼ │
//!                                         parse ─▶ algebra::Value
//! ```
//!
//! Rules:
//! - The parser consumes all of an answer's text. No number is taken from the middle of a formula.
//! - An answer that cannot be computed, as one with `\int` or `\dot{x}`, equals the same text in
//!   another style only. One without a meaning is [`Unsupported`] and equals nothing: `1/0`, and
//!   ambiguous texts such as `1/2x`.
//! - Arithmetic is exact: rationals, roots, π, e, i, logarithms and variables have a canonical form
//!   (`algebra`). `0.333` is not `\frac{1}{3}`. Values with functions that have no exact form, such
//!   as `\sin 1` or nested roots, are compared to 10 digits, and only if both are irrational
//!   (`algebra::numeric`).
//! - `50\%` is 50 and 0.5; `0.2\%` is 0.002 only. A unit is compared if both sides have a known
//!   one: `5 m` is `500 cm`.
//! - `x = 5` is 5. `a = 2, b = 3` is compared by name, else in the order of the text.
//! - Text after a number is a unit or a noun; words such as `less` or `not` are unsupported. Nouns
//!   are not compared.
//! - `(1, 2)` is a pair or an open interval; `[5, ∞)` is `x ≥ 5`.
//! - Equations are equal if one is a constant multiple of the other after all terms are on one
//!   side.
//!
//! Bounds (`limits`): answers of 2048 bytes, numbers of 1000 digits and 8192 bits, 256 terms,
//! exponents of 4096, nesting of 24, and fuel for about 10 ms per parse and per direction of a
//! comparison. Extraction is linear in the text for each place.
//!
//! Compared with: Hendrycks MATH `is_equiv` and Minerva normalize strings and compare them;
//! Math-Verify parses with ANTLR and compares with SymPy, with rounding and timeouts. The
//! extraction order follows Math-Verify; the forms follow GSM8K, MATH, AIME and olympiad answers.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod algebra;
mod answer;
mod extract;
mod lex;
mod limits;
mod parse;
mod places;
mod scan;
mod units;

pub use limits::Unsupported;
pub use places::Place;

use answer::Answer;

/// A parsed reference answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    interpretations: Vec<Answer>,
}

/// Parses a reference answer: the text after `####`, the content of the last box, the whole text,
/// or the text after `answer is`.
pub fn parse_reference(text: &str) -> Result<Reference, Unsupported> {
    extract::reference_answer(text).map(|interpretations| Reference { interpretations })
}

/// The text of a reference answer without what surrounds it: the text after `####`, the content of
/// the last box, or the whole text.
pub fn reference_text(text: &str) -> &str {
    extract::reference_text(text)
}

/// Whether the completion's final answer equals the reference answer. The first of `places` in the
/// completion has the answer; several boxes are also compared as a list.
pub fn verdict(completion: &str, reference: &Reference, places: &[Place]) -> bool {
    let found = extract::final_answer(completion, places).unwrap_or_default();
    let expected = &reference.interpretations;
    let is_list = |answer: &Answer| {
        matches!(answer, Answer::List(_) | Answer::Set(_) | Answer::Assignments(_))
    };
    equal(&found, expected)
        || expected.iter().any(is_list)
            && extract::boxed_list(completion, places)
                .is_some_and(|list| equal(std::slice::from_ref(&list), expected))
}

/// For each completion the index of the first completion with an equal final answer; `None` without
/// an answer.
pub fn answer_classes(completions: &[&str], places: &[Place]) -> Vec<Option<usize>> {
    let found: Vec<Vec<Answer>> = completions
        .iter()
        .map(|completion| extract::final_answer(completion, places).unwrap_or_default())
        .collect();
    found.iter().map(|left| found.iter().position(|right| equal(left, right))).collect()
}

fn equal(left: &[Answer], right: &[Answer]) -> bool {
    left.iter().any(|left| right.iter().any(|right| left.equals(right)))
}
