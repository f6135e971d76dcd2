//! Tests of prompts with the tools of their rows.

use std::fs;
use std::path::Path;

use rljob_crds::data::TrainDataset;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::File;
use crate::data::{Dataset, KeptFields};
use crate::text::{TextTokenizer, Tool, Tools};

/// A tokenizer whose template describes tools, with those of a workflow.
fn tokenizer() -> (TempDir, TextTokenizer) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures");
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(fixtures.join("tiny-chat").join(name), folder.path().join(name)).unwrap();
    }
    let template = folder.path().join("chat_template.jinja");
    fs::copy(fixtures.join("templates/tools.jinja"), template).unwrap();
    let defined: Tools = ["add", "halve"]
        .map(|name| Tool::new(name, "Of the job.", &json!({})))
        .into_iter()
        .collect();
    let tokenizer = TextTokenizer::open(folder.path()).unwrap().with_tools(defined);
    (folder, tokenizer)
}

fn prompt_and_fingerprint(row: &Value, data: Value) -> (String, Option<Tools>, String) {
    let (_folder, tokenizer) = tokenizer();
    let file = File::new(&format!("{row}\n"));
    let mut spec = json!({"path": file.path()});
    let Value::Object(data) = data else { panic!("not fields: {data}") };
    spec.as_object_mut().unwrap().extend(data);
    let spec: TrainDataset = serde_json::from_value(spec).unwrap();
    let data = Dataset::open_train(&spec, &tokenizer, 1, &KeptFields::None).unwrap();
    let prompt = data.prompt(0).unwrap();
    (tokenizer.decode_as(&prompt.tokens, false).unwrap(), prompt.tools, data.fingerprint())
}

#[test]
fn a_prompt_shows_the_tools_of_its_row_only() {
    let of = |tools: Value| {
        let row = json!({"q": "1 + 2?", "tools": tools});
        prompt_and_fingerprint(&row, json!({"prompt": "{{q}}", "tools": "tools"}))
    };
    let (one, offered, fingerprint) = of(json!(["halve"]));
    assert!(one.contains("halve") && !one.contains("add"), "{one}");
    assert_eq!(offered.unwrap().names(), ["halve"]);
    let (none, offered, other) = of(json!([]));
    assert!(!none.contains("# Tools") && offered.unwrap().is_empty(), "{none}");
    assert_ne!(fingerprint, other);
}

#[test]
fn rows_without_the_field_are_errors_if_the_workflow_has_tools() {
    let (_folder, tokenizer) = tokenizer();
    let file = File::new("{\"q\": \"1 + 2?\"}\n");
    let spec = json!({"path": file.path(), "prompt": "{{q}}", "tools": "tolls"});
    let spec: TrainDataset = serde_json::from_value(spec).unwrap();
    let open = |tokenizer| Dataset::open_train(&spec, tokenizer, 1, &KeptFields::None);
    let error = open(&tokenizer).err().unwrap().to_string();
    assert!(error.ends_with(" line 1 has no field `tolls`: it has q"), "{error}");
    let without = open(&tokenizer.with_tools(Tools::default())).unwrap();
    assert!(without.prompt(0).unwrap().tools.unwrap().is_empty());
}

#[test]
fn a_prompt_without_a_field_of_tools_shows_those_of_the_workflow() {
    let row = json!({"q": "1 + 2?", "tools": ["halve"]});
    let (all, offered, _) = prompt_and_fingerprint(&row, json!({"prompt": "{{q}}"}));
    assert!(all.contains("halve") && all.contains("add") && offered.is_none(), "{all}");
}

#[test]
fn a_conversation_shows_the_tools_of_its_row_too() {
    let row = json!({"chat": [{"role": "user", "content": "1 + 2?"}], "tools": ["add"]});
    let conversation = json!({"messages": "chat", "tools": "tools"});
    let (one, offered, _) = prompt_and_fingerprint(&row, json!({"conversation": conversation}));
    assert!(one.contains("add") && !one.contains("halve") && offered.is_some(), "{one}");
}
