//! Templates of the spec, which render the fields of a row to texts. Invalid rows are errors when
//! the data is opened.

use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::{Environment, ErrorKind};
use rljob_crds::data::ConversationSpec;
use rljob_protocol::evaluation::row_digest;
use serde_json::Value;

use crate::data::conversation::{ConversationFields, Use};
use crate::data::error::DataError;
use crate::data::field;
use crate::data::location::RowLocation;
use crate::data::reader::Fields;
use crate::data::row_tools::ToolsField;
use crate::data::rows::Row;
use crate::jinja::{attributes, row_environment, variables};
use crate::text::Tools;

const PROMPT: &str = "prompt";
const SYSTEM: &str = "system";
const COMPLETION: &str = "completion";
const CHOSEN: &str = "chosen";
const REJECTED: &str = "rejected";
/// Most bytes of the fields of a row that rewards receive, as JSON.
const MAX_REWARD_FIELDS: usize = 1 << 20;

/// Fields of a row that are kept beside its rendered texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptFields {
    None,
    Named(BTreeSet<String>),
    All,
}

/// Compiled templates of the spec and the names of the fields with answer and category.
pub struct Templates {
    environment: Environment<'static>,
    conversation: Option<ConversationFields>,
    tools: Option<ToolsField>,
    system: bool,
    completion: bool,
    pair: bool,
    answer: Option<String>,
    category: Option<String>,
    pass_rate: Option<String>,
    /// Names of the fields that rewards receive.
    reward_fields: Vec<String>,
    /// Digest of the fields of a row, if rows have one.
    digest: Option<fn(&Fields) -> String>,
    kept: KeptFields,
}

impl Templates {
    /// Compiles the templates. Undefined variables, and printed nulls, lists and maps are render
    /// errors.
    pub fn new(
        prompt: &str,
        system: Option<&str>,
        completion: Option<&str>,
        answer: Option<&str>,
        kept: &KeptFields,
    ) -> Result<Self, DataError> {
        let mut environment = row_environment();
        let mut add = |template, source: &str| {
            environment
                .add_template_owned(template, source.to_owned())
                .map_err(|source| DataError::Template { template, source })
        };
        add(PROMPT, prompt)?;
        system.map_or(Ok(()), |source| add(SYSTEM, source))?;
        completion.map_or(Ok(()), |source| add(COMPLETION, source))?;
        Ok(Self {
            environment,
            conversation: None,
            tools: None,
            system: system.is_some(),
            completion: completion.is_some(),
            pair: false,
            answer: answer.map(str::to_owned),
            category: None,
            pass_rate: None,
            reward_fields: Vec::new(),
            digest: None,
            kept: kept.clone(),
        })
    }

    /// The templates of rows with a conversation in place of a prompt.
    #[must_use]
    pub fn with_conversation(self, spec: Option<&ConversationSpec>, used: Use) -> Self {
        let conversation = spec.map(|spec| ConversationFields::new(&spec.messages, used));
        Self { conversation, ..self }
    }

    /// The templates of rows with tools in this field; `defined` are those of the workflow.
    #[must_use]
    pub fn with_tools(self, field: Option<&str>, defined: &Tools) -> Self {
        Self { tools: field.map(|field| ToolsField::new(field, defined)), ..self }
    }

    /// The templates of rows with a category in this field.
    #[must_use]
    pub fn with_category(self, field: Option<&str>) -> Self {
        Self { category: field.map(str::to_owned), ..self }
    }

    /// The templates of rows with digests of their fields.
    #[must_use]
    pub fn with_digest(self) -> Self {
        Self { digest: Some(row_digest), ..self }
    }

    /// The templates of rows with a pass rate in this field.
    #[must_use]
    pub fn with_pass_rate(self, field: Option<&str>) -> Self {
        Self { pass_rate: field.map(str::to_owned), ..self }
    }

    /// The templates of rows with fields that rewards receive.
    #[must_use]
    pub fn with_reward_fields(self, names: &[String]) -> Self {
        Self { reward_fields: names.to_vec(), ..self }
    }

    /// Adds the templates of a pair, if there are any.
    pub fn with_pair(
        mut self,
        chosen: Option<&str>,
        rejected: Option<&str>,
    ) -> Result<Self, DataError> {
        for (template, source) in [(CHOSEN, chosen), (REJECTED, rejected)] {
            let Some(source) = source else { return Ok(self) };
            self.environment
                .add_template_owned(template, source.to_owned())
                .map_err(|source| DataError::Template { template, source })?;
        }
        self.pair = true;
        Ok(self)
    }

    /// Renders a row without token counts.
    pub fn row(
        &self,
        location: RowLocation,
        number: u64,
        fields: &Fields,
    ) -> Result<Row, DataError> {
        let optional = |is_set: bool, template| {
            is_set.then(|| self.render(template, &location, fields)).transpose()
        };
        let learned = |is_set: bool, template| match optional(is_set, template)? {
            Some(text) if text.trim().is_empty() => {
                Err(DataError::EmptyCompletion { location: location.clone(), template })
            }
            text => Ok(text),
        };
        let text = |field: &Option<String>| {
            field.as_deref().map(|field| text_field(&location, field, fields)).transpose()
        };
        let conversation =
            self.conversation.as_ref().map(|own| own.read(&location, fields)).transpose()?;
        Ok(Row {
            prompt: match &conversation {
                Some(conversation) => conversation.text(),
                None => self.render(PROMPT, &location, fields)?,
            },
            conversation,
            tools: self.tools.as_ref().map(|own| own.read(&location, fields)).transpose()?,
            system: optional(self.system, SYSTEM)?,
            completion: learned(self.completion, COMPLETION)?,
            pair: learned(self.pair, CHOSEN)?.zip(learned(self.pair, REJECTED)?).map(Into::into),
            answer: text(&self.answer)?,
            has_structured_answer: self.answer.as_ref().is_some_and(|field| {
                matches!(field::find(fields, field), Some(Value::Array(_) | Value::Object(_)))
            }),
            category: text(&self.category)?,
            pass_rate: self
                .pass_rate
                .as_deref()
                .map(|field| pass_rate(&location, field, fields))
                .transpose()?,
            fields: self.kept.of(fields),
            reward_fields: self.reward_fields(&location, fields)?,
            digest: self.digest.map(|digest| digest(fields)),
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
            let used = variables(&self.environment, &compiled);
            let missing = used.into_iter().filter(|name| !fields.contains_key(name)).min();
            let of_object = || {
                let used = attributes(&self.environment, &compiled).into_iter();
                used.filter(|name| field::is_missing(fields, name)).min()
            };
            match missing.or_else(of_object) {
                Some(name) if source.kind() == ErrorKind::UndefinedError => {
                    field::missing(location, &name, fields)
                }
                _ => DataError::Render { location: location.clone(), template, source },
            }
        })
    }

    fn reward_fields(
        &self,
        location: &RowLocation,
        fields: &Fields,
    ) -> Result<Option<Arc<Fields>>, DataError> {
        if self.reward_fields.is_empty() {
            return Ok(None);
        }
        let named =
            |name: &String| Ok((name.clone(), field::required(location, name, fields)?.clone()));
        let kept = self.reward_fields.iter().map(named).collect::<Result<Fields, DataError>>()?;
        let bytes = serde_json::to_vec(&kept).map_or(usize::MAX, |json| json.len());
        if bytes > MAX_REWARD_FIELDS {
            let (location, limit) = (location.clone(), MAX_REWARD_FIELDS);
            return Err(DataError::LongFields { location, bytes, limit });
        }
        Ok(Some(Arc::new(kept)))
    }
}

impl KeptFields {
    fn of(&self, fields: &Fields) -> Option<Arc<Fields>> {
        let names = match self {
            Self::None => return None,
            Self::All => return Some(Arc::new(fields.clone())),
            Self::Named(names) => names,
        };
        let kept = fields.iter().filter(|(name, _)| names.contains(*name));
        Some(Arc::new(kept.map(|(name, value)| (name.clone(), value.clone())).collect()))
    }
}

fn text_field(location: &RowLocation, field: &str, fields: &Fields) -> Result<String, DataError> {
    let wrong = |found| {
        Err(DataError::FieldType { location: location.clone(), field: field.to_owned(), found })
    };
    match field::required(location, field, fields)? {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null => wrong("null"),
        Value::Bool(_) => wrong("a boolean"),
        value @ (Value::Array(_) | Value::Object(_)) => Ok(value.to_string()),
    }
}

fn pass_rate(location: &RowLocation, field: &str, fields: &Fields) -> Result<f64, DataError> {
    let value = field::required(location, field, fields)?;
    let (location, field) = (location.clone(), field.to_owned());
    let rate = value.as_f64().filter(|rate| (0.0..=1.0).contains(rate));
    let found = || value.to_string().chars().take(80).collect();
    rate.ok_or_else(|| DataError::PassRate { location, field, found: found() })
}
