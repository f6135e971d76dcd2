//! Every field of the spec on the API server: stored as written, rejected with its path, explained,
//! and frozen once the run has started unless `freeze::MUTABLE` lists it. The jobs of `fields.yaml`
//! set all fields; a field of the schema that none of them sets fails the first test.

use std::collections::BTreeSet;
use std::time::Duration;

use rljob_crds::freeze::MUTABLE;
use rljob_tests::process::wait_until;
use rljob_tests::{Api, Namespace};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{cluster, merge};

/// Time limit of the publication of the schema.
const LIMIT: Duration = Duration::from_secs(60);
const STARTED: &str = "the run has started: ";
/// Refuses the number of engines, which may change otherwise.
const NO_ENGINES: &str = "algorithm.rewardModel needs inference.replicas 0";

/// A field in one job.
struct Field {
    /// Path as in error messages: `spec.rewards[0].weight`.
    path: String,
    /// Path without `spec` and indices: `rewards.weight`.
    name: String,
    schema: Value,
    value: Value,
}

fn jobs() -> Vec<Value> {
    let jobs = serde_yaml::Deserializer::from_str(include_str!("fields.yaml"));
    let complete = |job| {
        let mut object = json!({"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob"});
        merge(&mut object, &Value::deserialize(job).unwrap());
        object
    };
    jobs.map(complete).collect()
}

fn schema() -> Value {
    let crd = serde_json::to_value(rljob_crds::crd()).unwrap();
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    crd.pointer(path).unwrap().clone()
}

/// Whether an object counts as one field: maps, free-form objects, and union members without
/// fields.
fn is_whole(schema: &Value) -> bool {
    let properties = schema["properties"].as_object().is_none_or(Map::is_empty);
    let is_free = schema["x-kubernetes-preserve-unknown-fields"] == true;
    let has_fields = schema["items"]["properties"].is_object();
    (properties || is_free) && !has_fields
}

/// Names of all fields of a schema.
fn names(schema: &Value, name: &str, found: &mut BTreeSet<String>) {
    if is_whole(schema) || is_template(name) {
        found.insert(name.to_owned());
        return;
    }
    let properties =
        schema["properties"].as_object().or_else(|| schema["items"]["properties"].as_object());
    for (key, property) in properties.unwrap() {
        names(property, &join(name, key), found);
    }
}

/// Partial pod templates are tested on nodes, part by part.
fn is_template(name: &str) -> bool {
    name.ends_with("template")
}

fn join(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

/// Fields that a job sets.
fn fields(schema: &Value, value: &Value, path: &str, name: &str, found: &mut Vec<Field>) {
    if is_whole(schema) || is_template(name) {
        let (path, name) = (path.to_owned(), name.to_owned());
        found.push(Field { path, name, schema: schema.clone(), value: value.clone() });
    } else if let Some(items) = value.as_array() {
        for (index, item) in items.iter().enumerate() {
            fields(&schema["items"], item, &format!("{path}[{index}]"), name, found);
        }
    } else {
        for (key, value) in value.as_object().unwrap() {
            let property = &schema["properties"][key];
            fields(property, value, &format!("{path}.{key}"), &join(name, key), found);
        }
    }
}

fn fields_of(job: &Value) -> Vec<Field> {
    let mut found = Vec::new();
    fields(&schema(), &job["spec"], "spec", "", &mut found);
    found
}

impl Field {
    /// JSON pointer (RFC 6901) to the field.
    fn pointer(&self) -> String {
        format!("/{}", self.path.replace(['.', '['], "/").replace(']', ""))
    }

    /// A job with another value of this field.
    fn replaced(&self, job: &Value, value: Value) -> Value {
        let mut job = job.clone();
        *job.pointer_mut(&self.pointer()).unwrap() = value;
        job
    }

    /// Values that the schema rejects.
    fn wrong_values(&self) -> Vec<Value> {
        let schema = &self.schema;
        let mut values = match schema["type"].as_str() {
            Some("integer" | "number" | "boolean" | "array") => vec![json!("text")],
            _ => vec![json!(1)],
        };
        values.extend(schema["minimum"].as_f64().map(|minimum| number(schema, minimum - 1.0)));
        // A number without a point is compared with the whole part of a minimum.
        let fraction = schema["minimum"].as_f64().filter(|minimum| minimum.fract() > 0.0);
        values.extend(fraction.map(|minimum| json!(minimum.floor() as i64)));
        values.extend(schema["maximum"].as_f64().map(|maximum| number(schema, maximum + 1.0)));
        values.extend(schema["enum"].as_array().map(|_| json!("Unknown")));
        values.extend(schema["minLength"].as_u64().map(|_| json!("")));
        values.extend(schema["maxLength"].as_u64().map(|max| json!("a".repeat(max as usize + 1))));
        values.extend(schema["pattern"].as_str().map(|_| json!("!!")));
        let longest = schema["maxItems"].as_u64().filter(|_| schema["type"] == "array");
        values.extend(longest.map(|max| json!(vec![self.value[0].clone(); max as usize + 1])));
        values
    }

    /// Other valid values; empty for union members without fields.
    fn other_values(&self) -> Vec<Value> {
        vec![match &self.value {
            Value::Bool(value) => json!(!value),
            Value::Number(value) if self.schema["type"] == "integer" => {
                json!(value.as_i64().unwrap() + 1)
            }
            Value::Number(value) => json!(value.as_f64().unwrap() * 0.75),
            Value::String(value) if self.schema["format"] == "date-time" => {
                json!(value.replace("2026", "2027"))
            }
            Value::String(value) => match self.schema["enum"].as_array() {
                Some(values) => values.iter().find(|other| *other != &self.value).unwrap().clone(),
                None => json!(format!("{value}1")),
            },
            Value::Array(values) => json!(values[..values.len() - 1]),
            Value::Object(values) if values.is_empty() => return Vec::new(),
            _ if self.name.contains("resources") => json!({"memory": "3Gi"}),
            _ => return free_form_changes(&self.value, &self.schema),
        }]
    }

    fn is_mutable(&self) -> bool {
        MUTABLE
            .iter()
            .any(|listed| self.name == *listed || self.name.starts_with(&format!("{listed}.")))
    }
}

/// Variants of a free-form object: one value changed, one field added, all fields removed. CEL
/// rules do not detect that one unspecified field replaces another.
fn free_form_changes(object: &Value, schema: &Value) -> Vec<Value> {
    let (mut changed, mut more) = (object.clone(), object.clone());
    let first = changed.as_object_mut().unwrap().values_mut().next().unwrap();
    *first = match &*first {
        Value::Object(_) => free_form_changes(first, schema).remove(0),
        Value::Bool(value) => json!(!*value),
        Value::Number(value) => json!(value.as_i64().unwrap() + 1),
        Value::Array(_) => json!([{"name": "other"}]),
        _ => json!("other"),
    };
    more["other"] = json!("value");
    let mut changes = vec![changed, json!({})];
    // The server drops unknown fields of other objects.
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        changes.push(more);
    }
    changes
}

fn number(schema: &Value, value: f64) -> Value {
    if schema["type"] == "integer" { json!(value as i64) } else { json!(value) }
}

struct Server {
    api: Api,
    namespace: Namespace,
}

impl Server {
    fn new(name: &str) -> Self {
        let namespace = Namespace::create(cluster(), name).unwrap();
        Self { api: cluster().api().unwrap(), namespace }
    }

    fn path(&self) -> String {
        format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs", self.namespace.name)
    }

    /// The object that the server would store.
    fn dry_run(&self, job: &Value) -> Result<Value, String> {
        let path = format!("{}?dryRun=All&fieldValidation=Strict", self.path());
        self.api.create(&path, job).map_err(|error| format!("{error:#}"))
    }
}

#[test]
fn every_field_is_stored_as_written() {
    let server = Server::new("stored");
    let mut set = BTreeSet::new();
    for job in jobs() {
        let stored = server.dry_run(&job).unwrap();
        for field in fields_of(&job) {
            assert_eq!(stored.pointer(&field.pointer()), Some(&field.value), "{}", field.path);
            set.insert(field.name);
        }
    }
    let mut all = BTreeSet::new();
    names(&schema(), "", &mut all);
    assert_eq!(set, all, "fields.yaml sets other fields than the schema has");
}

#[test]
fn every_field_rejects_wrong_values_and_names_its_path() {
    let server = Server::new("rejected");
    for job in jobs() {
        for field in fields_of(&job) {
            for value in field.wrong_values() {
                let answer = server.dry_run(&field.replaced(&job, value.clone()));
                let message = answer.expect_err(&format!("{} accepted {value}", field.path));
                assert!(message.contains(&field.path), "{} = {value}: {message}", field.path);
            }
            if let Ok(stored) = server.dry_run(&field.replaced(&job, Value::Null)) {
                let stored = stored.pointer(&field.pointer());
                assert_ne!(stored, Some(&Value::Null), "{} is stored as null", field.path);
            }
        }
    }
}

#[test]
fn every_field_is_frozen_in_a_started_run_unless_it_is_listed() {
    let (server, mut wrong) = (Server::new("frozen"), Vec::new());
    for job in jobs() {
        let path = format!("{}/{}", server.path(), job["metadata"]["name"].as_str().unwrap());
        server.api.create(&server.path(), &job).unwrap();
        let started = json!({"status": {"startTime": "2026-01-01T00:00:00Z"}});
        server.api.patch(&format!("{path}/status"), &started).unwrap();
        for field in fields_of(&job).into_iter().filter(|field| field.name != "managedBy") {
            for value in field.other_values() {
                let edit = json!([{"op": "replace", "path": field.pointer(), "value": value}]);
                let answer = server.api.edit(&format!("{path}?dryRun=All"), &edit);
                let is_right = match answer.map_err(|error| format!("{error:#}")) {
                    Ok(_) => field.is_mutable(),
                    Err(message) if field.is_mutable() => message.contains(NO_ENGINES),
                    Err(message) => message.contains(STARTED),
                };
                if !is_right {
                    wrong.push(format!("{} = {value}", field.path));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "mutability differs from freeze::MUTABLE");
}

#[test]
fn every_field_is_explained() {
    let api = cluster().api().unwrap();
    // The API server publishes a definition after it serves it.
    let path = "/openapi/v3/apis/rljob.dev/v1alpha1";
    wait_until("the published schema", LIMIT, || Ok(api.get(path).is_ok())).unwrap();
    let document = api.get(path).unwrap();
    let published = &document["components"]["schemas"]["dev.rljob.v1alpha1.RLJob"];
    let spec = &published["properties"]["spec"];
    let mut missing = Vec::new();
    undescribed(spec, "spec", &mut missing);
    assert_eq!(missing, Vec::<String>::new());
    // It lists the resource, which kubectl looks up, later still.
    let explain = |path| cluster().kubectl().run(&["explain", path]);
    let path = "rljob.spec.rewards.weight";
    wait_until("the resource in kubectl's list", LIMIT, || Ok(explain(path).is_ok())).unwrap();
    let explained = explain(path).unwrap();
    assert!(explained.contains("FIELD: weight <number>"), "{explained}");
    let path = "rljob.spec.algorithm.grpo.klEstimator";
    let explained = explain(path).unwrap();
    assert!(["- `K1`: x", "- `K3`: e"].iter().all(|line| explained.contains(line)), "{explained}");
}

/// The spec of a pod template has the fields of the core API, as its description says.
fn undescribed(schema: &Value, path: &str, missing: &mut Vec<String>) {
    if schema["description"].as_str().unwrap_or_default().is_empty() {
        missing.push(path.to_owned());
    }
    if path.ends_with(".template.spec") {
        return;
    }
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        undescribed(property, &format!("{path}.{key}"), missing);
    }
    for (key, property) in schema["items"]["properties"].as_object().into_iter().flatten() {
        undescribed(property, &format!("{path}[].{key}"), missing);
    }
}
