//! Parser of tool calls in completions, with the results of SGLang's function call detectors.
//!
//! ```text
//!  Qwen   content <tool_call>⏎{"name": …, "arguments": {…}}⏎</tool_call>⏎<tool_call>…
//!  Llama  content <|python_tag|>{"name": …, "parameters": {…}};{…}    or the first { of the text
//! ```

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::{TextError, TextTokenizer, end_before, template_error};

const QWEN_START: &str = "<tool_call>\n";
const QWEN_END: &str = "\n</tool_call>";
const LLAMA_START: &str = "<|python_tag|>";
const LLAMA_OBJECT: &str = "{\"name\":";

/// Format of the tool calls of a model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolCallFormat {
    /// Qwen 2.5 and Qwen 3; SGLang's parser `qwen25`.
    Qwen,
    /// Llama 3; SGLang's parser `llama3`, without calls in Python's syntax.
    Llama,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    pub name: String,
    pub arguments: Map<String, Value>,
}

impl ToolCall {
    /// Arguments in OpenAI's format: the JSON text of an object, or an empty text without any.
    ///
    /// # Errors
    /// The text is not an object in JSON.
    pub fn parse_arguments(text: &str) -> serde_json::Result<Map<String, Value>> {
        if text.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str(text) }
    }
}

/// As chat templates expect it in `tool_calls`.
impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let function = json!({"name": self.name, "arguments": self.arguments});
        json!({"type": "function", "function": function}).serialize(serializer)
    }
}

/// A block in a completion that is not a valid call. SGLang omits it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolCallError {
    #[error("the tool call is not valid JSON: {0}")]
    Json(String),
    #[error("the tool call has no end: write {QWEN_END:?} after it")]
    Unclosed,
    #[error("the tool call is not an object: write {{\"name\": …, \"arguments\": {{…}}}}")]
    NotAnObject,
    #[error("the tool call has no name: add \"name\"")]
    NoName,
    #[error("the arguments of {0} are not an object: write {{\"name\": value, …}}")]
    Arguments(String),
}

/// A completion, split into its text and its calls in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedCompletion {
    pub content: String,
    pub calls: Vec<Result<ToolCall, ToolCallError>>,
}

impl ToolCallFormat {
    /// The format that a chat template prints; `None` if it prints neither.
    pub fn of_template(source: &str) -> Option<Self> {
        if source.contains("<tool_call>") {
            Some(Self::Qwen)
        } else {
            (source.contains(LLAMA_START) || source.contains("ipython")).then_some(Self::Llama)
        }
    }

    /// Splits a completion into its text and its calls.
    pub fn parse(self, text: &str) -> ParsedCompletion {
        match self {
            Self::Qwen => qwen(text),
            Self::Llama => llama(text),
        }
    }

    /// End of the text that is content whatever follows it, and whether or not calls do. The text
    /// before `from` is content.
    pub fn content_end(self, text: &str, from: usize) -> usize {
        let end = |start: &'static str| end_before(text, from, std::iter::once(start));
        match self {
            // Content before a call is trimmed.
            Self::Qwen if text.starts_with(char::is_whitespace) => 0,
            Self::Qwen => text.get(..end(QWEN_START)).unwrap_or_default().trim_end().len(),
            Self::Llama if text.starts_with('{') => 0,
            Self::Llama => end(LLAMA_START),
        }
    }
}

impl TextTokenizer {
    /// Format of the model's tool calls: the given one, else that of the chat template.
    ///
    /// # Errors
    /// There is no template, it does not describe tools, or it prints calls in an unknown format.
    pub fn tool_call_format(
        &self,
        given: Option<ToolCallFormat>,
    ) -> Result<ToolCallFormat, TextError> {
        self.check_tools()?;
        let (folder, template) = (&self.inner.folder, self.template()?);
        let failed = |source| template_error(folder, source);
        let source = template.source().map_err(failed)?;
        given
            .or_else(|| ToolCallFormat::of_template(&source))
            .ok_or_else(|| TextError::NoToolCallFormat { folder: folder.clone() })
    }

    /// The special token that starts calls and has no text, if the format has one.
    pub fn call_start(&self, format: ToolCallFormat) -> Option<i64> {
        let start = self.inner.tokenizer.token_to_id(LLAMA_START).map(i64::from);
        start.filter(|_| format == ToolCallFormat::Llama)
    }

    /// Splits the tokens of a completion into text and calls. Special tokens are skipped, except
    /// the one before calls of Llama.
    pub fn parse_tool_calls(
        &self,
        format: ToolCallFormat,
        tokens: &[i64],
    ) -> Result<ParsedCompletion, TextError> {
        let start = self.call_start(format);
        let text = match tokens.iter().position(|token| start == Some(*token)) {
            None => self.decode(tokens)?,
            Some(at) => {
                let (content, action) = tokens.split_at(at);
                format!("{}{LLAMA_START}{}", self.decode(content)?, self.decode(action)?)
            }
        };
        Ok(format.parse(&text))
    }
}

fn qwen(text: &str) -> ParsedCompletion {
    let Some((content, mut rest)) = text.split_once(QWEN_START) else {
        return ParsedCompletion { content: text.to_owned(), calls: Vec::new() };
    };
    let mut calls = Vec::new();
    loop {
        let Some((block, after)) = rest.split_once(QWEN_END) else {
            calls.push(Err(ToolCallError::Unclosed));
            break;
        };
        match serde_json::from_str(block.trim()) {
            Ok(Value::Array(several)) => calls.extend(several.into_iter().map(call)),
            Ok(one) => calls.push(call(one)),
            Err(error) => calls.push(Err(ToolCallError::Json(error.to_string()))),
        }
        let Some((_, next)) = after.split_once(QWEN_START) else { break };
        rest = next;
    }
    ParsedCompletion { content: content.trim().to_owned(), calls }
}

fn llama(text: &str) -> ParsedCompletion {
    let (content, action) = match text.split_once(LLAMA_START) {
        Some((content, action)) => (content, action),
        None if text.starts_with('{') => ("", text),
        None => (text, ""),
    };
    let mut calls = Vec::new();
    // `trailing` follows the last valid object and its separator of one character.
    let (mut rest, mut trailing) = (action, action);
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        if let Some(Ok(value)) = values.next() {
            calls.push(call(value));
            let mut after = rest.get(values.byte_offset()..).unwrap_or_default().chars();
            after.next();
            (rest, trailing) = (after.as_str(), after.as_str());
            continue;
        }
        let mut later = rest.chars();
        later.next();
        let later = later.as_str();
        let Some(next) = later.find(LLAMA_OBJECT) else { break };
        rest = later.get(next..).unwrap_or_default();
    }
    ParsedCompletion { content: format!("{content}{}", trailing.trim()), calls }
}

/// The call of an object; `parameters` is another name of `arguments`.
fn call(value: Value) -> Result<ToolCall, ToolCallError> {
    let Value::Object(mut object) = value else { return Err(ToolCallError::NotAnObject) };
    let Some(Value::String(name)) = object.remove("name").filter(|name| name != "") else {
        return Err(ToolCallError::NoName);
    };
    let is_set =
        |value: &Value| !matches!(value, Value::Null) && *value != Value::Object(Map::new());
    let arguments =
        object.remove("parameters").filter(is_set).or_else(|| object.remove("arguments"));
    match arguments {
        None => Ok(ToolCall { name, arguments: Map::new() }),
        Some(Value::Object(arguments)) => Ok(ToolCall { name, arguments }),
        Some(_) => Err(ToolCallError::Arguments(name)),
    }
}

#[cfg(test)]
mod tests;
