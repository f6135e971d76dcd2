//! Conversations of rows, in the format of OpenAI's API: messages with roles.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::data::error::DataError;
use crate::data::field;
use crate::data::location::RowLocation;
use crate::data::reader::Fields;
use crate::text::{
    ASSISTANT, DemonstratedTurn, Message, MessageContent, PromptStyle, TextError, TextTokenizer,
    Tool, ToolCall,
};

/// Roles of messages. Templates omit messages of others without an error.
const ROLES: [&str; 4] = ["system", "user", ASSISTANT, "tool"];
/// Keys of a message. The last two, which name a call, have no effect.
const KEYS: [&str; 5] = ["role", "content", "tool_calls", "tool_call_id", "name"];

/// What a conversation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A model continues it.
    Prompt,
    /// Its messages of the assistant are learned.
    Demonstration,
}

/// Field of a row with the messages of a conversation.
#[derive(Clone, Debug)]
pub struct ConversationFields {
    field: String,
    used: Use,
}

/// A conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Conversation {
    messages: Vec<Message>,
    #[serde(skip)]
    used: Use,
}

impl ConversationFields {
    pub fn new(field: &str, used: Use) -> Self {
        Self { field: field.to_owned(), used }
    }

    /// Reads the conversation of a row.
    pub fn read(&self, location: &RowLocation, fields: &Fields) -> Result<Conversation, DataError> {
        let invalid = |problem: String| DataError::RowField {
            location: location.clone(),
            field: self.field.clone(),
            problem,
        };
        let messages =
            messages(field::required(location, &self.field, fields)?).map_err(invalid)?;
        match unfit(&messages, self.used) {
            Some(problem) => Err(invalid(problem.to_owned())),
            None => Ok(Conversation { messages, used: self.used }),
        }
    }
}

impl Conversation {
    /// The messages before the completion as text, for rewards and people: the content of a single
    /// message, and several ones with their roles and tool calls.
    pub fn text(&self) -> String {
        match self.given() {
            [only] => only.content.clone(),
            several => {
                let calls = |own: &Message| {
                    let texts = own.tool_calls.iter().filter_map(|call| {
                        let arguments = serde_json::to_string(&call.arguments).ok()?;
                        Some(format!("{}({arguments})", call.name))
                    });
                    texts.collect::<String>()
                };
                let texts = several
                    .iter()
                    .map(|own| format!("{}: {}{}", own.role, own.content, calls(own)));
                texts.collect::<Vec<_>>().join("\n\n")
            }
        }
    }

    /// The conversation with a text at the end of its last message.
    #[must_use]
    pub fn observed(&self, text: &str) -> Self {
        let mut observed = self.clone();
        if let Some(last) = observed.messages.last_mut() {
            last.content.push_str(text);
        }
        observed
    }

    /// Whether its messages of the assistant are learned.
    pub fn is_learned(&self) -> bool {
        self.used == Use::Demonstration
    }

    /// The messages before the first completion.
    fn given(&self) -> &[Message] {
        let is_learned = |message: &Message| self.is_learned() && message.role == ASSISTANT;
        let end = self.messages.iter().position(is_learned).unwrap_or(self.messages.len());
        self.messages.get(..end).unwrap_or_default()
    }

    /// Tokens of the prompt.
    pub fn prompt(
        &self,
        tokenizer: &TextTokenizer,
        style: &PromptStyle,
    ) -> Result<Vec<i64>, TextError> {
        tokenizer.encode_messages(self.given(), style)
    }

    /// Turns that are learned; none of a prompt.
    pub fn turns(
        &self,
        tokenizer: &TextTokenizer,
        style: &PromptStyle,
    ) -> Result<Vec<DemonstratedTurn>, TextError> {
        match self.used {
            Use::Prompt => Ok(Vec::new()),
            Use::Demonstration => tokenizer.encode_demonstration(&self.messages, style),
        }
    }

    /// Messages and tools as JSON, for the digest of the data.
    pub fn json(&self, tools: &[&Tool]) -> Vec<u8> {
        serde_json::to_vec(&(&self.messages, tools)).unwrap_or_default()
    }
}

/// Why a conversation cannot be used.
fn unfit(messages: &[Message], used: Use) -> Option<&'static str> {
    match used {
        _ if messages.is_empty() => Some("has no messages"),
        Use::Prompt if messages.last().is_some_and(|last| last.role == ASSISTANT) => {
            Some("ends with a message of the assistant: nothing is left to answer")
        }
        Use::Demonstration if messages.iter().all(|message| message.role != ASSISTANT) => {
            Some("has no message of the assistant: nothing is left to learn")
        }
        Use::Prompt | Use::Demonstration => None,
    }
}

/// A list, or its JSON text.
fn list(value: &Value) -> Result<Vec<Value>, String> {
    match value {
        Value::Array(items) => Ok(items.clone()),
        Value::String(text) => {
            serde_json::from_str(text).map_err(|error| format!("is not a list in JSON: {error}"))
        }
        _ => Err("is not a list".to_owned()),
    }
}

fn messages(value: &Value) -> Result<Vec<Message>, String> {
    let items = list(value)?;
    (1..)
        .zip(&items)
        .map(|(number, item)| {
            message(item).map_err(|problem| format!("has an invalid message {number}: {problem}"))
        })
        .collect()
}

fn message(value: &Value) -> Result<Message, String> {
    let Value::Object(object) = value else { return Err("it is not an object".to_owned()) };
    // Files with columns have all keys in all messages.
    let given = || object.iter().filter(|(_, value)| !value.is_null());
    let unknown = given().find(|(name, _)| !KEYS.contains(&name.as_str()));
    if let Some((name, _)) = unknown {
        return Err(format!(
            "it has the unknown key `{name}`; expected one of {}",
            KEYS.join(", ")
        ));
    }
    let Some(Value::String(role)) = object.get("role") else {
        return Err("its role is not a text".to_owned());
    };
    if !ROLES.contains(&role.as_str()) {
        return Err(format!("its role is `{role}`; expected one of {}", ROLES.join(", ")));
    }
    let content = match object.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(content) => MessageContent::deserialize(content)
            .map_err(|_| "its content is not a text or a list of parts with texts")?
            .into(),
    };
    let tool_calls = match object.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(calls) => list(calls)
            .map_err(|problem| format!("its tool_calls: {problem}"))?
            .iter()
            .map(call)
            .collect::<Result<Vec<_>, _>>()?,
    };
    if role == ASSISTANT && tool_calls.is_empty() && content.trim().is_empty() {
        return Err("the assistant has neither content nor tool_calls".to_owned());
    }
    if role != ASSISTANT && !tool_calls.is_empty() {
        return Err(format!("{role} has tool_calls, which belong to the assistant"));
    }
    Ok(Message { tool_calls, ..Message::new(role, content) })
}

fn call(value: &Value) -> Result<ToolCall, String> {
    let function = value.get("function").unwrap_or(value);
    let Some(name) = function.get("name").and_then(Value::as_str) else {
        return Err("a tool call has no name".to_owned());
    };
    let arguments: Result<Map<String, Value>, String> = match function.get("arguments") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(arguments)) => Ok(arguments.clone()),
        Some(Value::String(text)) => {
            ToolCall::parse_arguments(text).map_err(|error| error.to_string())
        }
        Some(_) => Err("expected an object, or its text".to_owned()),
    };
    let arguments =
        arguments.map_err(|problem| format!("the arguments of {name} are invalid: {problem}"))?;
    Ok(ToolCall { name: name.to_owned(), arguments })
}

#[cfg(test)]
mod tests;
