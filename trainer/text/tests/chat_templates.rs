//! Compares chat templates of all common styles with transformers: with committed texts, and with
//! transformers itself if a Python with it is installed.
//!
//! The templates cover the features that templates of well-known models use: namespaces, reverse
//! and conditional loops, macros, white space control, `tojson`, `strftime_now`, `raise_exception`,
//! `generation`, string methods and filters. `golden.py` writes `fixtures/golden.json`.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_tests::files::{python, required};
use rljob_text::{Message, PromptStyle, TextTokenizer, Tool, Tools};
use serde::Deserialize;
use serde_json::{Value, json};

/// By template and conversation; `None` if the template rejects the conversation.
type Texts = BTreeMap<String, BTreeMap<String, Option<String>>>;

/// Messages with the variables and tools of the chat template.
#[derive(Deserialize)]
struct Conversation {
    name: String,
    messages: Vec<Value>,
    #[serde(default)]
    variables: BTreeMap<String, Value>,
    #[serde(default)]
    tools: Vec<Tool>,
}

const CONFIG: &str = r#"{
    "bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"},
    "pad_token": "<|endoftext|>"
}"#;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn golden() -> Texts {
    serde_json::from_str(&fs::read_to_string(tests().join("fixtures/golden.json")).unwrap())
        .unwrap()
}

/// Opens a model folder with the tokenizer of the fixture and this template.
fn tokenizer(template: &str) -> TextTokenizer {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        tests().join("fixtures/tiny-chat/tokenizer.json"),
        folder.path().join("tokenizer.json"),
    )
    .unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), CONFIG).unwrap();
    fs::copy(
        tests().join(format!("fixtures/templates/{template}.jinja")),
        folder.path().join("chat_template.jinja"),
    )
    .unwrap();
    TextTokenizer::open(folder.path()).unwrap()
}

fn rendered() -> Texts {
    let conversations: Vec<Conversation> = serde_json::from_str(
        &fs::read_to_string(tests().join("fixtures/conversations.json")).unwrap(),
    )
    .unwrap();
    let render = |tokenizer: &TextTokenizer, conversation: &Conversation| {
        let tools: Tools = conversation.tools.iter().cloned().collect();
        let tokenizer = tokenizer.with_tools(tools);
        tokenizer.render_messages(&conversation.messages, &conversation.variables).ok()
    };
    let texts = |template: &String| {
        let tokenizer = tokenizer(template);
        conversations
            .iter()
            .map(|conversation| (conversation.name.clone(), render(&tokenizer, conversation)))
            .collect()
    };
    golden().keys().map(|template| (template.clone(), texts(template))).collect()
}

#[test]
fn every_template_renders_the_committed_texts() {
    let (rendered, golden) = (rendered(), golden());
    assert!(golden.len() >= 7 && golden.values().all(|texts| texts.len() >= 10));
    for (template, texts) in &golden {
        assert_eq!(&rendered[template], texts, "template {template}");
    }
}

#[test]
fn the_committed_texts_match_the_installed_transformers() {
    let Some(python) = required(python()) else { return };
    let output = Command::new(python).arg(tests().join("golden.py")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(serde_json::from_slice::<Texts>(&output.stdout).unwrap(), golden());
}

#[test]
fn a_turn_after_a_completion_ends_the_turn_of_the_assistant_as_each_template_does() {
    let continued = |template: &str, completion: &[&str], arguments: Value| {
        let (tokenizer, mut style) = (tokenizer(template), PromptStyle::default());
        style.arguments = arguments.as_object().unwrap().clone();
        let completion = tokenizer.encode(&completion.concat()).unwrap();
        let messages = [Message::user("Wrong.")];
        let tokens = tokenizer.encode_continuation(&completion, &messages, &style).unwrap();
        tokenizer.decode_as(&tokens, false).unwrap()
    };
    let user = "\n<|im_start|>user\nWrong.<|im_end|>\n<|im_start|>assistant\n";
    let thought = json!({"enable_thinking": false});
    assert_eq!(continued("thinking", &["41", "<|im_end|>"], json!({})), user);
    assert_eq!(continued("thinking", &["41"], json!({})), format!("<|im_end|>{user}"));
    assert_eq!(
        continued("thinking", &["41", "<|im_end|>"], thought),
        format!("{user}<think>\n\n</think>\n\n")
    );
    assert_eq!(continued("alternating", &["41"], json!({})), "<|im_end|>[INST] Wrong.[/INST]");
    let headers = continued("headers", &["41"], json!({}));
    let header = |role| format!("<|eot_id|><|start_header_id|>{role}<|end_header_id|>\n\n");
    assert_eq!(headers, format!("{}Wrong.{}", header("user"), header("assistant")));
}
