//! Tokens between two turns of the assistant, which are appended to the exact tokens so far: what
//! was sampled is never tokenized again.
//!
//! ```text
//!  rendered  …assistant⏎ PLACEHOLDER <|im_end|>⏎<|im_start|>user⏎ MESSAGE <|im_end|>⏎…assistant⏎
//!  appended                          └─────── less <|im_end|> if the completion has it ────────┘
//! ```

use rljob_crds::data::PromptFormat;
use serde::{Deserialize, Serialize};

use crate::{PromptStyle, TextError, TextTokenizer, ToolCall, Tools};

/// Content of the assistant's message in place of the completion. No template changes it.
const PLACEHOLDER: &str = "COMPLETION";
/// Token of Llama that ends a message with tool calls, in place of the end of a turn.
const END_OF_MESSAGE: &str = "<|eom_id|>";

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// `user`, `tool`, or another role that the chat template knows.
    pub role: String,
    pub content: String,
    /// Calls of an assistant's message. Environments, whose messages are deserialized, have none.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), tool_calls: Vec::new() }
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// The result of a tool.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new("tool", content)
    }
}

/// Content of a message in OpenAI's format.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum MessageContent {
    Text(String),
    /// Parts of a text. Other kinds of parts are rejected.
    Parts(Vec<TextPart>),
}

/// A part of a content.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TextPart {
    pub text: String,
}

impl From<MessageContent> for String {
    /// The text, or the texts of all parts.
    fn from(content: MessageContent) -> Self {
        match content {
            MessageContent::Text(text) => text,
            MessageContent::Parts(parts) => parts.into_iter().map(|part| part.text).collect(),
        }
    }
}

impl TextTokenizer {
    /// Tokenizes a conversation and the start of the assistant's turn. `Text` has the contents of
    /// the messages after what the tokenizer adds before a text.
    ///
    /// # Errors
    /// The chat template rejects the messages.
    pub fn encode_messages(
        &self,
        messages: &[Message],
        style: &PromptStyle,
    ) -> Result<Vec<i64>, TextError> {
        if style.format == PromptFormat::Text {
            let contents = messages.iter().map(|message| message.content.as_str());
            return self.encode_prompt(None, &contents.collect::<String>(), style);
        }
        self.encode(&self.render_messages(messages, &style.arguments)?)
    }

    /// Tokens to append after a completion, so that the assistant continues after `messages`.
    /// `Chat` ends the assistant's turn, unless the completion has the token that does, and renders
    /// the messages and the start of the assistant's next turn; tools belong to the first prompt.
    /// `Text` has the contents of the messages, unchanged.
    ///
    /// # Errors
    /// The chat template rejects the messages or omits those of the assistant.
    pub fn encode_continuation(
        &self,
        completion: &[i64],
        messages: &[Message],
        style: &PromptStyle,
    ) -> Result<Vec<i64>, TextError> {
        if style.format == PromptFormat::Text {
            let contents = messages.iter().map(|message| message.content.as_str());
            return self.encode(&contents.collect::<String>());
        }
        let before = [Message::user("PROMPT"), Message::new("assistant", PLACEHOLDER)];
        let conversation = [&before, messages].concat();
        let without_tools = self.with_tools(Tools::default());
        let text = without_tools.render_messages(&conversation, &style.arguments)?;
        let (_, after) = text
            .split_once(PLACEHOLDER)
            .ok_or_else(|| TextError::NoAssistantTurn { folder: self.inner.folder.clone() })?;
        let mut tokens = self.encode(after)?;
        let end_of_message = self.inner.tokenizer.token_to_id(END_OF_MESSAGE).map(i64::from);
        let is_ended = completion.last().is_some_and(|last| {
            tokens.first() == Some(last) || end_of_message.as_ref() == Some(last)
        });
        if is_ended && !tokens.is_empty() {
            tokens.remove(0);
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Message, PromptFormat, PromptStyle, TextTokenizer};

    fn tokenizer() -> TextTokenizer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-chat");
        TextTokenizer::open(&folder).unwrap()
    }

    /// The tokens so far and those of the continuation are the tokens of the rendered conversation.
    #[test]
    fn a_continuation_makes_the_tokens_of_the_whole_conversation() {
        let (tokenizer, style) = (tokenizer(), PromptStyle::default());
        let system = Message::new("system", "Answer with a number.");
        let turns = [system, Message::user("12 + 30?"), Message::new("assistant", "41")];
        let feedback = [Message::user("Wrong."), Message::tool("{\"sum\": 42}")];
        let prompt = tokenizer.encode_prompt(Some("Answer with a number."), "12 + 30?", &style);
        let end = tokenizer.encode("<|im_end|>").unwrap();
        let sampled = tokenizer.encode("41").unwrap();
        let whole = [&turns[..], &feedback].concat();
        let whole = tokenizer.render_messages(&whole, &style.arguments).unwrap();
        for completion in [[sampled.clone(), end].concat(), sampled] {
            let appended = tokenizer.encode_continuation(&completion, &feedback, &style).unwrap();
            assert_eq!(
                &tokenizer.encode_messages(&turns[..2], &style).unwrap(),
                prompt.as_ref().unwrap()
            );
            let tokens = [prompt.as_ref().unwrap(), &completion, &appended].map(Vec::as_slice);
            assert_eq!(tokens.concat(), tokenizer.encode(&whole).unwrap());
        }
    }

    #[test]
    fn a_continuation_of_text_is_the_text() {
        let style = PromptStyle { format: PromptFormat::Text, ..PromptStyle::default() };
        let (tokenizer, messages) = (tokenizer(), [Message::user(" Again:"), Message::user(" 3")]);
        let appended = tokenizer.encode_continuation(&[2], &messages, &style).unwrap();
        assert_eq!(appended, tokenizer.encode(" Again: 3").unwrap());
    }
}
