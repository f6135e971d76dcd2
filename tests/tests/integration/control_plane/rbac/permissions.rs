//! Permissions of the operator's roles, and the requests that they allow.

use rljob_tests::{AuditedRequest, Cluster};
use serde_json::Value;

/// A role of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Role<'a> {
    /// `ClusterRole` or `Role`.
    pub(in super::super) kind: &'a str,
    /// Any namespace for a ClusterRole.
    pub(in super::super) namespace: &'a str,
    pub(in super::super) name: &'a str,
}

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Permission<'a> {
    pub(in super::super) role: Role<'a>,
    pub(in super::super) group: String,
    pub(in super::super) resource: String,
    pub(in super::super) verb: String,
    /// Restricts the permission to these names unless empty.
    names: Vec<String>,
}

impl<'a> Permission<'a> {
    pub(in super::super) fn new(role: Role<'a>, group: &str, resource: &str, verb: &str) -> Self {
        Self {
            role,
            group: group.to_owned(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            names: Vec::new(),
        }
    }

    /// Whether this permission allowed a request.
    pub(in super::super) fn allows(&self, request: &AuditedRequest) -> bool {
        let same = (&self.group, &self.resource) == (&request.group, &request.resource);
        // An apply that creates the object is authorized for both verbs.
        let verb = self.verb == request.verb
            || (self.verb == "create" && request.verb == "patch" && request.code == 201);
        let named = self.names.is_empty() || self.names.contains(&request.name);
        let role = format!("of {} {:?}", self.role.kind, self.role.name);
        same && verb && named && request.reason.contains(&role)
    }
}

fn texts(values: &Value) -> Vec<String> {
    values
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|value| value.as_str().map(ToOwned::to_owned))
        .collect()
}

/// All permissions of a role.
pub(in super::super) fn granted<'a>(cluster: &Cluster, role: Role<'a>) -> Vec<Permission<'a>> {
    let object = cluster
        .kubectl()
        .in_namespace(role.namespace)
        .get(&[&format!("{}/{}", role.kind, role.name)])
        .unwrap();
    let mut permissions = Vec::new();
    for rule in object["rules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let permission = |verb: &String| Permission {
                    names: texts(&rule["resourceNames"]),
                    ..Permission::new(role, &group, &resource, verb)
                };
                permissions.extend(texts(&rule["verbs"]).iter().map(permission));
            }
        }
    }
    permissions
}
