//! Tests of `data` with files on disk; [`folders`] has those of dataset folders.

mod completions;
mod conversations;
mod dropped;
mod evaluation;
mod feedback;
mod fields;
mod filters;
mod folders;
mod observations;
mod structures;
mod tools;

use std::fs;
use std::path::Path;

use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use rljob_crds::data::{EvaluationDataset, PromptFormat, Suite, TrainDataset};

use crate::data::{Dataset, KeptFields, Prompt};
use crate::text::TextTokenizer;

fn tokenizer() -> TextTokenizer {
    TextTokenizer::open(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat"),
    )
    .unwrap()
}

fn suite(data: &EvaluationDataset) -> Suite {
    data.resolved().remove(0)
}

struct File {
    folder: tempfile::TempDir,
}

impl File {
    fn new(content: &str) -> Self {
        let file = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(file.path(), content).unwrap();
        file
    }

    fn path(&self) -> String {
        self.folder.path().join("data.jsonl").to_str().unwrap().to_owned()
    }

    fn train(&self, prompt: &str) -> TrainDataset {
        let spec = serde_json::json!({
            "path": self.path(), "prompt": prompt, "answer": "a", "format": "Text",
        });
        serde_json::from_value(spec).unwrap()
    }

    fn evaluation(&self, prompt: &str, format: PromptFormat, limit: u32) -> EvaluationDataset {
        let spec = serde_json::json!({
            "path": self.path(), "prompt": prompt, "answer": "a", "format": format, "limit": limit,
        });
        serde_json::from_value(spec).unwrap()
    }

    /// Error and cause of opening training data with this prompt and answers in `a`. The path is
    /// replaced by FILE.
    fn open_error(content: &str, prompt: &str) -> (String, Option<String>) {
        let file = Self::new(content);
        let Err(error) =
            Dataset::open_train(&file.train(prompt), &tokenizer(), 1, &KeptFields::None)
        else {
            panic!("{content} was accepted")
        };
        (
            error.to_string().replace(&file.path(), "FILE"),
            std::error::Error::source(&error).map(ToString::to_string),
        )
    }
}

#[test]
fn a_system_turn_and_arguments_of_the_chat_template_are_part_of_the_prompt() {
    let file = File::new("{\"q\":\"x\",\"a\":\"1\",\"lang\":\"French\"}\n");
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture.join("tiny-chat").join(name), folder.path().join(name)).unwrap();
    }
    let template = fixture.join("templates/thinking.jinja");
    fs::copy(template, folder.path().join("chat_template.jinja")).unwrap();
    let tokenizer = TextTokenizer::open(folder.path()).unwrap();
    let spec = TrainDataset {
        system: Some("Answer in {{lang}}.".to_owned()),
        format: PromptFormat::Chat,
        chat_template_arguments: serde_json::from_str("{\"enable_thinking\": false}").unwrap(),
        ..file.train("{{q}}?")
    };
    let dataset = Dataset::open_train(&spec, &tokenizer, 1, &KeptFields::None).unwrap();
    let prompt = dataset.prompt(0).unwrap();
    assert_eq!(
        tokenizer.decode_as(&prompt.tokens, false).unwrap(),
        "<|im_start|>system\nAnswer in French.<|im_end|>\n<|im_start|>user\nx?<|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
    let unknown = TrainDataset { system: Some("{{language}}".to_owned()), ..spec };
    let Err(error) = Dataset::open_train(&unknown, &tokenizer, 1, &KeptFields::None) else {
        panic!("an unknown field was rendered")
    };
    let expected = "data.jsonl line 1 has no field `language`: it has a, lang, q";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn row_errors_name_file_and_line() {
    let good = "{\"q\": \"x\", \"a\": \"1\"}\n\n";
    let error = |line: &str, prompt| File::open_error(&format!("{good}{line}\n"), prompt).0;
    assert_eq!(error("{\"q\": ", "{{q}}"), "FILE line 3 is not a JSON object");
    assert_eq!(error("[1]", "{{q}}"), "FILE line 3 is not a JSON object");
    assert_eq!(error("{\"a\": 1}", "{{q}}"), "FILE line 3 has no field `q`: it has a");
    assert_eq!(error("{\"q\": \"x\"}", "{{q}}"), "FILE line 3 has no field `a`: it has q");
    assert_eq!(
        error("{\"q\": 1, \"a\": null}", "{{q}}"),
        "field `a` in FILE line 3 is null, expected a string, a number, a list or an object"
    );
    assert_eq!(
        error("{\"q\": 1, \"a\": true}", "{{q}}"),
        "field `a` in FILE line 3 is a boolean, expected a string, a number, a list or an object"
    );
    assert_eq!(
        File::open_error(good, "{{q.nothing}}").0,
        "failed to render dataset.prompt for FILE line 1"
    );
    let (message, cause) = File::open_error("{\"q\": null, \"a\": 1}", "{{q}}");
    assert_eq!(
        (message.as_str(), cause.as_deref()),
        (
            "failed to render dataset.prompt for FILE line 1",
            Some("invalid operation: a printed field is null (in prompt:1)")
        )
    );
    assert_eq!(File::open_error("\n \n", "{{q}}").0, "the data at FILE has no rows");
}

#[test]
fn an_invalid_template_is_an_error_with_its_name() {
    let (message, cause) = File::open_error("{}", "{{q");
    assert_eq!(message, "the template dataset.prompt is not valid Jinja");
    assert_eq!(
        cause.as_deref(),
        Some("syntax error: unexpected end of input, expected end of variable block (in prompt:1)")
    );
}

#[test]
fn a_missing_file_is_an_error_with_its_path() {
    let mut spec = File::new("").train("{{q}}");
    spec.path = Some("/nowhere/data.jsonl".to_owned());
    let Err(error) = Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None) else {
        panic!("a missing file was opened")
    };
    assert_eq!(error.to_string(), "failed to read the data at /nowhere/data.jsonl");
}

#[test]
fn templates_can_test_for_optional_fields() {
    let file = File::new("{\"q\":\"x\",\"a\":\"1\"}\n{\"q\":\"y\",\"hint\":\"h\",\"a\":\"2\"}\n");
    let dataset = Dataset::open_train(
        &file.train("{{q}}{% if hint is defined %} {{hint}}{% endif %}"),
        &tokenizer(),
        1,
        &KeptFields::None,
    )
    .unwrap();
    let mut texts: Vec<String> =
        (0..2).map(|position| dataset.prompt(position).unwrap().text).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["x", "y h"]);
}

#[test]
fn a_template_that_does_not_end_fails_within_its_instruction_limit() {
    let file = File::new("{\"q\":\"x\"}\n");
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let dataset = Dataset::open_train(&file.train(endless), &tokenizer(), 1, &KeptFields::None);
    let error = dataset.and_then(|dataset| dataset.prompt(0).map(drop)).unwrap_err();
    let text = crate::error_line(&error);
    assert!(text.contains("ran out of fuel"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn prompts_depend_on_position_alone(
        seed: u64,
        positions in proptest::collection::vec(0_u64..50, 1..20),
    ) {
        let rows: Vec<String> =
            (0..7).map(|row| format!("{{\"q\":\"{row}\",\"a\":{row}}}")).collect();
        let file = File::new(&rows.join("\n"));
        let tokenizer = tokenizer();
        let (spec, kept) = (file.train("{{q}}"), KeptFields::None);
        let open = || Dataset::open_train(&spec, &tokenizer, seed, &kept).unwrap();
        let (first, second) = (open(), open());
        let forwards: Vec<Prompt> =
            positions.iter().map(|&position| first.prompt(position).unwrap()).collect();
        let mut backwards: Vec<Prompt> =
            positions.iter().rev().map(|&position| second.prompt(position).unwrap()).collect();
        backwards.reverse();
        prop_assert_eq!(&forwards, &backwards);
        for prompt in forwards {
            prop_assert_eq!(prompt.text, prompt.row.to_string());
        }
    }
}
