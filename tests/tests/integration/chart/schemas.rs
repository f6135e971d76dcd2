//! The chart's objects beside the schemas of Kubernetes, with kubeconform: without a cluster, as a
//! pipeline checks what `helm template` prints.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use rljob_tests::files::{kubeconform, prometheus_operator};
use rljob_tests::process::run_with_input;
use serde_json::{Map, Value, json};

use super::template;

/// Kinds of other projects, with the files that define them.
const CUSTOM: [&str; 2] = ["podmonitors.yaml", "prometheusrules.yaml"];

/// Writes a schema for these kinds of Kubernetes and for the CRDs, named as kubeconform looks it
/// up.
pub(crate) fn write_schemas(folder: &Path, needed: &BTreeSet<String>) {
    let text = fs::read_to_string(kubeconform("swagger.json").unwrap()).unwrap();
    let mut definitions = serde_json::from_str::<Value>(&text).unwrap()["definitions"].take();
    let kinds: Vec<(String, Value)> = definitions
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(name, definition)| {
            let kinds = definition["x-kubernetes-group-version-kind"].as_array();
            kinds.into_iter().flatten().map(|kind| (name.clone(), kind.clone()))
        })
        .collect();
    close(&mut definitions);
    for (name, kind) in kinds {
        let text = |field: &str| kind[field].as_str().unwrap();
        if needed.contains(text("kind")) {
            let reference = format!("#/definitions/{name}");
            let schema = json!({"$ref": reference, "definitions": definitions});
            write(folder, text("kind"), text("group"), text("version"), &schema);
        }
    }
    for file in CUSTOM {
        let crd = fs::read_to_string(prometheus_operator(file).unwrap()).unwrap();
        let mut crd: Value = serde_yaml::from_str(&crd).unwrap();
        let version = &mut crd["spec"]["versions"][0];
        let mut schema = version["schema"]["openAPIV3Schema"].take();
        close(&mut schema);
        schema["properties"]["metadata"] = json!({"type": "object"});
        let version = version["name"].as_str().unwrap().to_owned();
        let text = |pointer: &str| crd.pointer(pointer).unwrap().as_str().unwrap();
        write(folder, text("/spec/names/kind"), text("/spec/group"), &version, &schema);
    }
}

fn write(folder: &Path, kind: &str, group: &str, version: &str, schema: &Value) {
    let first = group.split('.').next().filter(|first| !first.is_empty());
    let group = first.map(|first| format!("{first}-")).unwrap_or_default();
    let name = format!("{}-{group}{version}.json", kind.to_lowercase());
    fs::write(folder.join(name), schema.to_string()).unwrap();
}

/// Rejects fields that a schema does not list, and admits numbers as quantities and ports.
fn close(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.get("description").is_some_and(Value::is_string) {
                close_one(fields);
            }
        }
        _ => {}
    }
}

fn close_one(fields: &mut Map<String, Value>) {
    let text = fields.remove("description").unwrap_or_default();
    let is_quantity = text.as_str().unwrap_or_default().starts_with("Quantity is");
    let is_either = fields.get("format").is_some_and(|format| *format == "int-or-string");
    if is_quantity || is_either {
        fields.insert("type".to_owned(), json!(["string", "number"]));
    }
    if fields.contains_key("properties") && !fields.contains_key("additionalProperties") {
        fields.insert("additionalProperties".to_owned(), json!(false));
    }
}

/// kubeconform's answer about a manifest: its summary, or the errors.
fn check(schemas: &Path, manifest: &str) -> Result<Value, String> {
    let location = format!("{}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json", schemas.display());
    let mut command = Command::new(kubeconform("kubeconform").unwrap());
    command.args(["-strict", "-summary", "-output=json", "-schema-location"]).arg(location);
    let answer = run_with_input(&mut command, manifest).map_err(|error| format!("{error:#}"))?;
    Ok(serde_json::from_str::<Value>(&answer).unwrap()["summary"].take())
}

#[test]
fn kubeconform_accepts_what_the_chart_renders() {
    let all = json!({
        "podMonitor": {"enabled": true, "jobs": true},
        "prometheusRule": {"enabled": true, "for": {"RLJobRestartLoop": "5m"}},
        "networkPolicy": {"apiServerCIDRs": ["10.96.0.1/32"]},
        "dashboards": {"enabled": true},
        "kueue": {"enabled": true, "requireQueue": {"kueue-managed": "true"}},
        "gangSchedulers": ["native", "coscheduling", "volcano"],
        "jobs": {"metrics": false, "scrapers": {"namespaceSelector": {"team": "monitoring"}}},
        "priorityClassName": "system-cluster-critical",
    });
    let releases = [json!({}), all, json!({"jobs": {"namespace": "team-a"}})];
    let objects = releases.iter().flat_map(super::render);
    let kinds = objects.map(|object| object["kind"].as_str().unwrap().to_owned()).collect();
    let schemas = tempfile::tempdir().unwrap();
    write_schemas(schemas.path(), &kinds);
    for values in releases {
        let manifest = template(&values).unwrap();
        let objects = super::render(&values).len();
        let valid = json!({"valid": objects, "invalid": 0, "errors": 0, "skipped": 0});
        assert_eq!(check(schemas.path(), &manifest), Ok(valid), "{values}");
    }
    let manifest = template(&json!({})).unwrap();
    let wrong = manifest.replace("      serviceAccountName:", "      serviceAccountname:");
    assert_ne!(wrong, manifest);
    let error = check(schemas.path(), &wrong).unwrap_err();
    assert!(error.contains("serviceAccountname"), "{error}");
}
