//! What `data` promises, one sentence a test.

use std::fs;
use std::path::Path;

use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use rljob_crds::data::{EvaluationDataset, PromptFormat, TrainDataset};
use rljob_crds::reward::{MathReward, RewardSpec};

use super::{DataError, Dataset, Prompt};
use crate::reward::Verifier;
use crate::text::TextTokenizer;

fn tokenizer() -> TextTokenizer {
    TextTokenizer::open(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat"),
    )
    .unwrap()
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
        serde_json::from_value(serde_json::json!({"path": self.path(), "prompt": prompt, "answer": "a", "format": "Text"})).unwrap()
    }

    fn evaluation(&self, prompt: &str, format: PromptFormat, limit: u32) -> EvaluationDataset {
        let spec = serde_json::json!({"path": self.path(), "prompt": prompt, "answer": "a", "format": format, "limit": limit});
        serde_json::from_value(spec).unwrap()
    }

    /// The error of opening the file with this prompt and answers in `a`, without the file's path,
    /// and its cause.
    fn refusal(content: &str, prompt: &str) -> (String, Option<String>) {
        let file = Self::new(content);
        let Err(error) = Dataset::open_train(&file.train(prompt), &tokenizer(), 1) else {
            panic!("{content} was taken")
        };
        (
            error.to_string().replace(&file.path(), "FILE"),
            std::error::Error::source(&error).map(ToString::to_string),
        )
    }
}

#[test]
fn a_supervised_row_becomes_a_prompt_and_a_completion_that_ends() {
    let file = File::new("\n{\"q\": \"What\", \"a\": 18.5}\n");
    let spec = TrainDataset {
        completion: Some("{{ q.upper() }}".to_owned()),
        ..file.train("{{q}} {{a}}")
    };
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
    let spec = EvaluationDataset {
        completion: Some("{{a}}".to_owned()),
        ..file.evaluation("{{q}}", PromptFormat::Chat, 2)
    };
    let tokenizer = tokenizer();
    let dataset = Dataset::open_evaluation(&spec, &tokenizer).unwrap();
    let prompt = |position, text: &str, answer: &str| Prompt {
        position,
        row: position,
        text: text.to_owned(),
        tokens: tokenizer.encode_prompt(text, PromptFormat::Chat).unwrap(),
        answer: Some(answer.to_owned()),
        completion_tokens: Some([tokenizer.encode(answer).unwrap(), vec![2]].concat()),
    };
    assert_eq!(
        (0..dataset.len()).map(|position| dataset.prompt(position).unwrap()).collect::<Vec<_>>(),
        [prompt(0, "x", "1"), prompt(1, "y", "2")]
    );
}

#[test]
fn what_is_wrong_with_a_row_is_said_with_file_and_line() {
    let good = "{\"q\": \"x\", \"a\": \"1\"}\n\n";
    let refusal = |line: &str, prompt| File::refusal(&format!("{good}{line}\n"), prompt).0;
    assert_eq!(refusal("{\"q\": ", "{{q}}"), "FILE line 3 is not a JSON object");
    assert_eq!(refusal("[1]", "{{q}}"), "FILE line 3 is not a JSON object");
    assert_eq!(refusal("{\"a\": 1}", "{{q}}"), "FILE line 3 has no field `q`");
    assert_eq!(refusal("{\"q\": \"x\"}", "{{q}}"), "FILE line 3 has no field `a`");
    assert_eq!(
        refusal("{\"q\": 1, \"a\": null}", "{{q}}"),
        "field `a` in FILE line 3 is null, expected a string or a number"
    );
    assert_eq!(
        refusal("{\"q\": 1, \"a\": [1]}", "{{q}}"),
        "field `a` in FILE line 3 is a list, expected a string or a number"
    );
    assert_eq!(
        File::refusal(good, "{{q.nothing}}").0,
        "the template dataset.prompt fails on FILE line 1"
    );
    let (message, cause) = File::refusal("{\"q\": null, \"a\": 1}", "{{q}}");
    assert_eq!(
        (message.as_str(), cause.as_deref()),
        (
            "the template dataset.prompt fails on FILE line 1",
            Some("invalid operation: a field that it prints is null (in prompt:1)")
        )
    );
    assert_eq!(File::refusal("\n \n", "{{q}}").0, "the data at FILE has no rows");
}

#[test]
fn a_template_that_is_not_jinja_is_refused_by_its_name() {
    let (message, cause) = File::refusal("{}", "{{q");
    assert_eq!(message, "the template dataset.prompt is not valid");
    assert_eq!(
        cause.as_deref(),
        Some("syntax error: unexpected end of input, expected end of variable block (in prompt:1)")
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let mut spec = File::new("").train("{{q}}");
    spec.path = "/nowhere/data.jsonl".to_owned();
    let Err(error) = Dataset::open_train(&spec, &tokenizer(), 1) else {
        panic!("a missing file was opened")
    };
    assert_eq!(error.to_string(), "failed to read the data at /nowhere/data.jsonl");
}

#[test]
fn a_field_that_only_some_rows_have_can_be_asked_for() {
    let file = File::new("{\"q\":\"x\",\"a\":\"1\"}\n{\"q\":\"y\",\"hint\":\"h\",\"a\":\"2\"}\n");
    let dataset = Dataset::open_train(
        &file.train("{{q}}{% if hint is defined %} {{hint}}{% endif %}"),
        &tokenizer(),
        1,
    )
    .unwrap();
    let mut texts: Vec<String> =
        (0..2).map(|position| dataset.prompt(position).unwrap().text).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["x", "y h"]);
}

#[test]
fn an_answer_that_the_reward_cannot_use_is_named_before_the_run_begins() {
    let file = File::new("{\"q\":\"x\",\"a\":\"#### 1\"}\n{\"q\":\"y\",\"a\":\"none\"}\n");
    let verifier =
        Verifier::new(&RewardSpec { math: Some(MathReward::default()), ..RewardSpec::default() })
            .unwrap();
    let dataset = Dataset::open_train(&file.train("{{q}}"), &tokenizer(), 1).unwrap();
    let error = dataset.check_answers(&verifier).unwrap_err();
    assert!(matches!(&error, DataError::Answer { place, .. } if place.number == 2), "{error}");
    let unnamed = TrainDataset { answer: None, ..file.train("{{q}}") };
    let error = Dataset::open_train(&unnamed, &tokenizer(), 1)
        .unwrap()
        .check_answers(&verifier)
        .unwrap_err();
    assert!(matches!(&error, DataError::NoAnswerField { .. }), "{error}");
}

fn fixture(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
        .to_str()
        .unwrap()
        .to_owned()
}

/// Rows of the dataset folder of the fixtures, in the order of its files: row and prompt.
fn opened(spec: &TrainDataset) -> Result<Vec<(u64, String)>, String> {
    let shorter =
        |error: DataError| crate::error_line(&error).replace(&fixture("hub-dataset"), "FOLDER");
    let dataset = Dataset::open_train(spec, &tokenizer(), 1).map_err(shorter)?;
    let mut rows: Vec<_> = (0..dataset.len())
        .map(|position| dataset.prompt(position).unwrap())
        .map(|prompt| (prompt.row, prompt.text))
        .collect();
    rows.sort_unstable();
    Ok(rows)
}

fn folder(prompt: &str) -> TrainDataset {
    TrainDataset { path: fixture("hub-dataset"), answer: None, ..File::new("").train(prompt) }
}

#[test]
fn a_folder_s_split_is_read_from_all_its_files_in_their_order() {
    let prompt = "{{question}} {{answer}} {{level}} {{weight}} {{tags | join('+')}} {{meta.source}} {{meta.ok}}";
    let rows = opened(&folder(prompt)).unwrap();
    assert_eq!(rows.len(), 5);
    assert_eq!(rows[0], (0, "What is 0 + 0? 0 0 0.0 sum+n0 made True".to_owned()));
    assert_eq!(rows[3], (3, "What is 3 + 3? 6 3 0.3 sum+n3 made False".to_owned()));
    assert_eq!(rows[4], (4, "What is 4 + 4? 8 4 0.4 sum+n4 made True".to_owned()));
}

#[test]
fn parquet_types_become_what_templates_can_use() {
    let prompt = "{{question or 'none'}}|{{answer}}|{{day}}|{{price}}|{{raw or 'none'}}|{{big}}|{{half or 'none'}}|{{map | tojson}}";
    let rows = opened(&TrainDataset { split: Some("test".to_owned()), ..folder(prompt) }).unwrap();
    let expected = [
        "é 漢字|1.5|2024-07-26|12.50|text|9223372036854775808|1.5|{\"a\":1}",
        "none|2.0|2024-07-26|12.50|none|1|none|{}",
    ];
    assert_eq!(rows.into_iter().map(|(_, text)| text).collect::<Vec<_>>(), expected);
}

#[test]
fn a_subset_is_another_table_of_the_folder() {
    let spec = TrainDataset { subset: Some("hard".to_owned()), ..folder("{{question}}") };
    assert_eq!(opened(&spec).unwrap(), [(0, "What is 100 + 100?".to_owned())]);
}

#[test]
fn a_folder_without_a_card_is_read_by_the_names_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let row = |name: &str| {
        fs::write(folder.path().join(name), format!("{{\"q\": \"{name}\", \"a\": 1}}\n")).unwrap()
    };
    fs::create_dir(folder.path().join("validation")).unwrap();
    for name in [
        "train-00001.jsonl",
        "train-00000.jsonl",
        "my_test.jsonl",
        "validation/part.jsonl",
        "notes.txt",
        ".hidden-train.jsonl",
    ] {
        row(name);
    }
    let spec = |split: Option<&str>| TrainDataset {
        path: folder.path().to_str().unwrap().to_owned(),
        split: split.map(str::to_owned),
        ..File::new("").train("{{q}}")
    };
    let texts = |split| {
        opened(&spec(split)).map(|rows| rows.into_iter().map(|(_, text)| text).collect::<Vec<_>>())
    };
    assert_eq!(texts(None).unwrap(), ["train-00000.jsonl", "train-00001.jsonl"]);
    assert_eq!(texts(Some("test")).unwrap(), ["my_test.jsonl"]);
    assert_eq!(texts(Some("validation")).unwrap(), ["validation/part.jsonl"]);
    let name = folder.path().display();
    assert_eq!(
        texts(Some("dev2")).unwrap_err(),
        format!(
            "the dataset folder {name} has no split `dev2`, but test, train, validation: set dataset's split"
        )
    );
}

#[test]
fn what_is_wrong_with_a_folder_is_said() {
    let split = |split: &str| {
        opened(&TrainDataset { split: Some(split.to_owned()), ..folder("{{question}}") })
            .unwrap_err()
    };
    assert_eq!(
        split("validation"),
        "the dataset folder FOLDER has no split `validation`, but train, test: set dataset's split"
    );
    let subset =
        opened(&TrainDataset { subset: Some("easy".to_owned()), ..folder("{{question}}") })
            .unwrap_err();
    assert_eq!(
        subset,
        "the dataset folder FOLDER has no subset `easy`; its README.md lists default, hard"
    );
    let field = opened(&folder("{{query}}")).unwrap_err();
    assert_eq!(field, "FOLDER/data/train-00000-of-00002.parquet row 1 has no field `query`");

    let file = File::new("{\"q\": \"x\", \"a\": 1}");
    let of_file = opened(&TrainDataset { split: Some("train".to_owned()), ..file.train("{{q}}") })
        .unwrap_err();
    assert_eq!(
        of_file,
        format!("dataset.split is for dataset folders, and {} is a file: remove it", file.path())
    );

    let written = |files: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let path = folder.path().to_str().unwrap().to_owned();
        opened(&TrainDataset { path: path.clone(), ..File::new("").train("{{q}}") })
            .unwrap_err()
            .replace(&path, "FOLDER")
    };
    let row = "{\"q\": \"x\", \"a\": 1}\n";
    assert_eq!(
        written(&[("state.json", "{}"), ("data-00000-of-00001.arrow", "")]),
        "the dataset folder FOLDER has no .parquet or .jsonl file (a folder written by save_to_disk holds Arrow files: write it with to_parquet)"
    );
    assert_eq!(
        written(&[
            ("train.jsonl", row),
            (
                "dataset_info.json",
                r#"{"splits": {"train": {"name": "train", "num_examples": 7473}}}"#
            )
        ]),
        "the data at FOLDER has 1 rows where its dataset_info says 7473: is the download complete?"
    );
    assert_eq!(
        written(&[(
            "README.md",
            "---\nconfigs:\n- config_name: default\n  data_files: data/train-*\n---\n"
        )]),
        "FOLDER/README.md is not what a dataset folder has: data_files `data/train-*`: no file fits; is the download complete?"
    );
    assert_eq!(
        written(&[(
            "README.md",
            "---\nconfigs:\n- config_name: a\n  data_files: a.jsonl\n- config_name: b\n  data_files: b.jsonl\n---\n"
        )]),
        "the dataset folder FOLDER has several subsets and no default: set dataset's subset to one of a, b"
    );
    assert_eq!(
        written(&[("train.parquet", "PAR1 and then nothing")]),
        "failed to read the Parquet file FOLDER/train.parquet: Parquet error: Invalid Parquet file. Corrupt footer"
    );
}

#[test]
fn rows_with_prompts_that_are_too_long_are_left_out_and_counted() {
    let lines: Vec<String> = (1..=6)
        .map(|words| format!("{{\"q\": \"{}\", \"a\": 1}}", vec!["What"; words].join(" ")))
        .collect();
    let file = File::new(&lines.join("\n"));
    let tokens = tokenizer().encode("What What What").unwrap().len() as u32;
    let dataset = Dataset::open_train(
        &TrainDataset { max_prompt_tokens: Some(tokens), ..file.train("{{q}}") },
        &tokenizer(),
        1,
    )
    .unwrap();
    assert_eq!((dataset.len(), dataset.dropped()), (3, 3));
    let prompt = "{{q.split() | reverse | join(' ')}}{% if q == 'What' %}{{q * 9}}{% endif %}";
    let evaluation = EvaluationDataset {
        max_prompt_tokens: Some(tokens),
        ..file.evaluation(prompt, PromptFormat::Text, 2)
    };
    let dataset = Dataset::open_evaluation(&evaluation, &tokenizer()).unwrap();
    let rows: Vec<u64> =
        (0..dataset.len()).map(|position| dataset.prompt(position).unwrap().row).collect();
    assert_eq!(
        (rows, dataset.dropped()),
        (vec![1, 2], 1),
        "the limit counts the rows that are left"
    );
    let refused = opened(&TrainDataset {
        max_prompt_tokens: Some(1),
        prompt: "{{q}} {{q}}".to_owned(),
        ..file.train("")
    })
    .unwrap_err();
    assert_eq!(
        refused,
        format!(
            "all 6 rows of the data at {} have prompts of more than maxPromptTokens = 1 tokens",
            file.path()
        )
    );
}

#[test]
fn a_row_that_the_context_cannot_hold_is_named_before_the_run_begins() {
    let file = File::new("{\"q\": \"x\", \"a\": 1}\n\n{\"q\": \"What What What\", \"a\": 1}\n");
    let tokens = tokenizer().encode("What What What").unwrap().len();
    let dataset = Dataset::open_train(&file.train("{{q}}"), &tokenizer(), 1).unwrap();
    assert!(dataset.check_lengths(tokens as u32 + 1).is_ok());
    let error = dataset.check_lengths(tokens as u32).unwrap_err().to_string();
    let expected = format!(
        "{} line 3 gives {tokens} prompt and 1 completion tokens, and the model's context (max_position_embeddings) is {tokens}: set dataset's maxPromptTokens, \
         or shorten the row",
        file.path()
    );
    assert_eq!(error, expected);
    let learned = TrainDataset { completion: Some("{{q}}".to_owned()), ..file.train("{{q}}") };
    let dataset = Dataset::open_train(&learned, &tokenizer(), 1).unwrap();
    assert!(dataset.check_lengths(2 * tokens as u32 + 1).is_ok());
    assert!(dataset.check_lengths(2 * tokens as u32).is_err());
    let empty = Dataset::open_train(
        &file.train("{% if q == 'x' %}{% else %}{{q}}{% endif %}"),
        &tokenizer(),
        1,
    )
    .unwrap();
    assert_eq!(
        empty.check_lengths(100).unwrap_err().to_string(),
        format!("{} line 1 gives an empty prompt", file.path())
    );
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
