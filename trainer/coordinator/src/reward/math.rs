//! Math reward: 1 if a completion's final answer equals the reference answer by value
//! (`rljob-math`).

use futures::future::{BoxFuture, FutureExt as _, ready};
use rljob_crds::reward::{AnswerPlace, MathReward};
use rljob_math::{Place, answer_classes, parse_reference, verdict};

use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

#[derive(Debug)]
pub struct MathVerifier {
    places: Vec<Place>,
}

impl MathVerifier {
    pub fn new(spec: &MathReward) -> Self {
        Self { places: spec.extract.iter().copied().map(place).collect() }
    }

    fn is_correct(&self, completion: &str, answer: &str) -> bool {
        parse_reference(answer).is_ok_and(|reference| verdict(completion, &reference, &self.places))
    }
}

impl Verifier for MathVerifier {
    fn description(&self) -> String {
        "math".to_owned()
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        let is_correct = |answer| self.is_correct(question.completion, answer);
        ready(Ok(question.answer.is_some_and(is_correct).into())).boxed()
    }

    fn needs_answers(&self) -> bool {
        true
    }

    fn check_answer(&self, answer: &str) -> Result<(), &'static str> {
        parse_reference(answer).map(drop).map_err(|unsupported| unsupported.0)
    }

    fn answer_classes(&self, completions: &[&str]) -> Option<Vec<Option<usize>>> {
        Some(answer_classes(completions, &self.places))
    }
}

fn place(place: AnswerPlace) -> Place {
    match place {
        AnswerPlace::Hashes => Place::Hashes,
        AnswerPlace::Boxed => Place::Boxed,
        AnswerPlace::Phrase => Place::Phrase,
        AnswerPlace::Formula => Place::Formula,
        AnswerPlace::LastNumber => Place::LastNumber,
    }
}
