//! `--set [NAME:]path=value`: edits the YAML of jobs before validation; the value `null` removes a
//! field. Pure; knows no fields, because validation rejects unknown ones.

use std::str::FromStr;

use serde_yaml::{Mapping, Value};

/// One `--set`.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Name of the job; `None` for all jobs of the file.
    pub job: Option<String>,
    /// Keys from the document's root, for example `spec`, `training`, `steps`. In a list the key is
    /// the item's index from 0, written `rewards[0]`, which is `[0` here, or `rewards.0`.
    pub path: Vec<String>,
    /// The new value, typed as YAML: `3` is a number, `true` a boolean, `{}` an empty mapping.
    /// Null removes the field, or the item of a list.
    pub value: Value,
}

/// Error of a `--set`.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// Not of the form `path=value`.
    #[error(
        "`--set {0}` is not of the form path=value or NAME:path=value, for example \
            spec.training.steps=3"
    )]
    Form(String),
    /// The path does not start in the spec or the metadata.
    #[error(
        "`--set {0}`: a path starts with `spec` or `metadata`, for example spec.training.steps=3"
    )]
    Root(String),
    /// The value is not YAML.
    #[error(
        "the value of `--set {text}` is not YAML: text with special \
            characters of YAML needs quotes, as in `--set 'PATH=\"text\"'`"
    )]
    Value { text: String, source: serde_yaml::Error },
    /// `.nan` or `.inf`, which JSON does not have.
    #[error("the value of `--set {0}` must be a finite number")]
    NotFinite(String),
    /// The path leads through a scalar.
    #[error(
        "`--set {path}`: `{part}` cannot have this part: a mapping has named fields, a list \
            has items and may get the next one"
    )]
    NoParts {
        path: String,
        /// The part of the path that exists.
        part: String,
    },
    /// A field to remove that no job has.
    #[error("`--set {path}=null`: no job has this field")]
    NotSet { path: String },
    /// No job of that name.
    #[error("`--set {job}:{path}`: the file has no job `{job}`")]
    NoJob { job: String, path: String },
}

impl FromStr for Set {
    type Err = SetError;

    fn from_str(text: &str) -> Result<Self, SetError> {
        let form = || SetError::Form(text.to_owned());
        let (place, value) = text.split_once('=').ok_or_else(form)?;
        let (job, path) =
            place.split_once(':').map_or((None, place), |(job, path)| (Some(job.to_owned()), path));
        // Errors of validation write items of lists as `rewards[0]`.
        let path = path.replace('[', ".[").replace(']', "");
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        if job.as_deref() == Some("") || path.iter().any(|part| matches!(part.as_str(), "" | "[")) {
            return Err(form());
        }
        if !matches!(path.first().map(String::as_str), Some("spec" | "metadata")) {
            return Err(SetError::Root(text.to_owned()));
        }
        if let Ok(Value::Number(number)) = serde_yaml::from_str(value)
            && number.as_f64().is_some_and(|number| !number.is_finite())
        {
            return Err(SetError::NotFinite(text.to_owned()));
        }
        let invalid = |source| SetError::Value { text: text.to_owned(), source };
        // As JSON, because `{{field}}` is a YAML mapping whose key is a mapping.
        let json: serde_json::Value = serde_yaml::from_str(value).map_err(invalid)?;
        let value = serde_yaml::to_value(json).map_err(invalid)?;
        Ok(Self { job, path, value })
    }
}

/// Applies every `--set` to its documents. Missing parts of a path are created, an item after the
/// last one of a list too, unless the field is removed.
///
/// # Errors
/// [`SetError::NoJob`], [`SetError::NoParts`] and [`SetError::NotSet`].
pub fn apply_all(documents: &mut [Value], sets: &[Set]) -> Result<(), SetError> {
    for set in sets {
        let (mut found, mut changed) = (set.job.is_none(), false);
        for document in &mut *documents {
            if set.job.is_none() || set.job.as_deref() == name(document) {
                found = true;
                changed |= apply(document, set)?;
            }
        }
        if let (false, Some(job)) = (found, &set.job) {
            return Err(SetError::NoJob { job: job.clone(), path: shown(&set.path) });
        }
        if !changed {
            return Err(SetError::NotSet { path: shown(&set.path) });
        }
    }
    Ok(())
}

fn name(document: &Value) -> Option<&str> {
    document.get("metadata")?.get("name")?.as_str()
}

/// Returns whether the document has changed: false if it lacks the field to remove.
fn apply(document: &mut Value, set: &Set) -> Result<bool, SetError> {
    if set.value.is_null() {
        return remove(document, set);
    }
    let mut place = document;
    for part in &set.path {
        let is_item = part.starts_with('[');
        if place.is_null() {
            *place =
                if is_item { Value::Sequence(Vec::new()) } else { Value::Mapping(Mapping::new()) };
        }
        place = match place {
            Value::Mapping(mapping) if !is_item => {
                mapping.entry(Value::String(part.clone())).or_insert(Value::Null)
            }
            Value::Sequence(items) => {
                if index(part) == Some(items.len()) {
                    items.push(Value::Null);
                }
                item(items, part).ok_or_else(|| no_parts(set, part))?
            }
            _ => return Err(no_parts(set, part)),
        };
    }
    *place = set.value.clone();
    Ok(true)
}

fn remove(document: &mut Value, set: &Set) -> Result<bool, SetError> {
    let Some((last, parents)) = set.path.split_last() else { return Ok(false) };
    let mut place = document;
    for part in parents {
        let child = match place {
            Value::Mapping(mapping) => mapping.get_mut(part.as_str()),
            Value::Sequence(items) => item(items, part),
            Value::Null => None,
            _ => return Err(no_parts(set, part)),
        };
        let Some(child) = child else { return Ok(false) };
        place = child;
    }
    match place {
        Value::Mapping(mapping) => Ok(mapping.remove(last.as_str()).is_some()),
        Value::Sequence(items) => {
            let index = index(last).filter(|index| *index < items.len());
            Ok(index.map(|index| items.remove(index)).is_some())
        }
        Value::Null => Ok(false),
        _ => Err(no_parts(set, last)),
    }
}

fn item<'a>(items: &'a mut [Value], part: &str) -> Option<&'a mut Value> {
    items.get_mut(index(part)?)
}

/// The index of a part such as `[0`, or `0` after a dot.
fn index(part: &str) -> Option<usize> {
    part.strip_prefix('[').unwrap_or(part).parse().ok()
}

/// The path as errors of validation write it.
fn shown<'a>(parts: impl IntoIterator<Item = &'a String>) -> String {
    let mut text = String::new();
    for part in parts {
        let (before, after) = match part.strip_prefix('[') {
            Some(_) => ("", "]"),
            None if text.is_empty() => ("", ""),
            None => (".", ""),
        };
        text.extend([before, part, after]);
    }
    text
}

fn no_parts(set: &Set, part: &str) -> SetError {
    let before = set.path.iter().take_while(|known| *known != part);
    SetError::NoParts { path: shown(&set.path), part: shown(before) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents() -> Vec<Value> {
        [
            "metadata: {name: a}\nspec: {training: {steps: 9}, volumes: [{name: x}]}",
            "metadata: {name: b}\nspec: {training: {steps: 8}}",
        ]
        .map(|text| serde_yaml::from_str(text).unwrap())
        .to_vec()
    }

    fn after(sets: &[&str]) -> Result<String, String> {
        let mut documents = documents();
        let sets: Vec<Set> = sets.iter().map(|text| text.parse().unwrap()).collect();
        apply_all(&mut documents, &sets).map_err(|error| error.to_string())?;
        Ok(documents
            .iter()
            .map(|document| serde_json::to_string(&document["spec"]).unwrap())
            .collect::<Vec<_>>()
            .join(" "))
    }

    #[test]
    fn a_template_without_quotes_is_not_a_value() {
        let error = "spec.dataset.train.prompt={{ question }}".parse::<Set>().unwrap_err();
        assert!(error.to_string().contains("needs quotes"), "{error}");
        "spec.dataset.train.prompt=\"{{ question }}\"".parse::<Set>().unwrap();
    }

    #[test]
    fn a_value_is_set_in_all_jobs_or_in_the_named_one() {
        assert_eq!(
            after(&["spec.training.steps=3"]).unwrap(),
            r#"{"training":{"steps":3},"volumes":[{"name":"x"}]} {"training":{"steps":3}}"#
        );
        assert_eq!(
            after(&["b:spec.training.steps=3"]).unwrap(),
            r#"{"training":{"steps":9},"volumes":[{"name":"x"}]} {"training":{"steps":3}}"#
        );
    }

    #[test]
    fn values_are_typed_as_yaml_and_missing_parts_are_created() {
        let set = after(&[
            "b:spec.training={}",
            "b:spec.storage.s3={}",
            "b:spec.model.path=a=b:c",
            "a:spec.volumes[0].name=y",
            "a:spec.suspend=true",
            "a:spec.volumes[1].name=z",
            "b:spec.rewards[0].name=r",
        ]);
        let expected = concat!(
            r#"{"training":{"steps":9},"volumes":[{"name":"y"},{"name":"z"}],"suspend":true} "#,
            r#"{"training":{},"storage":{"s3":{}},"model":{"path":"a=b:c"},"#,
            r#""rewards":[{"name":"r"}]}"#
        );
        assert_eq!(set.unwrap(), expected);
    }

    #[test]
    fn null_removes_a_field_or_an_item() {
        assert_eq!(
            after(&["spec.training.steps=null", "a:spec.volumes[0]=null"]).unwrap(),
            r#"{"training":{},"volumes":[]} {"training":{}}"#
        );
        // Only one of the jobs has the field.
        assert_eq!(
            after(&["spec.volumes=null"]).unwrap(),
            r#"{"training":{"steps":9}} {"training":{"steps":8}}"#
        );
        for path in ["spec.volumes[1]", "spec.storage.s3", "spec.steps"] {
            let error = after(&[&format!("a:{path}=null")]).unwrap_err();
            assert_eq!(error, format!("`--set {path}=null`: no job has this field"));
        }
        assert!(after(&["spec.training.steps.x=null"]).is_err());
    }

    #[test]
    fn errors_name_the_path() {
        assert_eq!(
            after(&["c:spec.x=1"]).unwrap_err(),
            "`--set c:spec.x`: the file has no job `c`"
        );
        let rejected = after(&["spec.training.steps.x=1"]).unwrap_err();
        assert_eq!(
            rejected,
            "`--set spec.training.steps.x`: `spec.training.steps` cannot have this part: a mapping \
                has named fields, a list has items and may get the next one"
        );
        for path in ["spec.volumes[2].name", "spec.volumes.2.name", "spec.training[0]"] {
            assert!(after(&[&format!("a:{path}=y")]).is_err(), "{path}");
        }
        for text in ["steps", "=3", "spec..x=3", ":spec.x=1", "spec.x[]=1"] {
            assert!(matches!(text.parse::<Set>(), Err(SetError::Form(_))), "{text}");
        }
        assert!(matches!("spec.x=[".parse::<Set>(), Err(SetError::Value { .. })));
    }
}
