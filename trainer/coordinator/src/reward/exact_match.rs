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

    fn check_structure(&self) -> Result<(), &'static str> {
        Err("it is a list or an object, and exactMatch compares text")
    }

    fn answer_classes(&self, completions: &[&str]) -> Option<Vec<Option<usize>>> {
        let class = |text: &&str| completions.iter().position(|other| other.trim() == text.trim());
        Some(completions.iter().map(class).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rljob_crds::reward::{ExactMatchReward, RewardSpec};

    use crate::reward::{Rewards, Runner, UnusableAnswer};

    #[test]
    fn lists_and_objects_are_unusable_reference_answers_and_their_text_is_usable() {
        let spec =
            RewardSpec { exact_match: Some(ExactMatchReward::default()), ..RewardSpec::default() };
        let rewards = Rewards::new(&[spec], &Runner::Program(PathBuf::new()), None).unwrap();
        let list = "[1, 2]";
        assert_eq!(rewards.check_answer(list, false), Ok(()));
        let reason = "it is a list or an object, and exactMatch compares text";
        let (reward, excerpt) = ("reward".to_owned(), list.to_owned());
        let expected = UnusableAnswer { reward, excerpt, reason };
        assert_eq!(rewards.check_answer(list, true), Err(expected));
    }
}
