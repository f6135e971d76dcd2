//! Fields of rows by name. `a.b` is the field `b` of the object `a`, unless the row has a field
//! with that whole name.

use serde_json::Value;

use super::error::DataError;
use super::location::RowLocation;
use super::reader::Fields;

/// Most names of fields in errors.
const MAX_NAMES: usize = 20;
/// Longest list of names in errors, in characters.
const MAX_LENGTH: usize = 400;

/// The field with a name.
pub fn find<'f>(fields: &'f Fields, name: &str) -> Option<&'f Value> {
    fields.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        find(fields.get(first)?.as_object()?, rest)
    })
}

/// The field with a name, which a row must have.
pub fn required<'f>(
    location: &RowLocation,
    name: &str,
    fields: &'f Fields,
) -> Result<&'f Value, DataError> {
    find(fields, name).ok_or_else(|| missing(location, name, fields))
}

/// The error of a row without a field.
pub fn missing(location: &RowLocation, name: &str, fields: &Fields) -> DataError {
    let (location, field) = (location.clone(), name.to_owned());
    DataError::MissingField { location, field, found: found(fields, name) }
}

/// Whether a path leads to an object without the named field.
pub fn is_missing(fields: &Fields, path: &str) -> bool {
    match path.split_once('.') {
        None => !fields.contains_key(path),
        Some((first, rest)) => match fields.get(first) {
            Some(Value::Object(inner)) => is_missing(inner, rest),
            _ => false,
        },
    }
}

/// What a row, or an object in it, has in place of a field.
pub fn found(fields: &Fields, name: &str) -> String {
    let (mut whose, mut object, mut rest) = ("it".to_owned(), fields, name);
    while let Some((first, later)) = rest.split_once('.') {
        match object.get(first) {
            Some(Value::Object(inner)) => {
                (whose, object, rest) = (format!("`{first}`"), inner, later);
            }
            Some(_) => return format!("`{first}` is not an object"),
            None => break,
        }
    }
    format!("{whose} has {}", names(object.keys()))
}

/// Names for a message.
pub fn names<'n>(names: impl Iterator<Item = &'n String>) -> String {
    let mut names = names.map(String::as_str);
    let mut shown: Vec<&str> = names.by_ref().take(MAX_NAMES).collect();
    shown.extend(names.next().map(|_| "…"));
    let text = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
    text.chars().take(MAX_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        let Value::Object(fields) = value else { panic!("not an object") };
        fields
    }

    #[test]
    fn paths_lead_into_objects_and_whole_names_come_first() {
        let row = fields(json!({
            "a": {"b": {"c": 1}, "d.e": 2}, "a.b": 3, "list": [{"b": 4}], "text": "{\"b\": 5}",
        }));
        for (name, expected) in [
            ("a.b", Some(json!(3))),
            ("a.b.c", Some(json!(1))),
            ("a.d.e", Some(json!(2))),
            ("a", Some(json!({"b": {"c": 1}, "d.e": 2}))),
            ("a.c", None),
            ("list.b", None),
            ("text.b", None),
            ("b", None),
            ("", None),
        ] {
            assert_eq!(find(&row, name), expected.as_ref(), "{name}");
        }
    }

    #[test]
    fn errors_list_what_the_row_has() {
        let row = fields(json!({"q": "1+1", "extra": {"index": 3, "split": "train", "none": {}}}));
        for (name, expected) in [
            ("answer", "it has extra, q"),
            ("reward.answer", "it has extra, q"),
            ("extra.answer", "`extra` has index, none, split"),
            ("extra.none.answer", "`none` has none"),
            ("extra.index.answer", "`index` is not an object"),
            ("q.answer", "`q` is not an object"),
        ] {
            assert_eq!(found(&row, name), expected, "{name}");
        }
        let wide: Fields = (0..30).map(|number| (format!("{number:02}"), Value::Null)).collect();
        assert!(found(&wide, "x").ends_with("18, 19, …"), "{}", found(&wide, "x"));
    }
}
