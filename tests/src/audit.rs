//! Requests of one user and the RBAC bindings that allowed them, read from the API server's audit
//! log.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

const POLICY: &str = "audit-policy.json";
const LOG: &str = "logs/audit.log";

/// A request, in the terms of an RBAC rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditedRequest {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural with subresource, for example `pods/status`.
    pub resource: String,
    /// `get`, `list`, `watch`, `create`, …
    pub verb: String,
    /// Empty for cluster-wide lists and cluster-scoped objects.
    pub namespace: String,
    /// Empty for lists.
    pub name: String,
    /// HTTP status of the response.
    pub code: u64,
    /// The authorizer's reason, which names the binding and role; empty if denied.
    pub reason: String,
}

/// Writes the audit policy into the cluster's state folder and returns the API server's arguments.
pub(crate) fn arguments(state: &Path, user: &str) -> Result<[String; 2]> {
    let rules = json!([{"level": "Metadata", "users": [user]}, {"level": "None"}]);
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": rules,
    });
    fs::write(state.join(POLICY), policy.to_string())
        .context("failed to write the audit policy")?;
    Ok([
        format!("--audit-policy-file={}", state.join(POLICY).display()),
        format!("--audit-log-path={}", state.join(LOG).display()),
    ])
}

/// All logged requests so far, one entry per request stage.
pub(crate) fn read(state: &Path) -> Result<Vec<AuditedRequest>> {
    let text = fs::read_to_string(state.join(LOG)).context("the API server has no audit log")?;
    // The last line may be incomplete.
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .map(|event: Value| request(&event))
        .collect())
}

fn request(event: &Value) -> AuditedRequest {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let (resource, subresource) = (text(&object["resource"]), text(&object["subresource"]));
    AuditedRequest {
        group: text(&object["apiGroup"]),
        resource: if subresource.is_empty() {
            resource
        } else {
            format!("{resource}/{subresource}")
        },
        verb: text(&event["verb"]),
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        reason: if event["annotations"]["authorization.k8s.io/decision"] == "allow" {
            text(&event["annotations"]["authorization.k8s.io/reason"])
        } else {
            String::new()
        },
    }
}
