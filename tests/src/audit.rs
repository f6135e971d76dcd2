//! What a user asked of the API server, and by which right it was answered: the API server's own
//! audit log.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

const POLICY: &str = "audit-policy.json";
const LOG: &str = "logs/audit.log";

/// A request, as a rule of RBAC would name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// API group; empty for the core.
    pub group: String,
    /// Plural, with its subresource: `pods/status`.
    pub resource: String,
    /// `get`, `list`, `watch`, `create`, …
    pub verb: String,
    /// Empty for lists over all namespaces and for what is in none.
    pub namespace: String,
    /// Empty for lists.
    pub name: String,
    /// The answer's HTTP status.
    pub code: u64,
    /// The authorizer's words: which binding of which role allows it; empty where none does.
    pub reason: String,
}

/// Writes the policy into the folder of a cluster's state; gives the API server's arguments.
pub(crate) fn arguments(state: &Path, user: &str) -> Result<[String; 2]> {
    let rules = json!([{"level": "Metadata", "users": [user]}, {"level": "None"}]);
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules});
    fs::write(state.join(POLICY), policy.to_string()).context("cannot write the audit policy")?;
    Ok([
        format!("--audit-policy-file={}", state.join(POLICY).display()),
        format!("--audit-log-path={}", state.join(LOG).display()),
    ])
}

/// Everything in the log so far, each request once for every stage that it went through.
pub(crate) fn read(state: &Path) -> Result<Vec<Asked>> {
    let text = fs::read_to_string(state.join(LOG)).context("the API server keeps no audit log")?;
    // The last line may be on its way.
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .map(|event: Value| asked(&event))
        .collect())
}

fn asked(event: &Value) -> Asked {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let (resource, subresource) = (text(&object["resource"]), text(&object["subresource"]));
    Asked {
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
