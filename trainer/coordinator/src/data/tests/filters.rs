//! Tests of filters and mixtures.

use serde_json::json;

use super::{File, tokenizer};
use crate::data::{Dataset, Feedback, KeptFields};

/// Opens training data with these fields instead of the defaults of [`File::train`].
fn open(file: &File, fields: serde_json::Value) -> Result<Dataset, String> {
    let mut spec = serde_json::to_value(file.train("{{q}}")).unwrap();
    let serde_json::Value::Object(fields) = fields else { panic!("not fields: {fields}") };
    spec.as_object_mut().unwrap().extend(fields);
    let spec = serde_json::from_value(spec).unwrap();
    Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None)
        .map_err(|error| error.to_string().replace(&file.path(), "FILE"))
}

/// Numbers of the rows, in file order.
fn rows(data: &Dataset) -> Vec<u64> {
    let mut rows: Vec<u64> =
        (0..data.len()).map(|position| data.prompt(position).unwrap().row).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn rows_outside_the_filters_are_dropped_and_listed_with_the_reason() {
    let row = |words: usize, rate: f64| {
        json!({"q": vec!["What"; words].join(" "), "a": 1, "rate": rate}).to_string() + "\n"
    };
    let file = File::new(&[row(1, 0.5), row(3, 0.0), row(3, 0.5), row(3, 1.0)].concat());
    let tokens = tokenizer().encode("What What What").unwrap().len();
    let pass_rate = json!({"field": "rate", "min": 0.1, "max": 0.9});
    let filters = json!({"minPromptTokens": tokens, "passRate": pass_rate});
    let data = open(&file, filters).unwrap();
    assert_eq!(rows(&data), [2]);
    let part = &data.parts()[0];
    let lines: Vec<_> = part
        .filtered()
        .iter()
        .map(|row| serde_json::to_value(row.line(part.label())).unwrap())
        .collect();
    let line = |number: u64, reason: String| {
        json!({
            "dataset": "train", "file": file.path(), "number": number, "reason": reason,
        })
    };
    let short = tokenizer().encode("What").unwrap().len();
    let short = format!("the prompt has {short} tokens, fewer than minPromptTokens = {tokens}");
    let outside = |rate: &str| format!("the pass rate {rate} is outside passRate, 0.1 to 0.9");
    assert_eq!(lines, [line(1, short), line(2, outside("0")), line(4, outside("1"))]);
    let error = open(&file, json!({"passRate": {"field": "q"}})).err().unwrap();
    let expected = "field `q` in FILE line 1 is \"What\", expected a pass rate from 0 to 1";
    assert_eq!(error, expected);
    let error = open(&file, json!({"passRate": {"field": "rate", "min": 0.6, "max": 0.7}}));
    let expected = "filters drop all 4 rows of the data at FILE; the first: the pass rate 0.5 is \
        outside passRate, 0.6 to 0.7";
    assert_eq!(error.err().unwrap(), expected);
}

#[test]
fn a_mixture_serves_its_parts_by_weight_each_with_its_templates_and_order() {
    let easy = File::new("{\"q\":\"x\",\"a\":1}\n{\"q\":\"y\",\"a\":2}\n");
    let hard = File::new(&"{\"q\":\"z\",\"b\":3}\n".repeat(3));
    let mixture = |weight: f64| {
        json!({"path": null, "mixture": [
            {"name": "easy", "path": easy.path(), "weight": weight},
            {"name": "hard", "path": hard.path(), "prompt": "hard {{q}}", "answer": "b",
                "rewards": ["proof"]},
        ]})
    };
    let data = open(&easy, mixture(3.0)).unwrap();
    assert_eq!(data.len(), 5);
    let prompts: Vec<_> = (0..1000).map(|position| data.prompt(position).unwrap()).collect();
    let is_hard = |position: &u64| data.part_name(*position) == Some("hard");
    assert_eq!((0..1000).filter(is_hard).count(), 250);
    for prompt in &prompts {
        let hard = is_hard(&prompt.position);
        assert_eq!(prompt.text == "hard z", hard);
        assert_eq!(prompt.answer.as_deref() == Some("3"), hard);
        assert_eq!(prompt.rewards.len(), usize::from(hard));
    }
    // A part continues its epochs across positions of other parts.
    let easy_rows: Vec<u64> =
        prompts.iter().filter(|prompt| prompt.text.len() == 1).map(|prompt| prompt.row).collect();
    assert!(easy_rows.chunks(2).all(|epoch| epoch.iter().sum::<u64>() == 1), "{easy_rows:?}");
    let again = open(&easy, mixture(3.0)).unwrap();
    assert!((0..1000).rev().all(|at| again.prompt(at).unwrap() == prompts[at as usize]));
    assert_eq!(again.fingerprint(), data.fingerprint());
    assert_ne!(open(&easy, json!({})).unwrap().fingerprint(), data.fingerprint());
}

#[test]
fn feedback_may_use_the_rewards_of_its_part_only() {
    let file = File::new("{\"q\":\"x\",\"a\":1}\n");
    let feedback = Feedback::new("{{turn.components.format}}").unwrap();
    let check = |rewards: &[&str]| {
        let data = open(&file, json!({"rewards": rewards})).unwrap();
        feedback.check(&data, &["correct", "format"]).map_err(|error| error.to_string())
    };
    assert_eq!((check(&[]), check(&["format"])), (Ok(()), Ok(())));
    let error = check(&["correct"]).unwrap_err();
    assert!(error.contains("data.jsonl line 1"), "{error}");
}

#[test]
fn a_position_visits_a_row_of_a_part_in_an_epoch_of_that_part() {
    let row = |n: usize| json!({"q": format!("{n}"), "a": 1}).to_string() + "\n";
    let one = File::new(&(0..3).map(row).collect::<String>());
    let two = File::new(&(0..500).map(row).collect::<String>());
    let parts = json!([{"name": "one", "path": one.path()}, {"name": "two", "path": two.path()}]);
    let data = open(&one, json!({"path": null, "mixture": parts})).unwrap();
    let visits: Vec<_> = (0..2000).map(|at| data.visit(at).unwrap()).collect();
    for (position, visit) in (0..).zip(&visits) {
        assert_eq!(data.prompt(position).unwrap().row, visit.row);
    }
    for (part, rows) in [(0, 3), (1, 500)] {
        let own: Vec<_> = visits.iter().filter(|visit| visit.part == part).collect();
        let epochs: Vec<u64> = own.iter().map(|visit| visit.epoch).collect();
        assert_eq!(epochs, (0..1000).map(|at| at / rows).collect::<Vec<_>>());
        let first: std::collections::BTreeSet<_> =
            own[..rows as usize].iter().map(|visit| visit.row).collect();
        assert_eq!(first, (0..rows).collect());
    }
}
