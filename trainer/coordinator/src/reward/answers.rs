//! Which completions give the same answer, for majority votes.

use super::{Kind, Verifier, math};

impl Verifier {
    /// For each completion the number of its answer: equal answers have equal numbers, none has
    /// none. None if the verifier cannot tell answers apart.
    pub fn answers(&self, completions: &[&str]) -> Option<Vec<Option<usize>>> {
        match &self.kind {
            Kind::Math(places) => Some(math::answers(completions, places)),
            Kind::ExactMatch => {
                let trimmed: Vec<_> =
                    completions.iter().map(|completion| completion.trim()).collect();
                Some(
                    trimmed
                        .iter()
                        .map(|text| trimmed.iter().position(|other| other == text))
                        .collect(),
                )
            }
            Kind::Http(_) | Kind::Command(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::reward::RewardSpec;
    use serde_json::{Value, json};

    use super::Verifier;

    fn answers(spec: Value, completions: &[&str]) -> Option<Vec<Option<usize>>> {
        let spec: RewardSpec = serde_json::from_value(spec).unwrap();
        Verifier::new(&spec).unwrap().answers(completions)
    }

    #[test]
    fn answers_are_the_same_by_value_for_math_and_by_text_for_an_exact_match() {
        let completions = ["#### 1/2", "so \\boxed{0.5}", "nothing", "#### 3", "#### 1/2"];
        assert_eq!(
            answers(json!({"math": {}}), &completions),
            Some(vec![Some(0), Some(0), None, Some(3), Some(0)])
        );
        assert_eq!(
            answers(json!({"exactMatch": {}}), &["5", " 5\n", "6"]),
            Some(vec![Some(0), Some(0), Some(2)])
        );
        assert_eq!(answers(json!({"http": {"url": "http://localhost:1"}}), &["5"]), None);
    }
}
