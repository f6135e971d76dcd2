//! Regex reward: 1 if the pattern matches the completion.

use futures::future::{BoxFuture, FutureExt as _, ready};
use regex::Regex;
use rljob_crds::reward::RegexReward;

use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

#[derive(Debug)]
pub struct RegexVerifier {
    pattern: Regex,
}

impl RegexVerifier {
    pub fn new(spec: &RegexReward) -> Result<Self, regex::Error> {
        Ok(Self { pattern: Regex::new(&spec.pattern)? })
    }
}

impl Verifier for RegexVerifier {
    fn description(&self) -> String {
        format!("regex `{}`", self.pattern)
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        ready(Ok(self.pattern.is_match(question.completion).into())).boxed()
    }
}
