//! Admission policy for the operator's own account: its writes are restricted to objects of RLJobs.
//!
//! RBAC cannot express this. Without it, an empty patch of any Secret returns its content, and a
//! Secret of type `kubernetes.io/service-account-token` is filled with a token of any account.

use serde_json::{Value, json};

/// The policy and its binding, both named `name`. `account` is the user name of the operator;
/// `key` is the namespace and name of the Secret with the token key, which it may create.
pub fn manifests(name: &str, account: &str, key: (&str, &str)) -> [Value; 2] {
    let metadata = json!({ "name": name, "labels": { "app.kubernetes.io/name": name } });
    let rule = |group: &str, resources: &[&str], operations: &[&str]| {
        json!({
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": operations,
            "resources": resources,
        })
    };
    let writes = ["CREATE", "UPDATE", "DELETE"];
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [
                rule("", &["secrets", "configmaps", "services"], &writes),
                rule("apps", &["statefulsets"], &writes),
                rule("networking.k8s.io", &["networkpolicies"], &writes),
                rule("policy", &["poddisruptionbudgets"], &writes),
                rule("", &["pods", "pods/status"], &["UPDATE", "DELETE"]),
            ] },
            "matchConditions": [{
                "name": "operator",
                "expression": format!("request.userInfo.username == '{account}'"),
            }],
            "variables": [
                { "name": "isKey", "expression": is_key(key) },
                { "name": "wasOwned", "expression": is_owned("oldObject") },
                { "name": "isOwned", "expression": is_owned("object") },
                {
                    "name": "isJobPod",
                    "expression": "oldObject != null && has(oldObject.metadata.labels) \
                        && 'rljob.dev/job' in oldObject.metadata.labels",
                },
            ],
            "validations": validations(),
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    [policy, binding]
}

/// The rules, with messages for the operator's log.
fn validations() -> Value {
    let is_pod = "request.resource.resource == 'pods'";
    json!([
        {
            "expression": format!("{is_pod} || variables.isKey || variables.wasOwned"),
            "message": "the rljob operator changes only objects that an RLJob controls",
        },
        {
            "expression": format!("{is_pod} || variables.isKey || variables.isOwned"),
            "message": "the rljob operator creates only objects that an RLJob controls",
        },
        {
            "expression": format!("!({is_pod}) || variables.isJobPod"),
            "message": "the rljob operator changes only pods with the label rljob.dev/job",
        },
        {
            "expression": "request.resource.resource != 'secrets' || object == null \
                || !has(object.type) || object.type == 'Opaque'",
            "message": "the rljob operator creates only Secrets of type Opaque",
        },
    ])
}

/// Whether the request creates the Secret with the token key.
fn is_key((namespace, name): (&str, &str)) -> String {
    format!(
        "request.resource.resource == 'secrets' && request.operation == 'CREATE' \
         && request.namespace == '{namespace}' && object.metadata.name == '{name}'"
    )
}

/// Whether an RLJob controls the object, or the request has no such object.
fn is_owned(object: &str) -> String {
    format!(
        "{object} == null || has({object}.metadata.ownerReferences) \
         && {object}.metadata.ownerReferences.exists(owner, owner.kind == 'RLJob' \
         && owner.apiVersion.startsWith('rljob.dev/') && has(owner.controller) && owner.controller)"
    )
}
