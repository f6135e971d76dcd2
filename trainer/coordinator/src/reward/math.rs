//! Math reward: 1 if a completion's final answer equals the reference answer by value
//! (`rljob-math`).

use futures::future::{BoxFuture, FutureExt as _, ready};
use rljob_crds::reward::{AnswerPlace, MathReward};
use rljob_math::{Place, answer_classes, parse_reference, reference_text, verdict};

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

    fn statements(&self, answer: &str) -> Vec<String> {
        let text = reference_text(answer);
        let stated = self.places.iter().map(|place| match place {
            Place::Hashes => format!("#### {text}"),
            Place::Boxed => format!("\\boxed{{{text}}}"),
            Place::Phrase => format!("The answer is {text}"),
            Place::Formula => format!("${text}$"),
            Place::LastNumber => text.to_owned(),
        });
        std::iter::once(answer.to_owned()).chain(stated).collect()
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rljob_crds::reward::RewardSpec;
    use serde_json::json;

    use crate::reward::{Question, Rewards, Runner};

    /// The best completion that states an answer, and its score.
    async fn stated(extract: &[&str], answer: &str) -> (String, f64, bool) {
        let spec = json!({"name": "correct", "math": {"extract": extract}});
        let spec: RewardSpec = serde_json::from_value(spec).unwrap();
        let rewards = Rewards::new(&[spec], &Runner::Program(PathBuf::new()), None).unwrap();
        let question =
            Question { prompt: "", completion: answer, answer: Some(answer), fields: None };
        let best = rewards.score_statements(question, false).await.unwrap();
        (best.completion, best.value, best.unusable.is_some())
    }

    #[tokio::test]
    async fn an_answer_is_stated_in_a_place_that_the_reward_reads() {
        let all = ["Hashes", "Boxed", "Phrase", "Formula", "LastNumber"];
        for (extract, answer, expected) in [
            (&all[..], "It is 3. #### 3", ("It is 3. #### 3", 1.0, false)),
            (&all[..], "x+1", ("#### x+1", 1.0, false)),
            (&["Boxed"][..], "It is 3. #### 3", ("\\boxed{3}", 1.0, false)),
            (&["LastNumber"][..], "x+1", ("x+1", 0.0, false)),
            (&all[..], "1/2x", ("1/2x", 0.0, true)),
        ] {
            let (completion, value, is_unusable) = stated(extract, answer).await;
            assert_eq!((completion.as_str(), value, is_unusable), expected, "{extract:?} {answer}");
        }
    }
}
