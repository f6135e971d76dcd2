//! Permissions of the operator's roles, and the requests that they allow.

use rljob_tests::{Api, AuditedRequest};
use serde_json::{Value, json};

use super::super::operator::ACCOUNT;

/// A role of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Role<'a> {
    /// `ClusterRole` or `Role`.
    pub(super) kind: &'a str,
    /// Any namespace for a ClusterRole.
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Role<'_> {
    /// Whether this is the role in the operator's namespace, for its token key and its Lease.
    pub(super) fn is_of_operator(&self) -> bool {
        (self.kind, self.name) == ("Role", "rljob-operator")
    }

    pub(super) fn rules(&self, api: &Api) -> Value {
        api.get(&self.path()).unwrap()["rules"].take()
    }

    pub(super) fn set_rules(&self, api: &Api, rules: &Value) {
        api.patch(&self.path(), &json!({ "rules": rules })).unwrap();
    }

    fn path(&self) -> String {
        let Self { kind, namespace, name } = self;
        let resource = match *kind {
            "ClusterRole" => format!("clusterroles/{name}"),
            _ => format!("namespaces/{namespace}/roles/{name}"),
        };
        format!("/apis/rbac.authorization.k8s.io/v1/{resource}")
    }
}

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Permission<'a> {
    pub(super) role: Role<'a>,
    pub(super) group: String,
    /// With a subresource, for example `pods/status`.
    pub(super) resource: String,
    pub(super) verb: String,
    /// Restricts the permission to these names unless empty.
    names: Vec<String>,
}

impl Permission<'_> {
    /// Whether this permission allowed a request, or would have allowed a denied one.
    pub(super) fn covers(&self, request: &AuditedRequest) -> bool {
        let same = (&self.group, &self.resource) == (&request.group, &request.resource);
        // An apply that creates the object is authorized for both verbs.
        let verb = self.verb == request.verb
            || (self.verb == "create" && request.verb == "patch" && request.code == 201);
        let named = self.names.is_empty() || self.names.contains(&request.name);
        let role = format!("of {} {:?}", self.role.kind, self.role.name);
        same && verb && named && (request.code == 403 || request.reason.contains(&role))
    }

    /// Whether the operator's account has the permission.
    pub(super) fn is_effective(&self, api: &Api) -> bool {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        let attributes = json!({
            "group": self.group, "resource": resource, "subresource": subresource,
            "verb": self.verb, "namespace": self.role.namespace,
            "name": self.names.first().map_or("", String::as_str),
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        api.create(path, &review).unwrap()["status"]["allowed"] == true
    }

    /// The API server's message about a request without this permission.
    pub(super) fn denial(&self) -> String {
        if self.resource == "rljobs/finalizers" {
            // The admission plugin checks it for owner references.
            return "cannot set blockOwnerDeletion if an ownerReference refers to a resource you \
                can't set finalizers on"
                .to_owned();
        }
        let Self { group, resource, verb, .. } = self;
        format!("cannot {verb} resource \"{resource}\" in API group \"{group}\"")
    }

    fn is_of(&self, rule: &Value) -> bool {
        rule["apiGroups"] == json!([self.group])
            && rule["resources"] == json!([self.resource])
            && texts(&rule["resourceNames"]) == self.names
    }
}

/// The rules without some of the role's permissions.
pub(super) fn without(mut rules: Value, removed: &[&Permission]) -> Value {
    let all = rules.as_array_mut().unwrap();
    for rule in all.iter_mut() {
        let of_rule: Vec<_> = removed.iter().filter(|removed| removed.is_of(rule)).collect();
        let verbs = rule["verbs"].as_array_mut().unwrap();
        verbs.retain(|verb| !of_rule.iter().any(|removed| *verb == removed.verb));
    }
    all.retain(|rule| rule["verbs"] != json!([]));
    rules
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
pub(super) fn granted<'a>(api: &Api, role: Role<'a>) -> Vec<Permission<'a>> {
    let mut permissions = Vec::new();
    for rule in role.rules(api).as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let permission = |verb: &String| Permission {
                    role,
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                    names: texts(&rule["resourceNames"]),
                };
                permissions.extend(texts(&rule["verbs"]).iter().map(permission));
            }
        }
    }
    permissions
}
