//! Feedback after a turn: a template over the fields of the row and facts about the turn.

use std::collections::BTreeMap;

use minijinja::{Environment, ErrorKind};
use serde::Serialize;
use serde_json::Value;

use super::Dataset;
use super::field;
use super::location::RowLocation;
use super::part::Part;
use super::reader::Fields;
use super::templates::KeptFields;
use crate::jinja::{attributes, strict_environment, variables};

const TEMPLATE: &str = "feedback";
/// Variable with the facts about the turn. It hides a field of that name.
const TURN: &str = "turn";

/// A compiled template.
#[derive(Debug)]
pub struct Feedback {
    environment: Environment<'static>,
}

/// Facts about a turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TurnFacts<'a> {
    /// From 1.
    pub number: u32,
    pub completion: &'a str,
    pub reward: f64,
    /// By name of the reward.
    pub components: &'a BTreeMap<String, f64>,
    /// Final answer that a reward reported.
    pub answer: Option<&'a str>,
}

/// A template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FeedbackError {
    #[error("rollout.workflow.multiTurn.feedback is not valid Jinja")]
    Template(#[source] minijinja::Error),
    #[error("failed to render rollout.workflow.multiTurn.feedback for {location}")]
    Row { location: RowLocation, source: minijinja::Error },
    #[error(
        "rollout.workflow.multiTurn.feedback uses `{name}`, which {location} does not have: \
         {choices}"
    )]
    Undefined { name: String, location: RowLocation, choices: String },
    #[error("failed to render rollout.workflow.multiTurn.feedback for row {row}")]
    Render { row: u64, source: minijinja::Error },
    #[error(
        "rollout.workflow.multiTurn.feedback prints turn.answer, which is null unless a reward \
         reported an answer: write {{{{turn.answer or ''}}}}"
    )]
    Answer,
}

impl Feedback {
    /// Compiles a template. Undefined variables and printed nulls are errors when it is rendered.
    pub fn new(source: &str) -> Result<Self, FeedbackError> {
        let mut environment = strict_environment();
        environment
            .add_template_owned(TEMPLATE, source.to_owned())
            .map_err(FeedbackError::Template)?;
        Ok(Self { environment })
    }

    /// Fields of a row that the template uses.
    pub fn fields(&self) -> Result<KeptFields, FeedbackError> {
        let template = self.environment.get_template(TEMPLATE).map_err(FeedbackError::Template)?;
        let mut names = variables(&self.environment, &template);
        names.remove(TURN);
        Ok(KeptFields::Named(names.into_iter().collect()))
    }

    /// Checks that the first turn of every row has feedback. `components` are the names of the
    /// rewards.
    pub fn check(&self, data: &Dataset, components: &[&str]) -> Result<(), FeedbackError> {
        data.parts().iter().try_for_each(|part| self.check_part(part, components))
    }

    fn check_part(&self, part: &Part, components: &[&str]) -> Result<(), FeedbackError> {
        let named = part.rewards();
        let is_used = |name: &str| named.is_empty() || named.iter().any(|own| own == name);
        let components = components.iter().filter(|name| is_used(name));
        let components = components.map(|name| ((*name).to_owned(), 0.0)).collect();
        let turn = TurnFacts {
            number: 1,
            completion: "",
            reward: 0.0,
            components: &components,
            answer: None,
        };
        let empty = Fields::default();
        part.rows().try_for_each(|row| {
            let location = || row.location.clone();
            let fields = row.fields.as_deref().unwrap_or(&empty);
            self.rendered(fields, turn, |source| match self.undefined(fields, turn, &part.names) {
                Some((name, choices)) if source.kind() == ErrorKind::UndefinedError => {
                    FeedbackError::Undefined { name, location: location(), choices }
                }
                _ => FeedbackError::Row { location: location(), source },
            })
            .map(drop)
        })
    }

    /// The feedback after a turn of a row.
    pub fn render(
        &self,
        row: u64,
        fields: Option<&Fields>,
        turn: TurnFacts<'_>,
    ) -> Result<String, FeedbackError> {
        let empty = Fields::default();
        let fields = fields.unwrap_or(&empty);
        self.rendered(fields, turn, |source| FeedbackError::Render { row, source })
    }

    fn rendered(
        &self,
        fields: &Fields,
        turn: TurnFacts<'_>,
        error: impl FnOnce(minijinja::Error) -> FeedbackError,
    ) -> Result<String, FeedbackError> {
        self.text(fields, turn).map_err(|source| {
            let with_answer = TurnFacts { answer: Some(""), ..turn };
            let needs_answer = turn.answer.is_none() && self.text(fields, with_answer).is_ok();
            if needs_answer { FeedbackError::Answer } else { error(source) }
        })
    }

    fn text(&self, fields: &Fields, turn: TurnFacts<'_>) -> Result<String, minijinja::Error> {
        self.environment.get_template(TEMPLATE)?.render(values(fields, turn))
    }

    /// The first name in the template that is undefined, and what it could be. `names` are fields
    /// of rows.
    fn undefined(
        &self,
        fields: &Fields,
        turn: TurnFacts<'_>,
        names: &[String],
    ) -> Option<(String, String)> {
        let values = values(fields, turn);
        let template = self.environment.get_template(TEMPLATE).ok()?;
        let used = variables(&self.environment, &template);
        if let Some(name) = used.into_iter().filter(|name| !values.contains_key(name)).min() {
            let names = field::names(names.iter());
            let turn = field::found(&values, &format!("{TURN}.{name}"));
            return Some((name, format!("the first row has {names}, and {turn}")));
        }
        let used = attributes(&self.environment, &template).into_iter();
        let name = used.filter(|name| field::is_missing(&values, name)).min()?;
        let choices = field::found(&values, &name);
        Some((name, choices))
    }
}

/// Variables of a template.
fn values(fields: &Fields, turn: TurnFacts<'_>) -> Fields {
    let turn = serde_json::to_value(turn).unwrap_or(Value::Null);
    let mut values = fields.clone();
    values.insert(TURN.to_owned(), turn);
    values
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::{Feedback, KeptFields, TurnFacts};

    fn rendered(template: &str, answer: Option<&str>) -> Result<String, String> {
        let feedback = Feedback::new(template).map_err(|error| error.to_string())?;
        let fields = json!({"question": "1+1", "turn": "hidden"});
        let components = BTreeMap::from([("format".to_owned(), 0.5)]);
        let turn =
            TurnFacts { number: 2, completion: "3", reward: 0.25, components: &components, answer };
        feedback.render(7, fields.as_object(), turn).map_err(|error| crate::error_line(&error))
    }

    #[test]
    fn feedback_uses_the_row_and_the_turn() {
        let template = "{{turn.number}}: {{turn.completion}} is wrong ({{turn.reward}}, \
            {{turn.components.format}}, {{turn.answer or '-'}}). {{question}}?";
        let expected = Ok("2: 3 is wrong (0.25, 0.5, -). 1+1?".to_owned());
        assert_eq!(rendered(template, None), expected);
        assert_eq!(rendered("{{turn.answer}}", Some("x")), Ok("x".to_owned()));
        let used = Feedback::new(template).unwrap().fields().unwrap();
        assert_eq!(used, KeptFields::Named(["question".to_owned()].into()));
    }

    #[test]
    fn fields_of_slices_are_used() {
        let template = "{{hint[:3]}}{{turn.completion[-20:]}}{{text[start:turn.number]}}";
        let used = Feedback::new(template).unwrap().fields().unwrap();
        let names = ["hint", "start", "text"].map(str::to_owned);
        assert_eq!(used, KeptFields::Named(names.into()));
    }

    #[test]
    fn feedback_that_cannot_be_rendered_names_the_row_and_the_cause() {
        let failed = "failed to render rollout.workflow.multiTurn.feedback for row 7: ";
        let error = rendered("{{hint}}", None).unwrap_err();
        assert!(error.starts_with(failed) && error.contains("undefined value"), "{error}");
        let expected = "rollout.workflow.multiTurn.feedback prints turn.answer, which is null \
            unless a reward reported an answer: write {{turn.answer or ''}}";
        assert_eq!(rendered("{{turn.answer}}", None), Err(expected.to_owned()));
        let error = rendered("{{", None).unwrap_err();
        assert_eq!(error, "rollout.workflow.multiTurn.feedback is not valid Jinja");
    }
}
