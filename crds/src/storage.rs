//! Storage of runs, volumes and Secret references.

use std::collections::BTreeMap;

use crate::union::{Union, exactly_one};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Sources of volumes: those of core v1 without the ones that CSI drivers replaced.
pub const VOLUME_SOURCES: [&str; 13] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "fc",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// A core v1 Volume with exactly one source. `mountPath` mounts it into the main container of every
/// role; without it, the templates of roles mount it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    /// Name of the volume, a DNS label. Names that start with `rljob-` are reserved.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Absolute path in the main container of every role. Default: not mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 4096), regex(pattern = "^/"))]
    pub mount_path: Option<String>,
    /// Path inside the volume that is mounted. Default the root of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub sub_path: Option<String>,
    /// Mount read-only. Default true.
    #[serde(default = "read_only")]
    pub read_only: bool,
    /// The source: one field of a core v1 Volume, for example `persistentVolumeClaim`.
    #[serde(flatten)]
    #[schemars(skip)]
    pub source: BTreeMap<String, Value>,
}

fn read_only() -> bool {
    true
}

/// Existing PersistentVolumeClaim.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimSource {
    /// Name of the claim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Folder in the volume. Default its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub sub_path: Option<String>,
}

/// Folder of the node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPathSource {
    /// Absolute path on the node.
    #[schemars(length(min = 2, max = 4096), regex(pattern = "^/"))]
    pub path: String,
}

/// Storage of runs. Exactly one of `persistentVolumeClaim`, `hostPath` and `s3`. Every pod of the
/// job reads and writes the volume.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct StorageSpec {
    /// Existing claim with access mode ReadWriteMany. ReadWriteOnce suffices on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// Folder that all nodes share. The operator rejects it unless it runs with
    /// `--allow-host-path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathSource>,
    /// Bucket of an S3-compatible store. Pods share no folder: weights reach the engines by
    /// `weightSync.method: Distributed`, and `model.rljob` is not available;
    /// `model.huggingFace` needs a commit as revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Source>,
}

impl Union for StorageSpec {
    const MEMBERS: &'static [&'static str] = &["persistentVolumeClaim", "hostPath", "s3"];
}

/// Bucket of an S3-compatible store. Checkpoints, exports, the journal and JSONL files are objects
/// below `<prefix>/<namespace>/<name>/`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Source {
    /// Name of the bucket.
    #[schemars(length(min = 3, max = 63), regex(pattern = "^[a-z0-9][-a-z0-9.]*[a-z0-9]$"))]
    pub bucket: String,
    /// Prefix of all object names. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = "^[-A-Za-z0-9_.=]+(/[-A-Za-z0-9_.=]+)*$")
    )]
    pub prefix: Option<String>,
    /// URL of the store, for example `https://s3.example.com:9000`. `http://` is not encrypted. May
    /// change while the run is active; pods use it after the next resume. Default the AWS endpoint
    /// of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 512), regex(pattern = "^https?://[^/]+/?$"))]
    pub endpoint: Option<String>,
    /// Region that requests are signed for. Default us-east-1.
    #[serde(default = "region")]
    #[schemars(length(min = 1, max = 63))]
    pub region: String,
    /// Secret in the namespace of the job with the keys `AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY` and optionally `AWS_SESSION_TOKEN`. The coordinator and the trainers
    /// read it again for every request. May change while the run is active; pods use it after the
    /// next resume. Default the workload identity of the pod or the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,
}

fn region() -> String {
    "us-east-1".to_owned()
}

/// Secret in the namespace of the job.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretReference {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Key of a Secret in the namespace of the job.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyReference {
    /// Name of the Secret.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// Key in the Secret. Default `token`.
    #[serde(default = "token_key")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^\\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$"))]
    pub key: String,
}

impl SecretKeyReference {
    /// Path of the key's file in a folder of Secrets: `NAME/KEY`.
    pub fn file(&self) -> String {
        format!("{}/{}", self.name, self.key)
    }
}

fn token_key() -> String {
    "token".to_owned()
}
