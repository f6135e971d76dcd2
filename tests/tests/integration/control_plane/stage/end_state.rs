//! Everything of a job at the end of a test, to be compared with another's.

use std::collections::BTreeMap;

use rljob_tests::process::wait_until;
use serde_json::{Map, Value, json};

use super::super::operator::LIMIT;
use super::{Stage, listed};

/// What is made of a job, by group and resource.
const KINDS: [(&str, &str); 7] = [
    ("apis/apps/v1", "statefulsets"),
    ("api/v1", "services"),
    ("api/v1", "configmaps"),
    ("api/v1", "secrets"),
    ("apis/networking.k8s.io/v1", "networkpolicies"),
    ("apis/policy/v1", "poddisruptionbudgets"),
    ("api/v1", "pods"),
];

impl Stage {
    /// All that is made of the job.
    pub(in crate::control_plane) fn children(&self) -> Vec<Value> {
        KINDS.iter().flat_map(|(group, resource)| self.list(group, resource)).collect()
    }

    /// Everything of the job, without what differs between two runs that are equal.
    pub(in crate::control_plane) fn end_state(&self) -> BTreeMap<String, Value> {
        let job = self.job();
        let (uid, namespace) =
            (job["metadata"]["uid"].as_str().unwrap(), self.namespace.name.as_str());
        let mut state = BTreeMap::new();
        for (group, resource) in [("apis/rljob.dev/v1alpha1", "rljobs")].into_iter().chain(KINDS) {
            for mut object in self.list(group, resource) {
                normalise(&mut object, resource);
                let text = object
                    .to_string()
                    .replace(uid, "UID")
                    .replace(uid.split('-').next().unwrap(), "U")
                    .replace(namespace, "NAMESPACE");
                let object: Value = serde_json::from_str(&text).unwrap();
                state.insert(
                    format!("{resource}/{}", object["metadata"]["name"].as_str().unwrap()),
                    object,
                );
            }
        }
        state
    }

    /// Waits until everything is as in this end state.
    pub(in crate::control_plane) fn wait_to_be(&self, state: &BTreeMap<String, Value>, what: &str) {
        let is = || Ok(differences(&self.end_state(), state).is_empty());
        wait_until("the end state", LIMIT, is).unwrap_or_else(|error| {
            panic!(
                "{what}: {error:#}\n{:#?}\n{}\n{}",
                differences(&self.end_state(), state),
                listed(&self.writes()),
                self.words()
            )
        });
    }
}

/// Where two end states differ, a line each.
pub(in crate::control_plane) fn differences(
    seen: &BTreeMap<String, Value>,
    expected: &BTreeMap<String, Value>,
) -> Vec<String> {
    let mut found = Vec::new();
    for name in seen.keys().chain(expected.keys().filter(|name| !seen.contains_key(*name))) {
        let of = |state: &BTreeMap<String, Value>| state.get(name).cloned().unwrap_or_default();
        compare(name, &of(seen), &of(expected), &mut found);
    }
    found
}

fn compare(path: &str, seen: &Value, expected: &Value, found: &mut Vec<String>) {
    match (seen, expected) {
        (Value::Object(seen), Value::Object(expected)) => {
            for key in seen.keys().chain(expected.keys().filter(|key| !seen.contains_key(*key))) {
                let of = |fields: &Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
                compare(&format!("{path}.{key}"), &of(seen), &of(expected), found);
            }
        }
        (Value::Array(seen), Value::Array(expected)) if seen.len() == expected.len() => {
            for (index, (seen, expected)) in seen.iter().zip(expected).enumerate() {
                compare(&format!("{path}[{index}]"), seen, expected, found);
            }
        }
        _ if seen == expected => {}
        _ => found.push(format!("{path}: {seen} is not {expected}")),
    }
}

/// Removes what depends on time and identity, and what other programs keep in a status.
fn normalise(object: &mut Value, resource: &str) {
    let keep_status = resource == "rljobs";
    let fields = object.as_object_mut().unwrap();
    if !keep_status {
        fields.remove("status");
    }
    if resource == "secrets" {
        let keys: Map<String, Value> = fields["data"]
            .as_object()
            .unwrap()
            .keys()
            .map(|key| (key.clone(), json!("token")))
            .collect();
        fields["data"] = Value::Object(keys);
    }
    if let Some(annotations) = fields["metadata"]["annotations"].as_object_mut() {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration"); // what a person said first, not what is
    }
    if resource == "pods" {
        fields.remove("spec"); // it is that of the StatefulSet, with its own uid in names
    }
    scrub(object);
}

/// Identities and versions go; of a time it stays that it is set.
fn scrub(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // Incidents tell what happened on the way.
            for name in [
                "incidents",
                "rljob.dev/sha256",
                "uid",
                "resourceVersion",
                "generation",
                "observedGeneration",
                "managedFields",
                "creationTimestamp",
                "controller-revision-hash",
                "coordinatorUid",
            ] {
                fields.remove(name);
            }
            fields.values_mut().for_each(scrub);
        }
        // 2026-11-21T23:17:20Z
        Value::String(text)
            if text.len() == 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T' =>
        {
            *value = json!("a time")
        }
        Value::Array(items) => items.iter_mut().for_each(scrub),
        _ => {}
    }
}
