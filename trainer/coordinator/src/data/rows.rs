//! A JSONL file's rows, rendered by the spec's templates. Everything that can be wrong with a row is found here, when the file is opened.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use minijinja::{Environment, UndefinedBehavior};
use serde_json::{Map, Value};

use super::DataError;

const PROMPT: &str = "prompt";
const COMPLETION: &str = "completion";

/// A rendered row.
pub struct Row {
    /// Its line in the file, from 1.
    pub line: u64,
    pub prompt: String,
    pub completion: Option<String>,
    pub answer: Option<String>,
}

/// The spec's templates, compiled, and the name of the answer's field.
pub struct Templates {
    environment: Environment<'static>,
    completion: bool,
    answer: Option<String>,
}

impl Templates {
    /// Compiles the templates. A variable that a row lacks is an error when it is used.
    pub fn new(prompt: &str, completion: Option<&str>, answer: Option<&str>) -> Result<Self, DataError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let mut add =
            |template, source: &str| environment.add_template_owned(template, source.to_owned()).map_err(|source| DataError::Template { template, source });
        add(PROMPT, prompt)?;
        completion.map_or(Ok(()), |source| add(COMPLETION, source))?;
        Ok(Self { environment, completion: completion.is_some(), answer: answer.map(str::to_owned) })
    }

    fn row(&self, path: &Path, line: u64, fields: &Map<String, Value>) -> Result<Row, DataError> {
        Ok(Row {
            line,
            prompt: self.render(PROMPT, path, line, fields)?,
            completion: if self.completion { Some(self.render(COMPLETION, path, line, fields)?) } else { None },
            answer: self.answer.as_deref().map(|field| answer(path, line, field, fields)).transpose()?,
        })
    }

    fn render(&self, template: &'static str, path: &Path, line: u64, fields: &Map<String, Value>) -> Result<String, DataError> {
        let compiled = self.environment.get_template(template).map_err(|source| DataError::Template { template, source })?;
        compiled.render(fields).map_err(|source| {
            let mut used: Vec<String> = compiled.undeclared_variables(false).into_iter().filter(|name| !fields.contains_key(name)).collect();
            used.sort_unstable();
            match used.into_iter().next() {
                Some(field) if source.kind() == minijinja::ErrorKind::UndefinedError => DataError::MissingField { path: path.to_owned(), line, field },
                _ => DataError::Render { path: path.to_owned(), line, template, source },
            }
        })
    }
}

fn answer(path: &Path, line: u64, field: &str, fields: &Map<String, Value>) -> Result<String, DataError> {
    let wrong = |found| Err(DataError::FieldType { path: path.to_owned(), line, field: field.to_owned(), found });
    match fields.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Null) => wrong("null"),
        Some(Value::Bool(_)) => wrong("a boolean"),
        Some(Value::Array(_)) => wrong("a list"),
        Some(Value::Object(_)) => wrong("an object"),
        None => Err(DataError::MissingField { path: path.to_owned(), line, field: field.to_owned() }),
    }
}

/// Reads and renders the first `limit` rows; blank lines are not rows.
pub fn read(path: &Path, templates: &Templates, limit: usize) -> Result<Vec<Row>, DataError> {
    let unreadable = |source| DataError::Read { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let mut rows = Vec::new();
    let mut bytes = Vec::new();
    let mut line = 0;
    while rows.len() < limit {
        bytes.clear();
        if file.read_until(b'\n', &mut bytes).map_err(unreadable)? == 0 {
            break;
        }
        line += 1;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let fields: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|source| DataError::Json { path: path.to_owned(), line, source })?;
        rows.push(templates.row(path, line, &fields)?);
    }
    if rows.is_empty() { Err(DataError::Empty { path: path.to_owned() }) } else { Ok(rows) }
}
