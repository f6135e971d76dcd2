//! Tests of conversations: what is read, and what is rejected.

use std::path::Path;

use serde_json::{Value, json};

use super::{Conversation, ConversationFields, Use};
use crate::data::location::RowLocation;
use crate::text::{PromptStyle, TextTokenizer};

fn tokenizer() -> TextTokenizer {
    TextTokenizer::open(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat"),
    )
    .unwrap()
}

fn read(row: &Value, used: Use) -> Result<Conversation, String> {
    let location = RowLocation { path: Path::new("rows").into(), unit: "line", number: 7 };
    ConversationFields::new("messages", used)
        .read(&location, row.as_object().unwrap())
        .map_err(|error| error.to_string())
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn row(messages: &Value) -> Value {
    json!({"messages": messages})
}

#[test]
fn a_prompt_is_the_whole_conversation_and_a_demonstration_learns_the_assistant() {
    let messages = json!([
        message("system", "Add."),
        message("user", "1 + 2?"),
        message("assistant", "3"),
        message("user", "And 4?"),
    ]);
    let (tokenizer, style) = (tokenizer(), PromptStyle::default());
    let prompt = read(&row(&messages), Use::Prompt).unwrap();
    let text = "system: Add.\n\nuser: 1 + 2?\n\nassistant: 3\n\nuser: And 4?";
    assert_eq!(prompt.text(), text);
    let tokens = prompt.prompt(&tokenizer, &style).unwrap();
    let expected = tokenizer
        .render_messages(messages.as_array().unwrap(), &style.arguments)
        .and_then(|text| tokenizer.encode(&text));
    assert_eq!(tokens, expected.unwrap());
    assert!(prompt.turns(&tokenizer, &style).unwrap().is_empty());

    let learned = read(&row(&messages), Use::Demonstration).unwrap();
    assert_eq!(learned.text(), "system: Add.\n\nuser: 1 + 2?");
    let turns = learned.turns(&tokenizer, &style).unwrap();
    assert_eq!(turns.len(), 1, "{turns:?}");
    assert_eq!(turns[0].given, learned.prompt(&tokenizer, &style).unwrap());
}

#[test]
fn lists_may_be_their_json_text_and_contents_may_have_parts() {
    let parts = json!([{"type": "text", "text": "1 +"}, {"type": "text", "text": " 2?"}]);
    let own = json!([{"role": "user", "content": parts, "name": null}]);
    let (as_list, as_text) = (row(&own), row(&json!(own.to_string())));
    let [list, text] = [as_list, as_text].map(|row| read(&row, Use::Prompt).unwrap());
    assert_eq!((list.text().as_str(), &text), ("1 + 2?", &list));
}

#[test]
fn calls_have_the_format_of_openai() {
    let call = |arguments: Value| {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}},
        ]})
    };
    let of = |arguments: Value| {
        let messages = json!([message("user", "1 + 2?"), call(arguments)]);
        read(&row(&messages), Use::Demonstration).unwrap()
    };
    let (object, text) = (of(json!({"a": 1})), of(json!("{\"a\": 1}")));
    assert_eq!(object, text);
    assert_eq!(of(json!("")), of(json!(null)), "no arguments");
    let calls = json!([{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]);
    assert_eq!(serde_json::to_value(&object).unwrap()["messages"][1]["tool_calls"], calls);
}

#[test]
fn an_unusable_conversation_is_an_error_that_names_its_place() {
    let (user, assistant) = (message("user", "1?"), message("assistant", "1"));
    let fails = |messages: Value, used: Use| read(&row(&messages), used).unwrap_err();
    let expected = "field `messages` in rows line 7 ends with a message of the assistant: nothing \
                    is left to answer";
    assert_eq!(fails(json!([user, assistant]), Use::Prompt), expected);
    let empty = "field `messages` in rows line 7 has no messages";
    assert_eq!(fails(json!([]), Use::Prompt), empty);
    assert_eq!(
        fails(json!([user]), Use::Demonstration),
        "field `messages` in rows line 7 has no message of the assistant: nothing is left to learn"
    );
    let invalid = |message: Value| fails(json!([user, message]), Use::Prompt);
    let problem =
        |text: &str| format!("field `messages` in rows line 7 has an invalid message 2: {text}");
    let empty_turn = "the assistant has neither content nor tool_calls";
    let no_text = "its content is not a text or a list of parts with texts";
    for (message, expected) in [
        (json!("text"), "it is not an object"),
        (json!({"content": "1"}), "its role is not a text"),
        (json!({"role": "user", "content": 1}), no_text),
        (json!({"role": "user", "content": [{"type": "image_url"}]}), no_text),
        (
            json!({"from": "human", "value": "1"}),
            "it has the unknown key `from`; expected one of role, content, tool_calls, \
             tool_call_id, name",
        ),
        (
            json!({"role": "usr", "content": "1"}),
            "its role is `usr`; expected one of system, user, assistant, tool",
        ),
        (
            json!({"role": "user", "tool_calls": [{"name": "add"}]}),
            "user has tool_calls, which belong to the assistant",
        ),
        (json!({"role": "assistant", "content": null}), empty_turn),
        (json!({"role": "assistant", "content": " \n", "tool_calls": []}), empty_turn),
        (json!({"role": "assistant", "tool_calls": [{"function": {}}]}), "a tool call has no name"),
        (
            json!({"role": "assistant", "tool_calls": [{"name": "add", "arguments": 1}]}),
            "the arguments of add are invalid: expected an object, or its text",
        ),
    ] {
        assert_eq!(invalid(message), problem(expected));
    }
    assert_eq!(fails(json!(1), Use::Prompt), "field `messages` in rows line 7 is not a list");
}
