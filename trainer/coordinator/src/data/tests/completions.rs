//! Tests of rows with given completions: demonstrations, and pairs.

use rljob_crds::data::TrainDataset;

use super::{File, tokenizer};
use crate::data::{Dataset, KeptFields, Prompt};

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
        reward_fields: None,
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
    let advice = ": set maxTokens of the dataset or shorten the row";
    assert!(error.to_string().ends_with(advice), "{error}");

    let Err(missing) = open("{\"q\": \"What\", \"good\": \"yes\"}\n") else { panic!("accepted") };
    assert!(missing.starts_with("FILE line 1") && missing.contains("bad"), "{missing}");
    let swapped = open("{\"q\": \"What\", \"good\": \"no, never\", \"bad\": \"yes\"}\n").unwrap();
    assert_ne!(swapped.fingerprint(), dataset.fingerprint());
}

#[test]
fn an_empty_completion_is_an_error_that_names_its_row_and_template() {
    let fails = |row: &str| {
        let file = File::new(&format!("{{\"q\": \"What\", \"a\": \"1\", {row}}}\n"));
        let template = |field: &str| Some(format!("{{{{{field}}}}}"));
        let spec = TrainDataset {
            completion: row.contains("text").then(|| template("text")).flatten(),
            chosen: row.contains("good").then(|| template("good")).flatten(),
            rejected: row.contains("good").then(|| template("bad")).flatten(),
            ..file.train("{{q}}")
        };
        let error = Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None).err().unwrap();
        error.to_string().replace(&file.path(), "FILE")
    };
    for (template, row) in [
        ("completion", "\"text\": \"\""),
        ("chosen", "\"good\": \" \\n\", \"bad\": \"no\""),
        ("rejected", "\"good\": \"yes\", \"bad\": \"\""),
    ] {
        let expected = format!(
            "dataset.{template} is empty for FILE line 1: remove the row, or correct the template \
             or its fields"
        );
        assert_eq!(fails(row), expected);
    }
}
