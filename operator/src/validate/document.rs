//! Text → RLJobs: several YAML documents, a `List`, or JSON. Every problem has its path and line.

use std::collections::HashSet;
use std::io::Read;

use kube::ResourceExt;
use rljob_crds::{RLJob, names};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{InvalidSpec, Policy, Problem, locate::line_of, misspelled, rules, schema, unknown};

/// The API version that this program reads.
const API_VERSION: &str = "rljob.dev/v1alpha1";

/// Maximum size of a job file in bytes; the API server accepts objects of 1.5 MiB.
const MAX_FILE: u64 = 16 << 20;

/// Reads the text of a job file.
///
/// # Errors
/// It cannot be read, or is too large.
pub fn job_text(file: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(MAX_FILE.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        let message = format!("the file is too large: more than {MAX_FILE} bytes");
        return Err(std::io::Error::other(message));
    }
    Ok(text)
}

/// Reads every RLJob of a file, in order. Objects of other API groups are skipped.
///
/// # Errors
/// [`InvalidSpec`] with every problem of every document: syntax, unknown fields, also of pod
/// templates, types, ranges and what [`super::validate`] checks; or that the file has no RLJob.
pub fn parse_jobs(text: &str) -> Result<Vec<RLJob>, InvalidSpec> {
    let mut jobs = Vec::new();
    let mut problems = Vec::new();
    for (index, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        match read_value(document, text) {
            // The rest of the file cannot be read after a syntax error.
            Err(problem) => {
                problems.push(problem);
                break;
            }
            Ok(value) => {
                let found = read_objects(value, &mut jobs);
                problems.extend(found.into_iter().map(|problem| Problem {
                    line: line_of(text, index, &problem.path),
                    ..problem
                }));
            }
        }
    }
    if problems.is_empty() && jobs.is_empty() {
        problems.push(Problem::new(
            "",
            format!("the file contains no object of apiVersion {API_VERSION} and kind RLJob"),
        ));
    }
    problems.extend(repeated(&jobs));
    problems.sort_by_key(|problem| problem.line);
    if problems.is_empty() { Ok(jobs) } else { Err(InvalidSpec { problems }) }
}

/// Jobs that have the namespace and name of an earlier one.
fn repeated(jobs: &[RLJob]) -> impl Iterator<Item = Problem> {
    let name = |job: &RLJob| {
        let namespace = job.namespace().unwrap_or_else(|| "default".to_owned());
        format!("{namespace}/{}", job.name_any())
    };
    let mut names = HashSet::new();
    let repeated = jobs.iter().map(name).filter(move |name| !names.insert(name.clone()));
    repeated.map(|name| {
        let message = format!("`{name}` is the name of an earlier job of the file");
        Problem::new("metadata.name", message)
    })
}

/// Reads a document: an RLJob, a list of objects, an object of another API group, or nothing.
fn read_objects(value: Value, jobs: &mut Vec<RLJob>) -> Vec<Problem> {
    if value.is_null() {
        return Vec::new();
    }
    let Some(items) = list_items(&value) else {
        if is_foreign(&value) {
            return Vec::new();
        }
        return read_job(value).map_or_else(
            |problems| problems,
            |job| {
                jobs.push(job);
                Vec::new()
            },
        );
    };
    let mut problems = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let found = read_objects(item.clone(), jobs).into_iter().map(|problem| {
            let dot = if problem.path.is_empty() { "" } else { "." };
            Problem { path: format!("items[{index}]{dot}{}", problem.path), ..problem }
        });
        problems.extend(found);
    }
    problems
}

/// The items of a `List` or an `RLJobList`.
fn list_items(value: &Value) -> Option<&Vec<Value>> {
    let kind = value.get("kind")?.as_str()?;
    value.get("items").filter(|_| kind == "List" || kind == "RLJobList")?.as_array()
}

fn read_value(document: serde_yaml::Deserializer<'_>, text: &str) -> Result<Value, Problem> {
    let problem = |error: serde_yaml::Error| {
        let (line, message) = (error.location().map(|at| at.line()), error.to_string());
        if let Some((path, number)) = beyond_64_bits(&message) {
            return Problem { line, ..Problem::new(path, format!("{number} is too large")) };
        }
        match line.and_then(|line| tab_near(text, line)) {
            Some(line) => Problem {
                line: Some(line),
                ..Problem::new("", "a tab indents this line; YAML allows spaces only")
            },
            None => Problem { line, ..Problem::new("", message) },
        }
    };
    // serde_yaml rejects duplicate keys; serde_json would drop them.
    let mut value = serde_yaml::Value::deserialize(document).map_err(problem)?;
    value.apply_merge().map_err(problem)?;
    if let Some(path) = non_finite(&value, "") {
        return Err(Problem::new(path, "must be a finite number"));
    }
    serde_json::to_value(value)
        .map_err(|error| Problem::new("", format!("the document is not JSON: {error}")))
}

/// Path and digits of a number that the parser rejects because it has more than 64 bits.
fn beyond_64_bits(message: &str) -> Option<(&str, &str)> {
    let (path, rest) = message.split_once("invalid type: integer `")?;
    let (number, rest) = rest.split_once('`')?;
    let is_wide = rest.starts_with(" as u128") || rest.starts_with(" as i128");
    is_wide.then(|| (path.trim_end_matches(": "), number))
}

/// The line or the one before it if a tab indents it; the parser may fail at the end of a line.
fn tab_near(text: &str, line: usize) -> Option<usize> {
    let is_tab = |line: &usize| {
        let text = line.checked_sub(1).and_then(|index| text.lines().nth(index));
        text.is_some_and(|text| text.trim_start_matches(' ').starts_with('\t'))
    };
    [line, line.saturating_sub(1)].into_iter().find(is_tab)
}

/// Path of the first number that JSON cannot express: not a number, or infinite.
fn non_finite(value: &serde_yaml::Value, path: &str) -> Option<String> {
    match value {
        serde_yaml::Value::Number(number) => {
            let is_finite = number.as_f64().is_none_or(f64::is_finite);
            (!is_finite).then(|| path.to_owned())
        }
        serde_yaml::Value::Sequence(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| non_finite(item, &format!("{path}[{index}]")))
        }
        serde_yaml::Value::Mapping(fields) => fields.iter().find_map(|(key, value)| {
            let dot = if path.is_empty() { "" } else { "." };
            non_finite(value, &format!("{path}{dot}{}", key.as_str().unwrap_or("?")))
        }),
        _ => None,
    }
}

fn is_foreign(value: &Value) -> bool {
    let group = value
        .get("apiVersion")
        .and_then(Value::as_str)
        .map(|version| version.split_once('/').map_or("", |(group, _)| group));
    group.is_some_and(|group| group != names::GROUP) && value.get("kind").is_some()
}

fn read_job(mut value: Value) -> Result<RLJob, Vec<Problem>> {
    let Value::Object(object) = &mut value else {
        return Err(vec![Problem::new(
            "",
            format!(
                "expected an object of apiVersion {API_VERSION} and kind RLJob, found {}",
                schema::describe(&value)
            ),
        )]);
    };
    let mut problems = Vec::new();
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", "RLJob")] {
        match object.get(field) {
            Some(found) if found == expected => {}
            Some(found) => problems.push(Problem::new(
                field,
                format!("expected {expected}, found {}", schema::describe(found)),
            )),
            None => problems.push(Problem::new(field, format!("is missing; expected {expected}"))),
        }
    }
    problems.extend(schema::check_and_repair(object));
    object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let mut found = match serde_path_to_error::deserialize::<_, RLJob>(&value) {
        Ok(job) => {
            let mut found = rules::problems(&job, Policy::LOCAL);
            found.extend(unknown::unknown_fields(&job.spec));
            if found.is_empty() && problems.is_empty() {
                return Ok(job);
            }
            found
        }
        Err(error) => vec![Problem::new(error.path().to_string(), error.inner().to_string())],
    };
    // Rules also see replaced values; their problems are dropped.
    found.retain(|problem| !problems.iter().any(|known| contains(&known.path, &problem.path)));
    problems.extend(found);
    misspelled::merge(&mut problems);
    Err(problems)
}

/// Whether `other` is the path or lies below it.
fn contains(path: &str, other: &str) -> bool {
    other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests;
