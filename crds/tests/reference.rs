//! `docs/reference/rljob.md` is generated from the CustomResourceDefinition: `UPDATE=1 cargo test
//! -p rljob-crds`.

use std::collections::HashMap;
use std::path::PathBuf;

use rljob_crds::crd;
use serde_json::Value;

const HEAD: &str = "\
# RLJob

All fields of `spec` and `status`, generated from the CustomResourceDefinition
(`crds/rljob.yaml`). `kubectl explain rljob.spec` prints the same texts. A required field has no
default. *Rules* are checked by the API server and by `rljob validate`, with these messages. Fields
of Kubernetes' own types (`resources`, `template`) are those of core v1 and are not listed.

";

/// Fields whose value is of a type of core v1.
const CORE_TYPES: [&str; 2] = ["resources", "template"];

/// Sections of the page in their order, and the path of the section with each schema.
#[derive(Default)]
struct Page {
    sections: Vec<String>,
    paths: HashMap<String, String>,
}

/// Text in a cell: one line, without characters that end a cell or start an HTML tag.
fn cell(text: &str) -> String {
    let mut in_code = false;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let escaped = line.chars().map(|letter| {
        in_code ^= letter == '`';
        if letter == '<' && !in_code { "&lt;".to_owned() } else { letter.to_string() }
    });
    escaped.collect()
}

/// The identifier that GitHub and mdBook give to a heading.
fn anchor(path: &str) -> String {
    path.to_lowercase().chars().filter(|letter| letter.is_alphanumeric()).collect()
}

fn number(value: &Value) -> Option<String> {
    let number = value.as_f64()?;
    Some(number.to_string())
}

/// Bounds of a schema: minimum and maximum of numbers, lengths and numbers of items.
fn range(schema: &Value) -> String {
    let of = |lower: &str, upper: &str, unit: &str| match (
        number(&schema[lower]),
        number(&schema[upper]),
    ) {
        (Some(lower), Some(upper)) => format!(", {lower} to {upper}{unit}"),
        (Some(lower), None) => format!(", at least {lower}{unit}"),
        (None, Some(upper)) => format!(", at most {upper}{unit}"),
        (None, None) => String::new(),
    };
    of("minimum", "maximum", "")
        + &of("minLength", "maxLength", " characters")
        + &of("minItems", "maxItems", " items")
        + &of("minProperties", "maxProperties", " entries")
}

/// Type of a value with its range; objects link to their section.
fn type_of(schema: &Value, section: Option<&str>) -> String {
    let kind = match schema["type"].as_str() {
        Some("array") => {
            let item = type_of(&schema["items"], section);
            return format!("list of {item}{}", range(schema));
        }
        Some("object") => match (section, schema["additionalProperties"].is_object()) {
            (Some(path), _) => format!("[object](#{})", anchor(path)),
            (None, true) => format!("map of {}", type_of(&schema["additionalProperties"], None)),
            (None, false) => "object".to_owned(),
        },
        Some(kind) => kind.to_owned(),
        None if schema["x-kubernetes-int-or-string"] == true => "quantity".to_owned(),
        None => "any".to_owned(),
    };
    let values: Vec<String> = schema["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|value| format!("`{value}`"))
        .collect();
    if values.is_empty() { kind + &range(schema) } else { values.join(", ") }
}

fn default_of(field: &Value, is_required: bool) -> String {
    match &field["default"] {
        _ if is_required => "required".to_owned(),
        Value::Null => "–".to_owned(),
        Value::Object(_) => "of its fields".to_owned(),
        default => format!("`{}`", cell(&default.to_string())),
    }
}

impl Page {
    /// Adds the section of an object, then those of the objects in it. Returns the path of the
    /// section that describes the schema: an equal one is not printed twice.
    fn section(&mut self, path: &str, schema: &Value) -> Option<String> {
        let properties = schema["properties"].as_object()?;
        let key = schema.to_string();
        if let Some(existing) = self.paths.get(&key) {
            return Some(existing.clone());
        }
        self.paths.insert(key, path.to_owned());
        let index = self.sections.len();
        self.sections.push(String::new());
        let rows: Vec<String> = properties
            .iter()
            .map(|(name, field)| {
                let is_required = schema["required"].as_array().is_some_and(|required| {
                    required.iter().any(|required| required.as_str() == Some(name))
                });
                self.row(path, name, field, is_required)
            })
            .collect();
        let description = cell(schema["description"].as_str().unwrap_or("Fields:"));
        self.sections[index] = format!(
            "\n## {path}\n\n{description}\n\n| Field | Type | Default | Meaning |\n\
             |---|---|---|---|\n{}\n{}",
            rows.join("\n"),
            rules(schema)
        );
        Some(path.to_owned())
    }

    /// The row of a field, after the sections of its value.
    fn row(&mut self, path: &str, name: &str, field: &Value, is_required: bool) -> String {
        let (inner, suffix) =
            if field["type"] == "array" { (&field["items"], "[]") } else { (field, "") };
        let section = (!CORE_TYPES.contains(&name))
            .then(|| self.section(&format!("{path}.{name}{suffix}"), inner))
            .flatten();
        let kind = type_of(field, section.as_deref());
        let default = default_of(field, is_required);
        // Values of an enum are the lines of a list.
        let text = field["description"].as_str().unwrap_or_default();
        let text = text.split("\n- ").map(cell).collect::<Vec<_>>().join("<br>");
        format!("| `{name}` | {kind} | {default} | {text} |")
    }
}

/// Messages of the CEL rules of an object.
fn rules(schema: &Value) -> String {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let messages = rules.filter_map(|rule| rule["message"].as_str().or(rule["rule"].as_str()));
    let lines: Vec<String> = messages.map(|message| format!("- {}", cell(message))).collect();
    if lines.is_empty() { String::new() } else { format!("\nRules:\n\n{}\n", lines.join("\n")) }
}

#[test]
fn the_reference_page_is_what_the_types_say() {
    let crd = serde_json::to_value(crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut page = Page::default();
    for root in ["spec", "status"] {
        page.section(root, &schema["properties"][root]).unwrap();
    }
    let text = format!("{HEAD}{}{}", rules(schema), page.sections.concat());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/rljob.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(committed, text, "run it with UPDATE=1 and review the difference");
}
