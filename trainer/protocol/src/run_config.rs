//! Run configurations of this and of other releases.
//!
//! ```text
//!  run.json ─▶ needs a later protocol? ── yes ─▶ rejected
//!                    │ no
//!                    ▼
//!             version 1? convert the spec ─▶ prune unknown fields ─▶ RunConfig
//! ```

use std::path::{Path, PathBuf};

use rljob_crds::RunConfig;
use rljob_crds::prune::prune_spec;
use serde_json::{Map, Value, json};

use crate::peer::{PROTOCOL_VERSION, ProtocolUnsupported};

/// Name of a version 1 job's only reward in the list of rewards.
const REWARD: &str = "reward";

/// An unreadable run configuration.
#[derive(Debug, thiserror::Error)]
pub enum RunConfigError {
    /// The file cannot be read.
    #[error("failed to read the run configuration `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It needs a later release.
    #[error("ProtocolUnsupported: {0}")]
    Unsupported(#[from] ProtocolUnsupported),
    /// It is not a run configuration.
    #[error("ProtocolUnsupported: the run configuration is not one of protocol version {protocol}")]
    Malformed {
        /// The version that it names.
        protocol: u64,
        /// The cause.
        source: serde_json::Error,
    },
}

/// Reads the run configuration in a file.
///
/// # Errors
/// The file cannot be read, or as [`parse`].
pub fn read(path: &Path) -> Result<(RunConfig, Vec<String>), RunConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| RunConfigError::Io { path: path.to_owned(), source })?;
    parse(&text)
}

/// Parses a run configuration. Returns it with the paths of the fields of its spec that this
/// release does not define, which are ignored.
///
/// # Errors
/// It needs a later protocol version, or is malformed.
pub fn parse(text: &str) -> Result<(RunConfig, Vec<String>), RunConfigError> {
    let malformed = |protocol| move |source| RunConfigError::Malformed { protocol, source };
    let mut config: Value = serde_json::from_str(text).map_err(malformed(1))?;
    let protocol = config.get("protocol").and_then(Value::as_u64).unwrap_or(1);
    ProtocolUnsupported::check(
        "this process",
        PROTOCOL_VERSION,
        u32::try_from(protocol).unwrap_or(u32::MAX),
        "the run configuration",
    )?;
    let mut ignored = Vec::new();
    if let Some(spec) = config.get_mut("spec") {
        if let (1, Some(fields)) = (protocol, spec.as_object_mut()) {
            convert_version_1(fields);
        }
        ignored = prune_spec(spec);
    }
    Ok((serde_json::from_value(config).map_err(malformed(protocol))?, ignored))
}

/// Moves the fields of release 0.1 whose place has changed.
fn convert_version_1(spec: &mut Map<String, Value>) {
    if let Some(name) = take(spec, "model", "exportOf") {
        set(spec, "model", "rljob", json!({ "name": name }));
    }
    if let Some(Value::Object(mut reward)) = spec.remove("reward") {
        reward.insert("name".to_owned(), REWARD.into());
        spec.insert("rewards".to_owned(), json!([reward]));
    }
    if let Some(Value::String(from)) = take(spec, "checkpoint", "restoreFrom") {
        // Checkpoint folders have a dot in their names, jobs do not.
        let source = if from.starts_with("s3://") {
            json!({ "s3": { "uri": from } })
        } else if from.contains(['/', '.']) {
            json!({ "path": from })
        } else {
            json!({ "rljob": { "name": from } })
        };
        spec.insert("restoreFrom".to_owned(), source);
    }
    let extra_args = take(spec, "inference", "extraArgs").unwrap_or_else(|| json!([]));
    match take(spec, "inference", "engine").as_ref().and_then(Value::as_str) {
        Some("SGLang") => {
            set(spec, "inference", "sglang", json!({ "extraArgs": extra_args }));
        }
        Some(_) => set(spec, "inference", "embedded", json!({})),
        None => {}
    }
    let resource = take(spec, "inference", "gpuResourceName");
    let gpus = take(spec, "inference", "gpusPerReplica").and_then(|gpus| gpus.as_u64());
    if let (Some(gpus @ 1..), Some(Value::String(resource))) = (gpus, resource) {
        // Other values of `resources` are left to the parser, which rejects them.
        let inference = spec.get_mut("inference").and_then(Value::as_object_mut);
        let resources =
            inference.map(|inference| inference.entry("resources").or_insert(json!({})));
        let resources = resources.and_then(Value::as_object_mut);
        let limits = resources.map(|resources| resources.entry("limits").or_insert(json!({})));
        if let Some(limits) = limits.and_then(Value::as_object_mut) {
            limits.insert(resource, gpus.to_string().into());
        }
    }
}

/// Removes `section.field`.
fn take(spec: &mut Map<String, Value>, section: &str, field: &str) -> Option<Value> {
    spec.get_mut(section)?.as_object_mut()?.remove(field)
}

/// Sets `section.field` if the section exists.
fn set(spec: &mut Map<String, Value>, section: &str, field: &str, value: Value) {
    if let Some(section) = spec.get_mut(section).and_then(Value::as_object_mut) {
        section.insert(field.to_owned(), value);
    }
}
