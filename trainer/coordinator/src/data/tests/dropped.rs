//! Tests of rows that are dropped, and of errors about too many of them.

use std::path::PathBuf;

use rljob_crds::data::{EvaluationDataset, PromptFormat, TrainDataset};
use rljob_crds::reward::{MathReward, RewardSpec};

use super::folders::opened;
use super::{File, suite, tokenizer};
use crate::data::{Dataset, KeptFields};
use crate::reward::{Rewards, Runner};

fn math_rewards() -> Rewards {
    let spec = RewardSpec { math: Some(MathReward::default()), ..RewardSpec::default() };
    Rewards::new(&[spec], &Runner::Program(PathBuf::new()), None).unwrap()
}

#[test]
fn rows_with_unusable_answers_are_dropped_and_listed() {
    let file = File::new(concat!(
        "{\"q\":\"x\",\"a\":\"#### 1\"}\n",
        "{\"q\":\"y\",\"a\":\"1/2x\"}\n",
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
        "dataset": "train", "file": file.path(), "number": 2, "answer": "1/2x",
        "reward": "reward", "reason": "the divisor of a product is ambiguous",
    });
    assert_eq!(line, expected);
}

#[test]
fn more_unusable_answers_than_the_share_are_an_error_that_names_the_first_row() {
    let file = File::new("{\"q\":\"x\",\"a\":\"#### 1\"}\n{\"q\":\"y\",\"a\":\"1/2x\"}\n");
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
fn max_tokens_drops_rows_whose_prompt_and_completion_are_longer() {
    let file = File::new(
        "{\"q\": \"What\", \"a\": \"yes\", \"b\": \"no\"}\n\
         {\"q\": \"What\", \"a\": \"yes\", \"b\": \"no no no no no\"}\n",
    );
    let pairs = TrainDataset {
        answer: None,
        chosen: Some("{{a}}".to_owned()),
        rejected: Some("{{b}}".to_owned()),
        ..file.train("{{q}}")
    };
    let open = |max_tokens| {
        let spec = TrainDataset { max_tokens, ..pairs.clone() };
        Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None).unwrap()
    };
    let longest = open(None).prompt(1).unwrap().len_with_completion() as u32;
    assert_eq!(open(Some(longest)).len(), 2);
    let dataset = open(Some(longest - 1));
    let reasons: Vec<String> =
        dataset.parts()[0].filtered().iter().map(|row| row.reason.to_string()).collect();
    let limit = longest - 1;
    let expected =
        format!("prompt and completion have {longest} tokens, more than maxTokens = {limit}");
    assert_eq!((dataset.len(), reasons), (1, vec![expected]));
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
