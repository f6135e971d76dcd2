//! Tests of `data` with files on disk; [`folders`] has those of dataset folders.

mod conversations;
mod filters;
mod folders;
mod tools;

use std::fs;
use std::path::Path;

use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use std::path::PathBuf;

use rljob_crds::data::{EvaluationDataset, PromptFormat, Suite, TrainDataset};
use rljob_crds::reward::{MathReward, RewardSpec};
use rljob_protocol::evaluation::row_digest;
use serde_json::json;

use crate::data::{DataError, Dataset, Feedback, KeptFields, Prompt};
use crate::reward::{Rewards, Runner};
use crate::text::{PromptStyle, TextTokenizer};
use folders::opened;

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
fn a_supervised_row_becomes_a_prompt_and_a_completion_with_eos() {
    let file = File::new("\n{\"q\": \"What\", \"a\": 18.5}\n");
    let spec = TrainDataset {
        completion: Some("{{ q.upper() }}".to_owned()),
        ..file.train("{{q}} {{a}}")
    };
    let tokenizer = tokenizer();
    let dataset = Dataset::open_train(&spec, &tokenizer, 1, &KeptFields::None).unwrap();
    let expected = Prompt {
        position: 3,
        row: 0,
        text: "What 18.5".to_owned(),
        tokens: tokenizer.encode("What 18.5").unwrap(),
        answer: Some("18.5".to_owned()),
        rewards: std::sync::Arc::default(),
        category: None,
        completion_tokens: Some([tokenizer.encode("WHAT").unwrap(), vec![2]].concat()),
        later_turns: Vec::new(),
        pair_tokens: None,
        tools: None,
        fields: None,
        row_digest: None,
    };
    assert_eq!((dataset.len(), dataset.prompt(3).unwrap()), (1, expected));
}

#[test]
fn a_pair_becomes_two_completions_with_eos_and_must_have_both_sides() {
    let open = |content: &str| {
        let file = File::new(content);
        let spec = TrainDataset {
            answer: None,
            chosen: Some("{{good}}".to_owned()),
            rejected: Some("{{bad}}".to_owned()),
            ..file.train("{{q}}")
        };
        let opened = Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None);
        opened.map_err(|error| error.to_string().replace(&file.path(), "FILE"))
    };
    let tokens = |text: &str| [tokenizer().encode(text).unwrap(), vec![2]].concat();
    let dataset = open("{\"q\": \"What\", \"good\": \"yes\", \"bad\": \"no, never\"}\n").unwrap();
    let prompt = dataset.prompt(0).unwrap();
    assert_eq!(prompt.pair_tokens, Some([tokens("yes"), tokens("no, never")]));
    let longest = prompt.tokens.len() + tokens("no, never").len();
    assert_eq!((prompt.len_with_completion(), prompt.completion_tokens), (longest, None));
    assert!(dataset.check_lengths(longest as u32).is_ok());
    let error = dataset.check_lengths(longest as u32 - 1).unwrap_err();
    assert!(matches!(error, DataError::TooLong { .. }), "{error}");

    let Err(missing) = open("{\"q\": \"What\", \"good\": \"yes\"}\n") else { panic!("accepted") };
    assert!(missing.starts_with("FILE line 1") && missing.contains("bad"), "{missing}");
    let swapped = open("{\"q\": \"What\", \"good\": \"no, never\", \"bad\": \"yes\"}\n").unwrap();
    assert_ne!(swapped.fingerprint(), dataset.fingerprint());
}

#[test]
fn evaluation_uses_all_rows_in_file_order() {
    let file = File::new("{\"q\":\"x\",\"a\":\"1\"}\n{\"q\":\"y\",\"a\":\"2\"}\n");
    let spec = EvaluationDataset {
        completion: Some("{{a}}".to_owned()),
        limit: None,
        ..file.evaluation("{{q}}", PromptFormat::Chat, 2)
    };
    let tokenizer = tokenizer();
    let dataset = Dataset::open_evaluation(&suite(&spec), &tokenizer, &KeptFields::None).unwrap();
    let prompt = |position, text: &str, answer: &str| Prompt {
        position,
        row: position,
        text: text.to_owned(),
        tokens: tokenizer.encode_prompt(None, text, &PromptStyle::default()).unwrap(),
        answer: Some(answer.to_owned()),
        rewards: std::sync::Arc::default(),
        category: None,
        completion_tokens: Some([tokenizer.encode(answer).unwrap(), vec![2]].concat()),
        later_turns: Vec::new(),
        pair_tokens: None,
        tools: None,
        fields: None,
        row_digest: json!({"q": text, "a": answer}).as_object().map(row_digest),
    };
    assert_eq!(
        (0..dataset.len()).map(|position| dataset.prompt(position).unwrap()).collect::<Vec<_>>(),
        [prompt(0, "x", "1"), prompt(1, "y", "2")]
    );
}

#[test]
fn categories_of_evaluation_rows_are_strings_or_numbers_and_few() {
    let opened = |rows: &[String], category: &str| {
        let file = File::new(&rows.join("\n"));
        let spec = EvaluationDataset {
            category: Some(category.to_owned()),
            ..file.evaluation("{{q}}", PromptFormat::Text, 1000)
        };
        Dataset::open_evaluation(&suite(&spec), &tokenizer(), &KeptFields::None)
            .map_err(|error| error.to_string().replace(&file.path(), "FILE"))
    };
    let row = |category: &str| format!("{{\"q\":\"x\",\"a\":\"1\",\"c\":{category}}}");
    let data = opened(&[row("\"algebra\""), row("3")], "c").unwrap();
    let category = |position| data.prompt(position).unwrap().category;
    assert_eq!([category(0), category(1)], ["algebra", "3"].map(|own| Some(own.to_owned())));
    let error = |rows: &[String], category: &str| opened(rows, category).err().unwrap();
    assert_eq!(error(&[row("1")], "d"), "FILE line 1 has no field `d`");
    let many: Vec<String> = (0..101).map(|number| row(&number.to_string())).collect();
    assert!(opened(&many[..100], "c").is_ok());
    assert_eq!(
        error(&many, "c"),
        "the rows of FILE have more than 100 categories: set dataset.evaluation.category to a \
         field with fewer values"
    );
    let long = row(&format!("\"{}\"", "x".repeat(129)));
    assert_eq!(error(&[long], "c"), "the category of FILE line 1 has more than 128 bytes");
}

#[test]
fn an_evaluation_sample_is_drawn_by_its_seed_from_all_rows() {
    let line = |row: u32| format!("{{\"q\":\"x{row}\",\"a\":\"1\"}}");
    let lines = (0..100).map(line).collect::<Vec<_>>().join("\n");
    let file = File::new(&lines);
    let sample = |limit, sample_seed| {
        let spec = EvaluationDataset {
            sample_seed,
            ..file.evaluation("{{q}}", PromptFormat::Text, limit)
        };
        let dataset =
            Dataset::open_evaluation(&suite(&spec), &tokenizer(), &KeptFields::None).unwrap();
        let row = |position| dataset.prompt(position).unwrap().row;
        (0..dataset.len()).map(row).collect::<Vec<_>>()
    };
    let rows = sample(20, 1);
    assert!(rows.is_sorted() && rows.len() == 20 && rows[19] > 50, "{rows:?}");
    assert_eq!(rows, sample(20, 1));
    assert_ne!(rows, sample(20, 2));
    assert!(sample(30, 1).len() == 30 && rows.iter().all(|row| sample(30, 1).contains(row)));
    assert_eq!(sample(1000, 1), (0..100).collect::<Vec<_>>());
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
    assert!(error.to_string().ends_with("data.jsonl line 1 has no field `language`"), "{error}");
}

#[test]
fn row_errors_name_file_and_line() {
    let good = "{\"q\": \"x\", \"a\": \"1\"}\n\n";
    let error = |line: &str, prompt| File::open_error(&format!("{good}{line}\n"), prompt).0;
    assert_eq!(error("{\"q\": ", "{{q}}"), "FILE line 3 is not a JSON object");
    assert_eq!(error("[1]", "{{q}}"), "FILE line 3 is not a JSON object");
    assert_eq!(error("{\"a\": 1}", "{{q}}"), "FILE line 3 has no field `q`");
    assert_eq!(error("{\"q\": \"x\"}", "{{q}}"), "FILE line 3 has no field `a`");
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

fn math_rewards() -> Rewards {
    let spec = RewardSpec { math: Some(MathReward::default()), ..RewardSpec::default() };
    Rewards::new(&[spec], &Runner::Program(PathBuf::new()), None).unwrap()
}

#[test]
fn rows_with_unusable_answers_are_dropped_and_listed() {
    let file = File::new(concat!(
        "{\"q\":\"x\",\"a\":\"#### 1\"}\n",
        "{\"q\":\"y\",\"a\":\"5 > 3\"}\n",
        "{\"q\":\"z\",\"a\":\"3\"}\n",
    ));
    let mut dataset =
        Dataset::open_train(&file.train("{{q}}"), &tokenizer(), 1, &KeptFields::None).unwrap();
    dataset.drop_unusable(&math_rewards(), 0.34).unwrap();
    let mut rows: Vec<u64> = (0..2).map(|position| dataset.prompt(position).unwrap().row).collect();
    rows.sort_unstable();
    assert_eq!((dataset.len(), rows), (2, vec![0, 2]));
    let [dropped] = dataset.parts()[0].unusable() else { panic!("not one row") };
    let line = serde_json::to_value(dropped.line("train")).unwrap();
    let expected = serde_json::json!({
        "dataset": "train", "file": file.path(), "number": 2, "answer": "5 > 3",
        "reward": "reward", "reason": "an equation without variables is not supported",
    });
    assert_eq!(line, expected);
}

#[test]
fn more_unusable_answers_than_the_share_are_an_error_that_names_the_first_row() {
    let file = File::new("{\"q\":\"x\",\"a\":\"#### 1\"}\n{\"q\":\"y\",\"a\":\"5 > 3\"}\n");
    let mut dataset =
        Dataset::open_train(&file.train("{{q}}"), &tokenizer(), 1, &KeptFields::None).unwrap();
    let error = dataset.drop_unusable(&math_rewards(), 0.49).unwrap_err();
    let expected = format!(
        "1 of 2 rows of the data at {0} have unusable reference answers, more than \
         dataset.maxUnusableShare = 0.49; the first is in {0} line 2",
        file.path()
    );
    assert_eq!(error.to_string(), expected);
    let spec = TrainDataset { answer: None, ..file.train("{{q}}") };
    let mut without = Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None).unwrap();
    let error = without.drop_unusable(&math_rewards(), 1.0).unwrap_err();
    assert!(error.to_string().starts_with("the rewards need reference answers"), "{error}");
}

#[test]
fn rows_with_too_long_prompts_are_dropped_and_counted() {
    let lines: Vec<String> = (1..=6)
        .map(|words| format!("{{\"q\": \"{}\", \"a\": 1}}", vec!["What"; words].join(" ")))
        .collect();
    let file = File::new(&lines.join("\n"));
    let tokens = tokenizer().encode("What What What").unwrap().len() as u32;
    let dataset = Dataset::open_train(
        &TrainDataset { max_prompt_tokens: Some(tokens), ..file.train("{{q}}") },
        &tokenizer(),
        1,
        &KeptFields::None,
    )
    .unwrap();
    assert_eq!((dataset.len(), dataset.parts()[0].filtered().len()), (3, 3));
    let prompt = "{{q.split() | reverse | join(' ')}}{% if q == 'What' %}{{q * 9}}{% endif %}";
    let evaluation = EvaluationDataset {
        max_prompt_tokens: Some(tokens),
        ..file.evaluation(prompt, PromptFormat::Text, 2)
    };
    let dataset =
        Dataset::open_evaluation(&suite(&evaluation), &tokenizer(), &KeptFields::None).unwrap();
    let rows: Vec<u64> =
        (0..dataset.len()).map(|position| dataset.prompt(position).unwrap().row).collect();
    let dropped = dataset.parts()[0].filtered().len();
    assert_eq!((rows, dropped), (vec![1, 2], 1), "the limit counts the remaining rows");
    let error = opened(&TrainDataset {
        max_prompt_tokens: Some(1),
        prompt: "{{q}} {{q}}".to_owned(),
        ..file.train("")
    })
    .unwrap_err();
    assert_eq!(
        error,
        format!(
            "filters drop all 6 rows of the data at {}; the first: the prompt has 6 tokens, more \
             than maxPromptTokens = 1",
            file.path()
        )
    );
}

#[test]
fn check_lengths_names_the_first_row_that_exceeds_the_context() {
    let file = File::new("{\"q\": \"x\", \"a\": 1}\n\n{\"q\": \"What What What\", \"a\": 1}\n");
    let tokens = tokenizer().encode("What What What").unwrap().len();
    let dataset =
        Dataset::open_train(&file.train("{{q}}"), &tokenizer(), 1, &KeptFields::None).unwrap();
    assert!(dataset.check_lengths(tokens as u32 + 1).is_ok());
    let error = dataset.check_lengths(tokens as u32).unwrap_err().to_string();
    let expected = format!(
        "{} line 3 has {tokens} prompt and 1 completion tokens; the model's context \
         (max_position_embeddings) is {tokens}: set maxPromptTokens of the dataset or shorten \
         the row",
        file.path()
    );
    assert_eq!(error, expected);
    let learned = TrainDataset { completion: Some("{{q}}".to_owned()), ..file.train("{{q}}") };
    let dataset = Dataset::open_train(&learned, &tokenizer(), 1, &KeptFields::None).unwrap();
    assert!(dataset.check_lengths(2 * tokens as u32 + 1).is_ok());
    assert!(dataset.check_lengths(2 * tokens as u32).is_err());
    let empty = Dataset::open_train(
        &file.train("{% if q == 'x' %}{% else %}{{q}}{% endif %}"),
        &tokenizer(),
        1,
        &KeptFields::None,
    )
    .unwrap();
    assert_eq!(
        empty.check_lengths(100).unwrap_err().to_string(),
        format!("the prompt of {} line 1 is empty", file.path())
    );
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

#[test]
fn kept_fields_are_those_that_are_named() {
    let file =
        File::new("{\"q\":\"x\",\"a\":\"1\",\"hint\":7,\"other\":1}\n{\"q\":\"y\",\"a\":\"1\"}\n");
    let spec = file.train("{{q}}");
    let kept = KeptFields::Named(["hint".to_owned()].into());
    let open = |kept| Dataset::open_train(&spec, &tokenizer(), 1, kept).unwrap();
    let dataset = open(&kept);
    let mut fields: Vec<_> = (0..2)
        .map(|position| dataset.prompt(position).unwrap())
        .map(|prompt| (prompt.text, serde_json::to_string(&*prompt.fields.unwrap()).unwrap()))
        .collect();
    fields.sort();
    let expected = [("x", "{\"hint\":7}"), ("y", "{}")];
    assert_eq!(fields, expected.map(|(text, json)| (text.to_owned(), json.to_owned())));
    let without = open(&KeptFields::None);
    assert_eq!(without.prompt(0).unwrap().fields, None);
    assert_ne!(dataset.fingerprint(), without.fingerprint());
}

#[test]
fn rows_without_a_field_of_the_feedback_are_named_when_the_data_is_opened() {
    let file = File::new("{\"q\":\"x\",\"a\":\"1\",\"hint\":7}\n{\"q\":\"y\",\"a\":\"1\"}\n");
    let feedback = Feedback::new("{{hint}} {{turn.components.right}}").unwrap();
    let kept = feedback.fields().unwrap();
    let data = Dataset::open_train(&file.train("{{q}}"), &tokenizer(), 1, &kept).unwrap();
    let error = feedback.check(&data, &["right"]).unwrap_err();
    let expected =
        "failed to render rollout.workflow.multiTurn.feedback for FILE line 2".to_owned();
    assert_eq!(error.to_string().replace(&file.path(), "FILE"), expected);
    let feedback = Feedback::new("{{turn.components.right}}").unwrap();
    feedback.check(&data, &["right"]).unwrap();
    feedback.check(&data, &["other"]).unwrap_err();
}
