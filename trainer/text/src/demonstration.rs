//! Conversations whose messages of the assistant are learned.
//!
//! ```text
//!  given    messages before the assistant's first one, and the start of its turn: as a prompt
//!  learned  content or tool calls of the assistant's message, and the end-of-sequence token
//!  given    messages until the assistant's next one, as [`TextTokenizer::encode_continuation`]
//!  learned  …
//! ```
//! These are the tokens of a rollout with the same messages, so that demonstrations and rollouts
//! agree on what the assistant sees.

use crate::{Message, PromptStyle, TextError, TextTokenizer, Tools};

/// Role whose messages are learned.
pub const ASSISTANT: &str = "assistant";
/// Contents of messages in place of those of the conversation. No template changes them.
const QUESTION: &str = "QUESTION";
const ANSWER: &str = "ANSWER";

/// Tokens before a message of the assistant, and those of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemonstratedTurn {
    /// From the end of the previous message of the assistant.
    pub given: Vec<i64>,
    /// With the end-of-sequence token.
    pub completion: Vec<i64>,
}

impl TextTokenizer {
    /// Tokenizes a conversation, with a turn for each message of the assistant. Messages after the
    /// last of these are omitted.
    ///
    /// # Errors
    /// The chat template rejects the messages, or does not print tool calls.
    pub fn encode_demonstration(
        &self,
        messages: &[Message],
        style: &PromptStyle,
    ) -> Result<Vec<DemonstratedTurn>, TextError> {
        let mut turns: Vec<DemonstratedTurn> = Vec::new();
        let mut rest = messages;
        while let Some(at) = rest.iter().position(|message| message.role == ASSISTANT) {
            let (before, after) = rest.split_at(at);
            let Some((message, after)) = after.split_first() else { break };
            let given = match turns.last() {
                None => self.encode_messages(before, style)?,
                Some(last) => self.encode_continuation(&last.completion, before, style)?,
            };
            let mut completion = self.encode(&self.assistant_text(message, style)?)?;
            completion.extend(self.eos_token_id());
            turns.push(DemonstratedTurn { given, completion });
            rest = after;
        }
        Ok(turns)
    }

    /// What the assistant writes for a message: its content, or what the chat template prints for
    /// one with tool calls.
    fn assistant_text(&self, message: &Message, style: &PromptStyle) -> Result<String, TextError> {
        if message.tool_calls.is_empty() {
            return Ok(message.content.clone());
        }
        let plain = self.with_tools(Tools::default());
        let render = |answer: Message| {
            let messages = [Message::user(QUESTION), answer, Message::user(QUESTION)];
            plain.render_messages(&messages, &style.arguments)
        };
        let (with_answer, with_calls) =
            (render(Message::new(ASSISTANT, ANSWER))?, render(message.clone())?);
        let without_calls = render(Message::new(ASSISTANT, &message.content))?;
        let text = with_answer
            .split_once(ANSWER)
            .and_then(|(before, after)| with_calls.strip_prefix(before)?.strip_suffix(after));
        text.filter(|text| with_calls != without_calls && text.contains(message.content.trim()))
            .map(str::to_owned)
            .ok_or_else(|| TextError::NoCalls { folder: self.inner.folder.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ASSISTANT, DemonstratedTurn};
    use crate::{Message, PromptStyle, TextTokenizer, ToolCall};

    fn tokenizer() -> TextTokenizer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-chat");
        TextTokenizer::open(&folder).unwrap()
    }

    fn conversation() -> Vec<Message> {
        let assistant = |content: &str| Message::new(ASSISTANT, content);
        vec![
            Message::new("system", "Answer with a number."),
            Message::user("12 + 30?"),
            assistant("42"),
            Message::user("And 1 more?"),
            assistant("43"),
            Message::user("Thanks."),
        ]
    }

    #[test]
    fn a_turn_of_the_assistant_is_learned_and_all_others_are_given() {
        let (tokenizer, style) = (tokenizer(), PromptStyle::default());
        let turns = tokenizer.encode_demonstration(&conversation(), &style).unwrap();
        let texts: Vec<[String; 2]> = turns
            .iter()
            .map(|turn| {
                [&turn.given, &turn.completion]
                    .map(|tokens| tokenizer.decode_as(tokens, false).unwrap())
            })
            .collect();
        let start = "<|im_start|>assistant\n";
        let expected = [
            [
                format!(
                    "<|im_start|>system\nAnswer with a number.<|im_end|>\n\
                     <|im_start|>user\n12 + 30?<|im_end|>\n{start}"
                ),
                "42<|im_end|>".to_owned(),
            ],
            [
                format!("\n<|im_start|>user\nAnd 1 more?<|im_end|>\n{start}"),
                "43<|im_end|>".to_owned(),
            ],
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_tokens_are_those_of_the_rendered_conversation() {
        let (tokenizer, style) = (tokenizer(), PromptStyle::default());
        let messages = conversation();
        let turns = tokenizer.encode_demonstration(&messages, &style).unwrap();
        let tokens: Vec<i64> = turns
            .iter()
            .flat_map(|turn| [&turn.given, &turn.completion])
            .flatten()
            .copied()
            .collect();
        let whole = tokenizer.render_messages(&messages[..5], &style.arguments).unwrap();
        let whole = tokenizer.encode(whole.strip_suffix("\n<|im_start|>assistant\n").unwrap());
        assert_eq!(tokens, whole.unwrap());
    }

    #[test]
    fn calls_are_learned_as_the_template_prints_them_with_all_of_the_content() {
        let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
        let folder = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-chat");
        for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
            std::fs::copy(fixture.join(name), folder.path().join(name)).unwrap();
        }
        let arguments = serde_json::from_value(serde_json::json!({"a": 1})).unwrap();
        let calls = vec![ToolCall { name: "add".to_owned(), arguments }];
        let learned = |template: &str, content: &str| {
            std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
            let tokenizer = TextTokenizer::open(folder.path()).unwrap();
            let answer = Message { tool_calls: calls.clone(), ..Message::new(ASSISTANT, content) };
            let messages = [Message::user("1 + 2?"), answer];
            let turns = tokenizer.encode_demonstration(&messages, &PromptStyle::default());
            turns.map(|turns| tokenizer.decode_as(&turns[0].completion, false).unwrap())
        };
        let tools = std::fs::read_to_string(templates.join("tools.jinja")).unwrap();
        let call =
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>";
        assert_eq!(learned(&tools, "").unwrap(), call);
        let role = "{{- '<|im_start|>' + message.role }}";
        let both =
            tools.replace(role, "{{- '<|im_start|>' + message.role + '\\n' + message.content }}");
        assert_eq!(learned(&both, "I add.").unwrap(), format!("I add.\n{call}"));
        // Prints no calls, and removes spaces; prints calls instead of the content.
        let without_calls = "{% for m in messages %}<|im_start|>{{ m.content | trim }}{% endfor %}";
        let without_content = "{% for m in messages %}<|im_start|>{% if m.tool_calls %}CALLS\
                               {% else %}{{ m.content }}{% endif %}{% endfor %}";
        for template in [without_calls, without_content, &tools] {
            let error = learned(template, "7 ").unwrap_err().to_string();
            assert!(error.contains("does not print content and tool calls"), "{error}");
        }
    }

    #[test]
    fn a_conversation_without_an_assistant_has_no_turns() {
        let turns = tokenizer().encode_demonstration(&conversation()[..2], &PromptStyle::default());
        assert_eq!(turns.unwrap(), Vec::<DemonstratedTurn>::new());
    }
}
