//! Tests of the parser. Golden values are those of SGLang.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::*;
use crate::{Message, PromptStyle};

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
    let golden = include_str!("../../tests/fixtures/tool_calls.jsonl");
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
fn content_that_is_certain_begins_the_content_and_the_text_of_every_longer_completion() {
    let golden = include_str!("../../tests/fixtures/tool_calls.jsonl");
    for case in golden.lines().map(|line| serde_json::from_str::<Golden>(line).unwrap()) {
        let is_qwen = case.format == "qwen";
        let format = if is_qwen { ToolCallFormat::Qwen } else { ToolCallFormat::Llama };
        let mut end = 0;
        for (at, character) in case.text.char_indices() {
            let so_far = &case.text[..at + character.len_utf8()];
            end = format.content_end(so_far, end);
            let content = &case.text[..end];
            assert!(case.content.starts_with(content), "{content:?} {:?}", case.text);
        }
    }
    let end = |text: &str| ToolCallFormat::Qwen.content_end(text, 0);
    assert_eq!([end("I add. <tool"), end("I add.\n"), end("I add. <"), end(" I")], [6, 6, 6, 0]);
    let end = |text: &str| ToolCallFormat::Llama.content_end(text, 0);
    assert_eq!([end("I add: {"), end("{\"name\""), end("I <|python")], [8, 0, 2]);
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

/// The fixture with the tokens of Llama that stand around calls.
fn llama() -> TextTokenizer {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-chat");
    let file = fs::read_to_string(fixture.join("tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_str(&file).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (id, content) in [(1024, LLAMA_START), (1025, "<|eom_id|>")] {
        let mut token = added[0].clone();
        (token["id"], token["content"]) = (id.into(), content.into());
        added.push(token);
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    for name in ["chat_template.jinja", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(fixture.join(name), folder.path().join(name)).unwrap();
    }
    TextTokenizer::open(folder.path()).unwrap()
}

#[test]
fn special_tokens_of_llama_start_calls_and_end_their_message() {
    let tokenizer = llama();
    let call = "Adding.<|python_tag|>{\"name\": \"add\", \"parameters\": {}}<|eom_id|>";
    let tokens = tokenizer.encode(call).unwrap();
    let parsed = tokenizer.parse_tool_calls(ToolCallFormat::Llama, &tokens).unwrap();
    let call = ToolCall { name: "add".to_owned(), arguments: Map::new() };
    assert_eq!(parsed, ParsedCompletion { content: "Adding.".to_owned(), calls: vec![Ok(call)] });
    let (style, result) = (PromptStyle::default(), [Message::tool("3")]);
    let appended = |tokens: &[i64]| tokenizer.encode_continuation(tokens, &result, &style);
    let end = tokenizer.encode("<|im_end|>").unwrap();
    // The end of a message replaces that of a turn.
    assert_eq!(appended(&tokens).unwrap(), appended(&end).unwrap());
}

#[test]
fn a_template_that_does_not_describe_tools_is_an_error() {
    let error = llama().tool_call_format(Some(ToolCallFormat::Llama)).unwrap_err();
    assert!(error.to_string().contains("does not use the variable `tools`"), "{error}");
}

#[test]
fn the_format_is_that_of_the_chat_template() {
    let found = ["{{'<tool_call>'}}", "<|python_tag|>", "<|im_start|>"];
    let formats = found.map(ToolCallFormat::of_template);
    assert_eq!(formats, [Some(ToolCallFormat::Qwen), Some(ToolCallFormat::Llama), None]);
}
