//! Documents of a job file with `--set` applied. Pure.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_yaml::Value;

use super::set::{Set, SetError, apply_all};
use crate::validate::{Problem, parse_jobs};

/// A document: the name in its metadata, and its text.
pub type Document = (Option<String>, String);

/// Error of an edit.
pub enum EditError {
    Yaml(serde_yaml::Error),
    Set(SetError),
}

/// Names and texts of the documents with `sets` applied.
pub fn edit(text: &str, sets: &[Set]) -> Result<Vec<Document>, EditError> {
    let documents = serde_yaml::Deserializer::from_str(text).map(|document| {
        let mut value = Value::deserialize(document)?;
        value.apply_merge()?;
        Ok(value)
    });
    let mut documents = documents.collect::<Result<Vec<Value>, _>>().map_err(EditError::Yaml)?;
    documents.retain(|document| !document.is_null());
    apply_all(&mut documents, sets).map_err(EditError::Set)?;
    let named = |document: &Value| {
        let name = document.get("metadata").and_then(|metadata| metadata.get("name"));
        let name = name.and_then(Value::as_str).map(str::to_owned);
        Ok((name, serde_yaml::to_string(document)?))
    };
    documents.iter().map(named).collect::<Result<_, _>>().map_err(EditError::Yaml)
}

/// Problems of the documents, each once if all have it, else with the names of those that do.
pub fn named_problems(documents: &[Document]) -> Vec<String> {
    let of_document = |(name, text): &Document| {
        let problems = parse_jobs(text).err().into_iter().flat_map(|error| error.problems);
        // Without a path: the document is no RLJob.
        let problems = problems.filter(|problem| !problem.path.is_empty());
        let problems = problems.map(|problem| Problem { line: None, ..problem });
        let name = name.clone().unwrap_or_default();
        problems.map(|problem| (problem.to_string(), name.clone())).collect::<Vec<_>>()
    };
    let found: Vec<(String, String)> = documents.iter().flat_map(of_document).collect();
    let owners = |problem: &str| found.iter().filter(|(other, _)| other == problem).count();
    let line = |(problem, name): &(String, String)| {
        if owners(problem) == documents.len() {
            problem.clone()
        } else {
            format!("{name}: {problem}")
        }
    };
    once(found.iter().map(line).collect())
}

/// The lines without repetitions, in order.
pub fn once(mut lines: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    lines
}
