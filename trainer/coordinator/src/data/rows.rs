//! Row rendering: applies the spec's templates and counts tokens. Invalid rows are errors when the
//! data is opened.

use minijinja::{Environment, ErrorKind, Output, State, UndefinedBehavior, escape_formatter};
use rljob_crds::data::PromptFormat;
use serde_json::Value;

use crate::data::error::DataError;
use crate::data::location::RowLocation;
use crate::data::reader::Fields;
use crate::text::TextTokenizer;

const PROMPT: &str = "prompt";
const COMPLETION: &str = "completion";

/// A rendered row.
pub struct Row {
    pub location: RowLocation,
    /// Row number over all files, from 0.
    pub number: u64,
    pub prompt: String,
    pub completion: Option<String>,
    pub answer: Option<String>,
    /// Chat template included.
    pub prompt_tokens: usize,
    /// End-of-sequence token included; 0 without a completion.
    pub completion_tokens: usize,
}

/// Compiled templates of the spec and the name of the answer field.
pub struct Templates {
    environment: Environment<'static>,
    completion: bool,
    answer: Option<String>,
}

/// Instructions that a template may execute for a row.
const FUEL: u64 = 1_000_000;

impl Templates {
    /// Compiles the templates. Undefined variables are render errors.
    pub fn new(
        prompt: &str,
        completion: Option<&str>,
        answer: Option<&str>,
    ) -> Result<Self, DataError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_formatter(reject_null);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let mut add = |template, source: &str| {
            environment
                .add_template_owned(template, source.to_owned())
                .map_err(|source| DataError::Template { template, source })
        };
        add(PROMPT, prompt)?;
        completion.map_or(Ok(()), |source| add(COMPLETION, source))?;
        Ok(Self {
            environment,
            completion: completion.is_some(),
            answer: answer.map(str::to_owned),
        })
    }

    /// Renders a row without token counts.
    pub fn row(
        &self,
        location: RowLocation,
        number: u64,
        fields: &Fields,
    ) -> Result<Row, DataError> {
        Ok(Row {
            prompt: self.render(PROMPT, &location, fields)?,
            completion: if self.completion {
                Some(self.render(COMPLETION, &location, fields)?)
            } else {
                None
            },
            answer: self
                .answer
                .as_deref()
                .map(|field| answer(&location, field, fields))
                .transpose()?,
            location,
            number,
            prompt_tokens: 0,
            completion_tokens: 0,
        })
    }

    fn render(
        &self,
        template: &'static str,
        location: &RowLocation,
        fields: &Fields,
    ) -> Result<String, DataError> {
        let compiled = self
            .environment
            .get_template(template)
            .map_err(|source| DataError::Template { template, source })?;
        compiled.render(fields).map_err(|source| {
            let mut used: Vec<String> = compiled
                .undeclared_variables(false)
                .into_iter()
                .filter(|name| !fields.contains_key(name))
                .collect();
            used.sort_unstable();
            match used.into_iter().next() {
                Some(field) if source.kind() == ErrorKind::UndefinedError => {
                    DataError::MissingField { location: location.clone(), field }
                }
                _ => DataError::Render { location: location.clone(), template, source },
            }
        })
    }
}

/// Rejects null, which Jinja would print as `None`.
fn reject_null(
    out: &mut Output,
    state: &State,
    value: &minijinja::Value,
) -> Result<(), minijinja::Error> {
    if value.is_none() {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "a printed field is null"));
    }
    escape_formatter(out, state, value)
}

fn answer(location: &RowLocation, field: &str, fields: &Fields) -> Result<String, DataError> {
    let wrong = |found| {
        Err(DataError::FieldType { location: location.clone(), field: field.to_owned(), found })
    };
    match fields.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Null) => wrong("null"),
        Some(Value::Bool(_)) => wrong("a boolean"),
        Some(Value::Array(_)) => wrong("a list"),
        Some(Value::Object(_)) => wrong("an object"),
        None => {
            Err(DataError::MissingField { location: location.clone(), field: field.to_owned() })
        }
    }
}

impl Row {
    pub fn prompt(
        &self,
        tokenizer: &TextTokenizer,
        format: PromptFormat,
    ) -> Result<Vec<i64>, DataError> {
        tokenizer
            .encode_prompt(&self.prompt, format)
            .map_err(|source| DataError::Tokens { location: self.location.clone(), source })
    }

    /// Target tokens with the end-of-sequence token; `None` without a completion.
    pub fn completion(&self, tokenizer: &TextTokenizer) -> Result<Option<Vec<i64>>, DataError> {
        let Some(text) = &self.completion else { return Ok(None) };
        let mut tokens = tokenizer
            .encode(text)
            .map_err(|source| DataError::Tokens { location: self.location.clone(), source })?;
        tokens.extend(tokenizer.eos_token_id());
        Ok(Some(tokens))
    }
}

/// Counts the tokens of all rows in parallel.
pub fn count_tokens(
    rows: &mut [Row],
    tokenizer: &TextTokenizer,
    format: PromptFormat,
) -> Result<(), DataError> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let count = |rows: &mut [Row]| {
        for row in rows {
            row.prompt_tokens = row.prompt(tokenizer, format)?.len();
            row.completion_tokens = row.completion(tokenizer)?.map_or(0, |tokens| tokens.len());
        }
        Ok(())
    };
    let share = rows.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let counting: Vec<_> =
            rows.chunks_mut(share).map(|rows| scope.spawn(|| count(rows))).collect();
        // Join in order, so that the error names the first invalid row.
        counting
            .into_iter()
            .try_for_each(|counted| counted.join().unwrap_or(Err(DataError::Tokenizer)))
    })
}
