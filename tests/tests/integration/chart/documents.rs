//! Documents of the chart: its README has the values of values.yaml with their comments, the schema
//! has the same keys, and its versions are the workspace's. `UPDATE=1 cargo test -p rljob-tests
//! --test integration chart` writes the README's table.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use rljob_tests::Helm;
use serde_json::{Value, json};

/// Longest default value in the table, in characters.
const MAX_DEFAULT: usize = 60;
const START: &str = "<!-- values -->\n";
const END: &str = "<!-- end of values -->\n";

/// A documented value.
struct Row {
    /// Keys, joined by dots.
    path: String,
    default: Value,
    text: String,
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(Helm::chart()).join(name)
}

fn yaml(name: &str) -> Value {
    serde_yaml::from_str(&fs::read_to_string(file(name)).unwrap()).unwrap()
}

/// The keys of values.yaml with a comment in helm-docs' format: `# -- text`, continued by `# text`.
fn rows() -> Vec<Row> {
    let text = fs::read_to_string(file("values.yaml")).unwrap();
    let defaults = yaml("values.yaml");
    let (mut rows, mut path, mut comment) = (Vec::new(), Vec::<&str>::new(), Vec::<&str>::new());
    for line in text.lines() {
        let code = line.trim_start();
        if let Some(start) = code.strip_prefix("# -- ") {
            comment = vec![start];
        } else if let Some(more) = code.strip_prefix("# ").filter(|_| !comment.is_empty()) {
            comment.push(more);
        } else if let Some((key, _)) = code.split_once(':').filter(|(key, _)| !key.contains(' ')) {
            path.truncate((line.len() - code.len()) / 2);
            path.push(key);
            if !comment.is_empty() {
                rows.push(Row {
                    path: path.join("."),
                    default: defaults.pointer(&format!("/{}", path.join("/"))).unwrap().clone(),
                    text: comment.join(" "),
                });
            }
            comment.clear();
        }
    }
    rows
}

fn table(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let kind = match row.default {
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "list",
            _ => "object",
        };
        let mut default = format!("`{}`", row.default);
        if default.len() > MAX_DEFAULT {
            "see values.yaml".clone_into(&mut default);
        }
        format!("| `{}` | {kind} | {default} | {} |\n", row.path, row.text)
    };
    let head = "| Key | Type | Default | Description |\n|---|---|---|---|\n";
    head.to_owned() + &rows.iter().map(line).collect::<String>()
}

#[test]
fn the_readme_has_every_value_with_its_comment() {
    let text = fs::read_to_string(file("README.md")).unwrap();
    let (before, rest) = text.split_once(START).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let expected = format!("{before}{START}\n{}\n{END}{after}", table(&rows()));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(file("README.md"), &expected).unwrap();
    }
    let committed = fs::read_to_string(file("README.md")).unwrap();
    assert_eq!(committed, expected, "run this test with UPDATE=1 and review the difference");
}

/// Keys of a schema; the parts of a documented key are not listed.
fn keys(node: &Value, path: &str, root: &Value, documented: &BTreeSet<String>) -> Vec<String> {
    let reference = node["$ref"].as_str().and_then(|text| root.pointer(text.strip_prefix('#')?));
    let properties = reference.unwrap_or(node)["properties"].as_object();
    match properties.filter(|_| !documented.contains(path)) {
        None => vec![path.to_owned()],
        Some(properties) => properties
            .iter()
            .filter(|(key, _)| *key != "global")
            .flat_map(|(key, child)| {
                let dot = if path.is_empty() { "" } else { "." };
                keys(child, &format!("{path}{dot}{key}"), root, documented)
            })
            .collect(),
    }
}

/// Objects of a schema that list properties but accept others.
fn open_objects(node: &Value) -> usize {
    let children = match node {
        Value::Object(fields) => fields.values().map(open_objects).sum(),
        Value::Array(items) => items.iter().map(open_objects).sum(),
        _ => 0,
    };
    let is_open = node["properties"].is_object()
        && node["type"] == "object"
        && node["additionalProperties"] != json!(false);
    children + usize::from(is_open)
}

#[test]
fn the_schema_has_the_documented_keys_and_no_others() {
    let text = fs::read_to_string(file("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    let documented: BTreeSet<String> = rows().into_iter().map(|row| row.path).collect();
    let known: BTreeSet<String> = keys(&schema, "", &schema, &documented).into_iter().collect();
    assert_eq!(known, documented);
    assert_eq!(open_objects(&schema), 0);
}

#[test]
fn chart_and_operator_have_the_version_of_the_workspace() {
    let chart = yaml("Chart.yaml");
    let version = json!(env!("CARGO_PKG_VERSION"));
    assert_eq!([&chart["version"], &chart["appVersion"]], [&version, &version]);
}
