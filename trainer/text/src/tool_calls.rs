//! Parser of tool calls in completions, with the results of SGLang's function call detectors.
//!
//! ```text
//!  Qwen   content <tool_call>⏎{"name": …, "arguments": {…}}⏎</tool_call>⏎<tool_call>…
//!  Llama  content <|python_tag|>{"name": …, "parameters": {…}};{…}    or the first { of the text
//! ```

use serde_json::{Map, Value};

use crate::TextTokenizer;

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
}

impl TextTokenizer {
    /// Format of the model's tool calls according to its chat template; `None` without one.
    pub fn tool_call_format(&self) -> Option<ToolCallFormat> {
        let source = self.inner.template.as_ref()?.source().ok()?;
        ToolCallFormat::of_template(&source)
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
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

    use super::{ParsedCompletion, ToolCallError, ToolCallFormat};

    /// A result of SGLang 0.5.12: `detect_and_parse` of `Qwen25Detector` and `Llama32Detector`.
    #[derive(Deserialize)]
    struct Golden {
        format: String,
        text: String,
        content: String,
        calls: Value,
    }

    #[test]
    fn content_and_calls_are_those_of_sglang() {
        let golden = include_str!("../tests/fixtures/tool_calls.jsonl");
        let cases = golden.lines().map(|line| serde_json::from_str::<Golden>(line).unwrap());
        let mut number = 0;
        for case in cases {
            let format = match case.format.as_str() {
                "qwen" => ToolCallFormat::Qwen,
                _ => ToolCallFormat::Llama,
            };
            let ParsedCompletion { content, calls } = format.parse(&case.text);
            let calls: Value = calls
                .into_iter()
                .flatten()
                .map(|call| serde_json::json!({"name": call.name, "arguments": call.arguments}))
                .collect();
            assert_eq!((content, calls), (case.content, case.calls), "{}", case.text);
            number += 1;
        }
        assert_eq!(number, 17);
    }

    #[test]
    fn a_malformed_call_is_an_error_beside_valid_ones() {
        let texts = [
            "<tool_call>\n{\"name\": \"add\"\n</tool_call>",
            "<tool_call>\n{\"name\": \"add\"}",
            "<tool_call>\n7\n</tool_call>",
            "<tool_call>\n{\"arguments\": {}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"add\", \"arguments\": [1]}\n</tool_call>",
        ];
        let parsed = texts.map(|text| ToolCallFormat::Qwen.parse(text).calls);
        let eof = "EOF while parsing an object at line 1 column 14".to_owned();
        let expected = [
            ToolCallError::Json(eof),
            ToolCallError::Unclosed,
            ToolCallError::NotAnObject,
            ToolCallError::NoName,
            ToolCallError::Arguments("add".to_owned()),
        ];
        assert_eq!(parsed, expected.map(|error| vec![Err(error)]));
        let mixed = format!("{}\n<tool_call>\n{{\"name\": \"add\"}}\n</tool_call>", texts[2]);
        let calls = ToolCallFormat::Qwen.parse(&mixed).calls;
        assert_eq!(calls.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn the_format_is_that_of_the_chat_template() {
        let found = ["{{'<tool_call>'}}", "<|python_tag|>", "<|im_start|>"];
        let formats = found.map(ToolCallFormat::of_template);
        assert_eq!(formats, [Some(ToolCallFormat::Qwen), Some(ToolCallFormat::Llama), None]);
    }
}
