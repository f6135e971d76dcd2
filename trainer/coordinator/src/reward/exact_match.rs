//! Exact-match reward: 1 if the completion equals the reference answer up to surrounding white
//! space.

use futures::future::{BoxFuture, FutureExt as _, ready};

use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

#[derive(Debug)]
pub struct ExactMatchVerifier;

impl Verifier for ExactMatchVerifier {
    fn description(&self) -> String {
        "exactMatch".to_owned()
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        let equal = |answer: &str| question.completion.trim() == answer.trim();
        ready(Ok(question.answer.is_some_and(equal).into())).boxed()
    }

    fn needs_answers(&self) -> bool {
        true
    }

    fn answer_classes(&self, completions: &[&str]) -> Option<Vec<Option<usize>>> {
        let class = |text: &&str| completions.iter().position(|other| other.trim() == text.trim());
        Some(completions.iter().map(class).collect())
    }
}
