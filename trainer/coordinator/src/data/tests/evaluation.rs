//! Tests of evaluation data.

use rljob_crds::data::{EvaluationDataset, PromptFormat};
use rljob_protocol::evaluation::row_digest;
use serde_json::json;

use super::{File, suite, tokenizer};
use crate::data::{Dataset, KeptFields, Prompt};
use crate::text::PromptStyle;

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
        reward_fields: None,
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
    assert_eq!(error(&[row("1")], "d"), "FILE line 1 has no field `d`: it has a, c, q");
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
