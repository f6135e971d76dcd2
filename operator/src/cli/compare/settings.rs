//! Settings that differ between runs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::cli::table::table;

/// Most characters of a value in a table.
const MAX_LENGTH: usize = 60;
/// Digits of a digest.
const DIGITS: usize = 12;

/// A setting that differs.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Setting {
    /// For example `spec.optimizer.learningRate`.
    path: String,
    /// Values in the order of the runs; null where the setting has none.
    values: Vec<Value>,
}

/// The settings in which specs differ.
pub(super) fn differing(specs: &[&Value]) -> Vec<Setting> {
    let mut settings = Vec::new();
    compare("spec".to_owned(), specs, &mut settings);
    settings
}

/// The inputs whose contents differ, by the fields that name them, with the first digits of their
/// SHA-256.
pub(super) fn differing_contents(contents: &[&BTreeMap<String, String>]) -> Vec<Setting> {
    let fields: BTreeSet<&String> = contents.iter().flat_map(|own| own.keys()).collect();
    let setting = |field: &String| {
        let digest = |own: &&BTreeMap<String, String>| {
            own.get(field).map(|sha256| sha256.chars().take(DIGITS).collect::<String>())
        };
        let values: Vec<Option<String>> = contents.iter().map(digest).collect();
        let differ = values.iter().any(|value| Some(value) != values.first());
        let values = values.into_iter().map(Value::from).collect();
        differ.then(|| Setting { path: format!("contents of {field}"), values })
    };
    fields.into_iter().filter_map(setting).collect()
}

/// Adds the parts that differ of the values at `path`: those of objects if all are objects, and of
/// lists if all have the same length.
fn compare(path: String, values: &[&Value], settings: &mut Vec<Setting>) {
    let Some((first, others)) = values.split_first() else { return };
    if others.iter().all(|other| other == first) {
        return;
    }
    let part = |key: &str| values.iter().map(|value| &value[key]).collect::<Vec<_>>();
    let objects: Option<Vec<_>> = values.iter().map(|value| value.as_object()).collect();
    let lists: Option<Vec<_>> = values.iter().map(|value| value.as_array()).collect();
    let length = |lists: &Vec<&Vec<Value>>| {
        let lengths: BTreeSet<usize> = lists.iter().map(|list| list.len()).collect();
        lengths.first().copied().filter(|_| lengths.len() == 1)
    };
    if let Some(objects) = objects {
        let keys: BTreeSet<&String> = objects.iter().flat_map(|object| object.keys()).collect();
        for key in keys {
            compare(format!("{path}.{key}"), &part(key), settings);
        }
    } else if let Some(length) = lists.as_ref().and_then(length) {
        for index in 0..length {
            let items: Vec<&Value> = values.iter().map(|value| &value[index]).collect();
            compare(format!("{path}[{index}]"), &items, settings);
        }
    } else {
        settings.push(Setting { path, values: values.iter().copied().cloned().collect() });
    }
}

/// One row for each run and setting, with `none` where a run has none; no table without settings.
pub(super) fn settings_table(settings: &[Setting], names: &[&str], none: &str) -> Option<String> {
    let rows = settings.iter().flat_map(|setting| {
        let values = setting.values.iter().zip(names);
        values.map(|(value, name)| [setting.path.clone(), (*name).to_owned(), text(value, none)])
    });
    let rows: Vec<_> = rows.collect();
    (!rows.is_empty()).then(|| table(["SETTING", "RUN", "VALUE"], &rows))
}

/// A value in one line.
fn text(value: &Value, none: &str) -> String {
    let text = match value {
        Value::Null => none.to_owned(),
        Value::String(text) => text.replace('\n', "⏎"),
        _ => value.to_string(),
    };
    if text.chars().count() <= MAX_LENGTH {
        return text;
    }
    text.chars().take(MAX_LENGTH).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_that_differ_have_their_paths_and_values() {
        let specs = [
            json!({
                "algorithm": {"grpo": {"clipLow": 0.2}}, "training": {"steps": 3, "seed": 1},
                "rewards": [{"name": "right", "weight": 1.0}], "stop": ["a"],
            }),
            json!({
                "algorithm": {"sft": {}}, "training": {"steps": 3, "seed": 2},
                "rewards": [{"name": "right", "weight": 0.5}], "stop": ["a", "b"],
            }),
        ];
        let found = differing(&[&specs[0], &specs[1]]);
        let setting = |path: &str, one: Value, other: Value| Setting {
            path: format!("spec.{path}"),
            values: vec![one, other],
        };
        let expected = [
            setting("algorithm.grpo", json!({"clipLow": 0.2}), Value::Null),
            setting("algorithm.sft", Value::Null, json!({})),
            setting("rewards[0].weight", json!(1.0), json!(0.5)),
            setting("stop", json!(["a"]), json!(["a", "b"])),
            setting("training.seed", json!(1), json!(2)),
        ];
        assert_eq!(found, expected);
        let table = settings_table(&found[4..], &["a", "b"], "-").unwrap();
        assert_eq!(
            table,
            "SETTING             RUN  VALUE\nspec.training.seed  a    1\nspec.training.seed  b    2"
        );
    }

    #[test]
    fn equal_specs_and_a_single_one_differ_in_nothing() {
        let spec = json!({"training": {"steps": 3}});
        for specs in [&[][..], &[&spec], &[&spec, &spec]] {
            assert_eq!(differing(specs), []);
        }
        assert_eq!(settings_table(&[], &["a"], "-"), None);
    }

    #[test]
    fn long_values_are_cut() {
        assert_eq!(text(&json!("a\nb"), "-"), "a⏎b");
        assert_eq!(text(&Value::Null, "-"), "-");
        assert_eq!(text(&json!("x".repeat(61)), "-"), "x".repeat(60) + "…");
    }
}
