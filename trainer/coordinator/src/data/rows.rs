//! Row rendering: applies the spec's templates and counts tokens. Invalid rows are errors when the
//! data is opened.

use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::{Environment, ErrorKind};
use rljob_crds::data::ConversationSpec;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::data::conversation::{Conversation, ConversationFields, Use};
use crate::data::error::DataError;
use crate::data::location::RowLocation;
use crate::data::reader::Fields;
use crate::jinja::strict_environment;
use crate::text::{DemonstratedTurn, PromptStyle, TextError, TextTokenizer};

const PROMPT: &str = "prompt";
const SYSTEM: &str = "system";
const COMPLETION: &str = "completion";
const CHOSEN: &str = "chosen";
const REJECTED: &str = "rejected";

/// Fields of a row that are kept beside its rendered texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptFields {
    None,
    Named(BTreeSet<String>),
    All,
}

/// A rendered row.
pub struct Row {
    pub location: RowLocation,
    /// Row number over all files, from 0.
    pub number: u64,
    /// Prompt, or conversation before its completion, as text.
    pub prompt: String,
    pub system: Option<String>,
    /// In place of prompt and system.
    conversation: Option<Conversation>,
    pub completion: Option<String>,
    /// Chosen and rejected completion.
    pub pair: Option<[String; 2]>,
    pub answer: Option<String>,
    pub category: Option<String>,
    /// Pass rate, if the rows are filtered by it.
    pub pass_rate: Option<f64>,
    /// Kept fields, if any are kept.
    pub fields: Option<Arc<Fields>>,
    /// Chat template included.
    pub prompt_tokens: usize,
    /// Of the longest completion, end-of-sequence token included; 0 without one.
    pub completion_tokens: usize,
}

/// Tokens of a row.
pub struct RowTokens {
    /// Chat template included.
    pub prompt: Vec<i64>,
    /// Target tokens with the end-of-sequence token; `None` without a completion.
    pub completion: Option<Vec<i64>>,
    /// Turns of a demonstration after its first completion.
    pub later_turns: Vec<DemonstratedTurn>,
    /// Chosen and rejected completion, each with the end-of-sequence token; `None` without a pair.
    pub pair: Option<[Vec<i64>; 2]>,
}

/// Compiled templates of the spec and the names of the fields with answer and category.
pub struct Templates {
    environment: Environment<'static>,
    conversation: Option<ConversationFields>,
    system: bool,
    completion: bool,
    pair: bool,
    answer: Option<String>,
    category: Option<String>,
    pass_rate: Option<String>,
    kept: KeptFields,
}

impl Templates {
    /// Compiles the templates. Undefined variables are render errors.
    pub fn new(
        prompt: &str,
        system: Option<&str>,
        completion: Option<&str>,
        answer: Option<&str>,
        kept: &KeptFields,
    ) -> Result<Self, DataError> {
        let mut environment = strict_environment();
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
            system: system.is_some(),
            completion: completion.is_some(),
            pair: false,
            answer: answer.map(str::to_owned),
            category: None,
            pass_rate: None,
            kept: kept.clone(),
        })
    }

    /// The templates of rows with a conversation in place of a prompt.
    #[must_use]
    pub fn with_conversation(self, spec: Option<ConversationSpec>, used: Use) -> Self {
        Self { conversation: spec.map(|spec| ConversationFields::new(spec, used)), ..self }
    }

    /// The templates of rows with a category in this field.
    #[must_use]
    pub fn with_category(self, field: Option<&str>) -> Self {
        Self { category: field.map(str::to_owned), ..self }
    }

    /// The templates of rows with a pass rate in this field.
    #[must_use]
    pub fn with_pass_rate(self, field: Option<&str>) -> Self {
        Self { pass_rate: field.map(str::to_owned), ..self }
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
            system: optional(self.system, SYSTEM)?,
            completion: optional(self.completion, COMPLETION)?,
            pair: optional(self.pair, CHOSEN)?.zip(optional(self.pair, REJECTED)?).map(Into::into),
            answer: text(&self.answer)?,
            category: text(&self.category)?,
            pass_rate: self
                .pass_rate
                .as_deref()
                .map(|field| pass_rate(&location, field, fields))
                .transpose()?,
            fields: self.kept.of(fields),
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
    match fields.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Null) => wrong("null"),
        Some(Value::Bool(_)) => wrong("a boolean"),
        Some(value @ (Value::Array(_) | Value::Object(_))) => Ok(value.to_string()),
        None => {
            Err(DataError::MissingField { location: location.clone(), field: field.to_owned() })
        }
    }
}

fn pass_rate(location: &RowLocation, field: &str, fields: &Fields) -> Result<f64, DataError> {
    let (location, field) = (location.clone(), field.to_owned());
    let Some(value) = fields.get(&field) else {
        return Err(DataError::MissingField { location, field });
    };
    let rate = value.as_f64().filter(|rate| (0.0..=1.0).contains(rate));
    let found = || value.to_string().chars().take(80).collect();
    rate.ok_or_else(|| DataError::PassRate { location, field, found: found() })
}

impl Row {
    /// Adds the row to the digest of its data.
    pub fn digest(&self, digest: &mut Sha256) {
        digest.update(self.number.to_le_bytes());
        let texts = [Some(&self.prompt), self.system.as_ref(), self.completion.as_ref()];
        let pair = self.pair.iter().flatten().map(Some);
        for text in texts.into_iter().chain([self.answer.as_ref()]).chain(pair) {
            // The length tells where a text ends; an absent text differs from an empty one.
            digest.update(text.map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
            digest.update(text.map_or("", String::as_str));
        }
        if let Some(conversation) = &self.conversation {
            digest.update(conversation.json());
        }
        if let Some(fields) = &self.fields {
            // Maps of JSON are sorted by key.
            digest.update(serde_json::to_vec(fields.as_ref()).unwrap_or_default());
        }
    }

    /// Tokens that the filters by length compare: of a learned conversation all, otherwise those of
    /// the prompt.
    pub fn filtered_tokens(&self) -> usize {
        let is_learned = self.conversation.as_ref().is_some_and(Conversation::is_learned);
        let completion = if is_learned { self.completion_tokens } else { 0 };
        self.prompt_tokens.saturating_add(completion)
    }

    /// Checks that the prompt fits the context with its completion, or with one token.
    pub fn check_length(&self, context: u32) -> Result<(), DataError> {
        let (location, prompt, completion) =
            (self.location.clone(), self.prompt_tokens, self.completion_tokens.max(1));
        if prompt == 0 {
            return Err(DataError::EmptyPrompt { location });
        }
        if prompt.saturating_add(completion) > context as usize {
            return Err(DataError::TooLong { location, prompt, completion, context });
        }
        Ok(())
    }

    /// Tokenizes the row.
    pub fn tokens(
        &self,
        tokenizer: &TextTokenizer,
        style: &PromptStyle,
    ) -> Result<RowTokens, DataError> {
        self.encode(tokenizer, style)
            .map_err(|source| DataError::Tokens { location: self.location.clone(), source })
    }

    fn encode(
        &self,
        tokenizer: &TextTokenizer,
        style: &PromptStyle,
    ) -> Result<RowTokens, TextError> {
        let target = |text: &String| -> Result<Vec<i64>, TextError> {
            let mut tokens = tokenizer.encode(text)?;
            tokens.extend(tokenizer.eos_token_id());
            Ok(tokens)
        };
        let pair = match &self.pair {
            None => None,
            Some([chosen, rejected]) => Some([target(chosen)?, target(rejected)?]),
        };
        let Some(conversation) = &self.conversation else {
            return Ok(RowTokens {
                prompt: tokenizer.encode_prompt(self.system.as_deref(), &self.prompt, style)?,
                completion: self.completion.as_ref().map(target).transpose()?,
                later_turns: Vec::new(),
                pair,
            });
        };
        let mut turns = conversation.turns(tokenizer, style)?.into_iter();
        let (prompt, completion) = match turns.next() {
            Some(first) => (first.given, Some(first.completion)),
            None => (conversation.prompt(tokenizer, style)?, None),
        };
        Ok(RowTokens { prompt, completion, later_turns: turns.collect(), pair })
    }
}

impl RowTokens {
    /// Tokens after the prompt, of the longer one of a pair.
    pub fn completion_len(&self) -> usize {
        completion_len(self.pair.as_ref(), self.completion.as_ref(), &self.later_turns)
    }
}

/// Tokens after a prompt: of the longest given completion, and of later turns.
pub fn completion_len(
    pair: Option<&[Vec<i64>; 2]>,
    completion: Option<&Vec<i64>>,
    later_turns: &[DemonstratedTurn],
) -> usize {
    let longest = pair.into_iter().flatten().chain(completion).map(Vec::len).max().unwrap_or(0);
    let later = later_turns.iter().flat_map(|turn| [&turn.given, &turn.completion]);
    later.map(Vec::len).fold(longest, usize::saturating_add)
}
