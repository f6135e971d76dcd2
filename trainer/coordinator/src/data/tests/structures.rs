//! Tests of lists and maps in templates, and of pairs with equal sides.

use rljob_crds::data::TrainDataset;

use super::{File, tokenizer};
use crate::data::{DataError, Dataset, KeptFields, RowLocation};

fn open(file: &File, spec: &TrainDataset) -> Result<Dataset, DataError> {
    Dataset::open_train(spec, &tokenizer(), 1, &KeptFields::None).inspect_err(|error| {
        assert!(error.to_string().contains(&file.path()), "{error}");
    })
}

#[test]
fn lists_and_maps_are_printed_as_json_only_by_tojson() {
    let file = File::new("{\"q\": [{\"role\": \"user\"}], \"m\": {\"b\": 1}, \"a\": 1}\n");
    let cause = |spec: &TrainDataset| {
        let error = open(&file, spec).err().unwrap();
        crate::error_line(&error).replace(&file.path(), "FILE")
    };
    let message = |template: &str, kind: &str| {
        format!(
            "failed to render dataset.{template} for FILE line 1: invalid operation: a printed \
             field is a {kind}: print a part of it, as `{{{{chosen[-1].content}}}}`, use \
             `conversation` in place of `prompt` for lists of messages, or the filter `tojson` for \
             JSON text (in {template}:1)"
        )
    };
    assert_eq!(cause(&file.train("{{q}}")), message("prompt", "list"));
    assert_eq!(cause(&file.train("{{m}}")), message("prompt", "map"));
    let completion = TrainDataset { completion: Some("{{m}}".to_owned()), ..file.train("q{{a}}") };
    assert_eq!(cause(&completion), message("completion", "map"));
    let pair = |chosen: &str, rejected: &str| TrainDataset {
        chosen: Some(chosen.to_owned()),
        rejected: Some(rejected.to_owned()),
        ..file.train("q{{a}}")
    };
    assert_eq!(cause(&pair("{{q}}", "{{a}}")), message("chosen", "list"));
    assert_eq!(cause(&pair("{{a}}", "{{q}}")), message("rejected", "list"));
    let text = open(&file, &file.train("{{m | tojson}} {{q[0].role}}")).unwrap();
    assert_eq!(text.prompt(0).unwrap().text, "{\"b\":1} user");
}

#[test]
fn pairs_with_equal_sides_are_counted_and_an_error_if_all_are() {
    let of = |rows: &[(&str, &str)]| {
        let row = |(good, bad): &(&str, &str)| {
            format!("{{\"q\": \"What\", \"good\": \"{good}\", \"bad\": \"{bad}\"}}\n")
        };
        let file = File::new(&rows.iter().map(row).collect::<String>());
        let spec = TrainDataset {
            answer: None,
            chosen: Some("{{good}}".to_owned()),
            rejected: Some("{{bad}}".to_owned()),
            ..file.train("{{q}}")
        };
        let opened = open(&file, &spec);
        opened.map_err(|error| error.to_string().replace(&file.path(), "FILE"))
    };
    let equal = |rows: &[(&str, &str)]| {
        let data = of(rows).unwrap();
        let location = |(count, first): (u64, &RowLocation)| (count, first.number);
        data.parts()[0].equal_pairs().map(location)
    };
    assert_eq!(equal(&[("yes", "no"), ("no", "yes")]), None);
    assert_eq!(equal(&[("yes", "no"), ("no", "no"), ("a", "b"), ("c", "c")]), Some((2, 2)));
    let expected = "chosen and rejected are equal in all 2 pairs; the first is in FILE line 1: \
                    check the templates dataset.chosen and dataset.rejected";
    assert_eq!(of(&[("a", "a"), ("b", "b")]).err().unwrap(), expected);
}
