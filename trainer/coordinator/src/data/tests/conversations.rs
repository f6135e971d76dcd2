//! Tests of rows with conversations.

use serde_json::{Value, json};

use super::{File, suite, tokenizer};
use crate::data::{DataError, Dataset, KeptFields};

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// A file with a conversation of two turns, which ends with a question.
fn file() -> File {
    let messages = json!([
        message("user", "1 + 2?"),
        message("assistant", "3"),
        message("user", "And 4?"),
        message("assistant", "7"),
        message("user", "And 5?"),
    ]);
    File::new(&(json!({"chat": messages, "a": "12"}).to_string() + "\n"))
}

fn train(file: &File, fields: Value) -> rljob_crds::data::TrainDataset {
    let mut spec = json!({"path": file.path(), "conversation": {"messages": "chat"}});
    let Value::Object(fields) = fields else { panic!("not fields: {fields}") };
    spec.as_object_mut().unwrap().extend(fields);
    serde_json::from_value(spec).unwrap()
}

#[test]
fn a_demonstration_has_the_turns_of_the_assistant_and_a_prompt_has_all_messages() {
    let file = file();
    let spec = train(&file, json!({}));
    let kept = KeptFields::None;
    let learned = Dataset::open_demonstrations(&spec, &tokenizer(), 1, &kept).unwrap();
    let prompt = learned.prompt(0).unwrap();
    let text = |tokens: &[i64]| tokenizer().decode_as(tokens, false).unwrap();
    assert_eq!(text(prompt.completion_tokens.as_ref().unwrap()), "3<|im_end|>");
    let later: Vec<_> = prompt.later_turns.iter().map(|turn| text(&turn.completion)).collect();
    assert_eq!(later, ["7<|im_end|>"]);
    assert!(learned.check_lengths(prompt.len_with_completion() as u32).is_ok());
    let error = learned.check_lengths(prompt.len_with_completion() as u32 - 1).unwrap_err();
    assert!(matches!(error, DataError::TooLong { .. }), "{error}");

    let data = Dataset::open_train(&spec, &tokenizer(), 1, &kept).unwrap();
    let whole = data.prompt(0).unwrap();
    assert!(text(&whole.tokens).ends_with("And 5?<|im_end|>\n<|im_start|>assistant\n"));
    assert_eq!((whole.completion_tokens, whole.later_turns.len()), (None, 0));
    assert!(whole.text.starts_with("user: 1 + 2?\n\nassistant: 3"), "{}", whole.text);
}

#[test]
fn an_evaluation_with_answers_continues_the_conversation() {
    let file = file();
    let open = |fields: Value| {
        let mut spec = json!({"path": file.path(), "conversation": {"messages": "chat"}});
        let Value::Object(fields) = fields else { panic!("not fields: {fields}") };
        spec.as_object_mut().unwrap().extend(fields);
        let spec = serde_json::from_value(spec).unwrap();
        let data = Dataset::open_evaluation(&suite(&spec), &tokenizer(), &KeptFields::None);
        data.unwrap().prompt(0).unwrap()
    };
    let (measured, learned) = (open(json!({"answer": "a"})), open(json!({})));
    assert_eq!((measured.answer.as_deref(), measured.completion_tokens), (Some("12"), None));
    assert!(learned.completion_tokens.is_some());
}

#[test]
fn the_fingerprint_depends_on_the_messages_and_the_tools() {
    let with = |tools: Value| {
        let row = json!({"chat": [message("user", "1?")], "tools": tools});
        let file = File::new(&(row.to_string() + "\n"));
        let spec = train(&file, json!({"conversation": {"messages": "chat", "tools": "tools"}}));
        Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None)
            .map(|data| data.fingerprint())
            .map_err(|error| crate::error_line(&error))
    };
    // The template of the fixture describes no tools.
    let error = with(json!([])).unwrap_err();
    assert!(
        error.starts_with("the tools of rows, in field `tools`, need another model: "),
        "{error}"
    );
    let of = |content: &str| {
        let row = json!({"chat": [message("user", content)]});
        let file = File::new(&(row.to_string() + "\n"));
        let spec = train(&file, json!({}));
        Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None).unwrap().fingerprint()
    };
    assert_ne!(of("1?"), of("2?"));
}
