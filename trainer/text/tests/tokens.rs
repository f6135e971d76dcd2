//! Compares tokens of texts and chats with transformers: beginning- and end-of-sequence tokens,
//! system turns and arguments of the chat template. `golden_tokens.py` writes
//! `fixtures/tokens.json`.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::data::PromptFormat;
use rljob_text::{PromptStyle, TextTokenizer};
use serde_json::{Value, json};

const TEXT: &str = "What is 12 + 30?";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn read(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(fixtures().join(path)).unwrap()).unwrap()
}

/// Opens a model folder with the post-processor and configuration of a case.
fn tokenizer(case: &Value) -> TextTokenizer {
    let folder = tempfile::tempdir().unwrap();
    let mut file = read("tiny-chat/tokenizer.json");
    file["post_processor"] = case["file"].clone();
    fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    let mut config = case["config"].clone();
    for (name, token) in
        [("bos_token", "<|im_start|>"), ("eos_token", "<|im_end|>"), ("pad_token", "<|endoftext|>")]
    {
        config[name] = json!(token);
    }
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let template = fixtures().join("templates/thinking.jinja");
    fs::copy(template, folder.path().join("chat_template.jinja")).unwrap();
    TextTokenizer::open(folder.path()).unwrap()
}

fn ids(value: &Value) -> Vec<i64> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn texts_and_chats_have_the_tokens_of_transformers() {
    let golden = read("tokens.json");
    let cases = golden.as_array().unwrap();
    assert!(cases.len() >= 9);
    for case in cases {
        let tokenizer = tokenizer(case);
        for text in case["texts"].as_array().unwrap() {
            let found = tokenizer.encode_with_special(text["text"].as_str().unwrap()).unwrap();
            assert_eq!(found, ids(&text["ids"]), "{} of {text}", case["name"]);
        }
        for chat in case["chats"].as_array().unwrap() {
            let style = PromptStyle {
                format: PromptFormat::Chat,
                arguments: chat["arguments"].as_object().unwrap().clone(),
            };
            let found = tokenizer.encode_prompt(chat["system"].as_str(), TEXT, &style).unwrap();
            assert_eq!(found, ids(&chat["ids"]), "{} of {chat}", case["name"]);
        }
    }
}

#[test]
fn a_text_prompt_begins_as_in_transformers_and_has_no_end_of_sequence_token() {
    let style = PromptStyle { format: PromptFormat::Text, ..PromptStyle::default() };
    for case in read("tokens.json").as_array().unwrap() {
        for text in case["texts"].as_array().unwrap() {
            let mut expected = ids(&text["ids"]);
            let has_eos = case["config"]["add_eos_token"] == true
                || case["file"]["single"].as_array().unwrap().len() == 3;
            if has_eos {
                expected.pop();
            }
            let text = text["text"].as_str().unwrap();
            let found = tokenizer(case).encode_prompt(None, text, &style).unwrap();
            assert_eq!(found, expected, "{} of {text}", case["name"]);
        }
    }
}
