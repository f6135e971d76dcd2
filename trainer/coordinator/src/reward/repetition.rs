//! Repetition reward: a penalty on n-grams of words that a completion repeats (Yeo et al., arXiv
//! 2502.03373), with the words of Open-R1's `get_repetition_penalty_reward`.

use std::collections::BTreeSet;

use futures::future::{BoxFuture, FutureExt as _, ready};
use rljob_crds::repetition_reward::RepetitionReward;

use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

#[derive(Debug)]
pub struct RepetitionVerifier {
    spec: RepetitionReward,
}

impl RepetitionVerifier {
    pub fn new(spec: &RepetitionReward) -> Self {
        Self { spec: spec.clone() }
    }

    /// `maxPenalty` × (1 − distinct n-grams ÷ n-grams); 0 without an n-gram.
    fn penalty(&self, completion: &str) -> f64 {
        let text = completion.to_lowercase();
        let words: Vec<&str> = text.split_whitespace().collect();
        let ngrams = words.windows(self.spec.ngram_size.max(1) as usize);
        let all = ngrams.len();
        let repeated = all.saturating_sub(ngrams.collect::<BTreeSet<_>>().len());
        if repeated == 0 {
            return 0.0;
        }
        self.spec.max_penalty * repeated as f64 / all as f64
    }
}

impl Verifier for RepetitionVerifier {
    fn description(&self) -> String {
        format!("repetition of {} words", self.spec.ngram_size)
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        let value = self.penalty(question.completion);
        ready(Ok(Score { value, ..Score::default() })).boxed()
    }
}
