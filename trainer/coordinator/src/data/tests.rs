//! What `data` promises, one sentence a test.

use std::fs;
use std::path::Path;

use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use rljob_crds::algorithm::{MathReward, RewardSpec};
use rljob_crds::data::{EvaluationDataset, PromptFormat, TrainDataset};

use super::{DataError, Dataset, Prompt};
use crate::reward::Verifier;
use crate::text::TextTokenizer;

fn tokenizer() -> TextTokenizer {
    TextTokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat")).unwrap()
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
        TrainDataset { path: self.path(), prompt: prompt.to_owned(), answer: Some("a".to_owned()), completion: None, format: PromptFormat::Text }
    }

    /// The error of opening the file with this prompt and answers in `a`, without the file's path, and its cause.
    fn refusal(content: &str, prompt: &str) -> (String, Option<String>) {
        let file = Self::new(content);
        let Err(error) = Dataset::open_train(&file.train(prompt), &tokenizer(), 1) else { panic!("{content} was taken") };
        (error.to_string().replace(&file.path(), "FILE"), std::error::Error::source(&error).map(ToString::to_string))
    }
}

#[test]
fn a_supervised_row_becomes_a_prompt_and_a_completion_that_ends() {
    let file = File::new("\n{\"q\": \"What\", \"a\": 18.5}\n");
    let spec = TrainDataset { completion: Some("{{ q.upper() }}".to_owned()), ..file.train("{{q}} {{a}}") };
    let tokenizer = tokenizer();
    let dataset = Dataset::open_train(&spec, &tokenizer, 1).unwrap();
    let expected = Prompt {
        position: 3,
        row: 0,
        text: "What 18.5".to_owned(),
        tokens: tokenizer.encode("What 18.5").unwrap(),
        answer: Some("18.5".to_owned()),
        completion_tokens: Some([tokenizer.encode("WHAT").unwrap(), vec![2]].concat()),
    };
    assert_eq!((dataset.len(), dataset.prompt(3).unwrap()), (1, expected));
}

#[test]
fn evaluation_takes_the_first_rows_in_the_order_of_the_file() {
    let file = File::new("{\"q\":\"x\",\"a\":\"1\"}\n{\"q\":\"y\",\"a\":\"2\"}\nnot even JSON");
    let spec =
        EvaluationDataset { path: file.path(), prompt: "{{q}}".to_owned(), answer: "a".to_owned(), format: PromptFormat::Chat, every_steps: 1, limit: 2 };
    let tokenizer = tokenizer();
    let dataset = Dataset::open_evaluation(&spec, &tokenizer).unwrap();
    let prompt = |position, text: &str, answer: &str| Prompt {
        position,
        row: position,
        text: text.to_owned(),
        tokens: tokenizer.encode_prompt(text, PromptFormat::Chat).unwrap(),
        answer: Some(answer.to_owned()),
        completion_tokens: None,
    };
    assert_eq!((0..dataset.len()).map(|position| dataset.prompt(position).unwrap()).collect::<Vec<_>>(), [prompt(0, "x", "1"), prompt(1, "y", "2")]);
}

#[test]
fn what_is_wrong_with_a_row_is_said_with_file_and_line() {
    let good = "{\"q\": \"x\", \"a\": \"1\"}\n\n";
    let refusal = |line: &str, prompt| File::refusal(&format!("{good}{line}\n"), prompt).0;
    assert_eq!(refusal("{\"q\": ", "{{q}}"), "FILE line 3 is not a JSON object");
    assert_eq!(refusal("[1]", "{{q}}"), "FILE line 3 is not a JSON object");
    assert_eq!(refusal("{\"a\": 1}", "{{q}}"), "FILE line 3 has no field `q`");
    assert_eq!(refusal("{\"q\": \"x\"}", "{{q}}"), "FILE line 3 has no field `a`");
    assert_eq!(refusal("{\"q\": 1, \"a\": null}", "{{q}}"), "field `a` in FILE line 3 is null, expected a string or a number");
    assert_eq!(refusal("{\"q\": 1, \"a\": [1]}", "{{q}}"), "field `a` in FILE line 3 is a list, expected a string or a number");
    assert_eq!(File::refusal(good, "{{q.nothing}}").0, "the template dataset.prompt fails on FILE line 1");
    assert_eq!(File::refusal("\n \n", "{{q}}").0, "the data file FILE has no rows");
}

#[test]
fn a_template_that_is_not_jinja_is_refused_by_its_name() {
    let (message, cause) = File::refusal("{}", "{{q");
    assert_eq!(message, "the template dataset.prompt is not valid");
    assert_eq!(cause.as_deref(), Some("syntax error: unexpected end of input, expected end of variable block (in prompt:1)"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let mut spec = File::new("").train("{{q}}");
    spec.path = "/nowhere/data.jsonl".to_owned();
    let Err(error) = Dataset::open_train(&spec, &tokenizer(), 1) else { panic!("a missing file was opened") };
    assert_eq!(error.to_string(), "failed to read the data file /nowhere/data.jsonl");
}

#[test]
fn a_field_that_only_some_rows_have_can_be_asked_for() {
    let file = File::new("{\"q\":\"x\",\"a\":\"1\"}\n{\"q\":\"y\",\"hint\":\"h\",\"a\":\"2\"}\n");
    let dataset = Dataset::open_train(&file.train("{{q}}{% if hint is defined %} {{hint}}{% endif %}"), &tokenizer(), 1).unwrap();
    let mut texts: Vec<String> = (0..2).map(|position| dataset.prompt(position).unwrap().text).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["x", "y h"]);
}

#[test]
fn an_answer_that_the_reward_cannot_use_is_named_before_the_run_begins() {
    let file = File::new("{\"q\":\"x\",\"a\":\"#### 1\"}\n{\"q\":\"y\",\"a\":\"none\"}\n");
    let verifier = Verifier::new(&RewardSpec { math: Some(MathReward {}), exact_match: None });
    let dataset = Dataset::open_train(&file.train("{{q}}"), &tokenizer(), 1).unwrap();
    let error = dataset.check_answers(&verifier).unwrap_err();
    assert!(matches!(&error, DataError::Answer { line: 2, .. }), "{error}");
    let unnamed = TrainDataset { answer: None, ..file.train("{{q}}") };
    let error = Dataset::open_train(&unnamed, &tokenizer(), 1).unwrap().check_answers(&verifier).unwrap_err();
    assert!(matches!(&error, DataError::NoAnswerField { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn a_position_holds_the_same_prompt_whoever_asks_and_when(seed: u64, positions in proptest::collection::vec(0_u64..50, 1..20)) {
        let rows: Vec<String> = (0..7).map(|row| format!("{{\"q\":\"{row}\",\"a\":{row}}}")).collect();
        let file = File::new(&rows.join("\n"));
        let tokenizer = tokenizer();
        let open = || Dataset::open_train(&file.train("{{q}}"), &tokenizer, seed).unwrap();
        let (one, other) = (open(), open());
        let forwards: Vec<Prompt> = positions.iter().map(|&position| one.prompt(position).unwrap()).collect();
        let mut backwards: Vec<Prompt> = positions.iter().rev().map(|&position| other.prompt(position).unwrap()).collect();
        backwards.reverse();
        prop_assert_eq!(&forwards, &backwards);
        for prompt in forwards {
            prop_assert_eq!(prompt.text, prompt.row.to_string());
        }
    }
}
