//! Rules of the model, volumes, storage and the initial checkpoint.

use std::path::{Component, Path};

use k8s_openapi::api::core::v1::Volume;
use rljob_crds::RLJobSpec;
use rljob_crds::model::{InitialWeights, ModelSpec};
use rljob_crds::names::{
    CONFIG_MOUNT, HUB_TOKENS_MOUNT, REWARDS_MOUNT, S3_KEYS_MOUNT, SECRETS_MOUNT, STORAGE_MOUNT,
    TOKENS_MOUNT,
};
use rljob_crds::storage::{VOLUME_SOURCES, VolumeSpec};
use serde_json::{Map, Value};

use super::common::{check_union, exactly_one, is_dns_label};
use crate::validate::{Policy, Problem};

/// Folders of the containers that the operator mounts.
pub(super) const RESERVED_FOLDERS: [&str; 7] = [
    STORAGE_MOUNT,
    CONFIG_MOUNT,
    TOKENS_MOUNT,
    S3_KEYS_MOUNT,
    HUB_TOKENS_MOUNT,
    SECRETS_MOUNT,
    REWARDS_MOUNT,
];
/// Folders that only the template of a role can replace.
const SCRATCH: [&str; 2] = ["/tmp", "/dev/shm"];
/// Prefix of the operator's volumes.
pub(super) const RESERVED_PREFIX: &str = "rljob-";
pub(super) const HOST_PATH: &str = "the operator rejects hostPath: it gives access to the \
    files of nodes; start the operator with --allow-host-path, or use another volume";

pub(super) fn check_model(model: &ModelSpec, name: Option<&str>, problems: &mut Vec<Problem>) {
    check_union("spec.model", model, problems);
    if let Some(folder) = &model.path {
        check_run_path("spec.model.path", folder, problems);
    }
    let Some(other) = model.job() else { return };
    if model.weights != InitialWeights::Pretrained {
        problems.push(Problem::new(
            "spec.model.weights",
            "rljob names trained weights: weights must be Pretrained",
        ));
    }
    if Some(other) == name {
        problems.push(Problem::new("spec.model.rljob.name", "is the name of this job"));
    }
    if !is_dns_label(other) {
        problems.push(Problem::new("spec.model.rljob.name", "must be the name of an RLJob"));
    }
}

/// Fields with paths in pods, and their values.
pub fn paths(spec: &RLJobSpec) -> Vec<(String, &str)> {
    let model = spec.model.path.as_deref().map(|path| ("spec.model.path".to_owned(), path));
    let teacher = spec.algorithm.teacher_field();
    let teacher =
        teacher.and_then(|(field, teacher)| Some((format!("{field}.path"), teacher.path?)));
    let restored = spec.restore_from.as_ref().and_then(|own| own.path.as_deref());
    let restored = restored.map(|path| ("spec.restoreFrom.path".to_owned(), path));
    let fixed = [model, teacher, restored].into_iter().flatten();
    let rewards = spec.rewards.iter().enumerate().filter_map(|(index, reward)| {
        let path = reward.model.as_ref()?.path.as_deref()?;
        Some((format!("spec.rewards[{index}].model.path"), path))
    });
    let data = spec.dataset.sources().into_iter();
    let data = data.filter_map(|own| Some((format!("{}.path", own.field), own.path?)));
    fixed.chain(rewards).chain(data).collect()
}

/// Pods have no folder of the job file that a relative path could start at.
pub(super) fn check_paths(spec: &RLJobSpec, policy: Policy, problems: &mut Vec<Problem>) {
    if policy.allow_relative_paths {
        return;
    }
    for (field, path) in paths(spec) {
        if !path.starts_with('/') {
            let message = format!(
                "`{path}` is relative: only `rljob run` accepts such a path; set one in a volume \
                 of spec.volumes or of the run store"
            );
            problems.push(Problem::new(field, message));
        }
    }
}

/// Checks a path in the run directories, of which a part becomes the `subPath` of a mount.
pub(super) fn check_run_path(field: &str, path: &str, problems: &mut Vec<Problem>) {
    let mut parts = Path::new(path).components();
    if path.starts_with(STORAGE_MOUNT) && parts.any(|part| part == Component::ParentDir) {
        let message = format!("must not contain `..` below {STORAGE_MOUNT}");
        problems.push(Problem::new(field, message));
    }
}

pub(super) fn check_volumes(volumes: &[VolumeSpec], policy: Policy, problems: &mut Vec<Problem>) {
    for (index, volume) in volumes.iter().enumerate() {
        let path = format!("spec.volumes[{index}]");
        let members = VOLUME_SOURCES.map(|name| (name, volume.source.contains_key(name)));
        exactly_one(&path, &members, problems);
        for unknown in volume.source.keys().filter(|key| !VOLUME_SOURCES.contains(&key.as_str())) {
            problems.push(Problem::new(format!("{path}.{unknown}"), "unknown field"));
        }
        let source: Map<String, Value> = volume.source.clone().into_iter().collect();
        if let Err(error) = serde_path_to_error::deserialize::<_, Volume>(&Value::Object(source)) {
            let field = format!("{path}.{}", error.path());
            problems.push(Problem::new(field, error.inner().to_string()));
        }
        let claim = volume.source.get("persistentVolumeClaim");
        if let Some(name) = claim.and_then(|claim| claim["claimName"].as_str()) {
            check_claim_name(&format!("{path}.persistentVolumeClaim.claimName"), name, problems);
        }
        if volume.source.contains_key("hostPath") && !policy.allow_host_path {
            problems.push(Problem::new(format!("{path}.hostPath"), HOST_PATH));
        }
        if volume.name.starts_with(RESERVED_PREFIX) {
            let message = format!("names that start with `{RESERVED_PREFIX}` are reserved");
            problems.push(Problem::new(format!("{path}.name"), message));
        }
        let earlier = volumes.get(..index).unwrap_or_default();
        if earlier.iter().any(|other| other.name == volume.name) {
            let message = format!("`{}` is the name of an earlier volume", volume.name);
            problems.push(Problem::new(format!("{path}.name"), message));
        }
        if let Some(mount_path) = &volume.mount_path {
            check_mount(&path, mount_path, earlier, problems);
        }
    }
}

fn check_mount(path: &str, mount_path: &str, earlier: &[VolumeSpec], problems: &mut Vec<Problem>) {
    let path = format!("{path}.mountPath");
    let mount = mount_path.trim_end_matches('/');
    let is_mounted = |other: &VolumeSpec| {
        other.mount_path.as_deref().is_some_and(|path| path.trim_end_matches('/') == mount)
    };
    if earlier.iter().any(is_mounted) {
        let message = format!("`{mount}` is the mount path of an earlier volume");
        problems.push(Problem::new(path.clone(), message));
    }
    let reserved: Vec<&str> = RESERVED_FOLDERS.into_iter().chain(SCRATCH).collect();
    if reserved.iter().any(|folder| covers(mount, folder)) {
        let message =
            format!("`{mount_path}` covers a folder that rljob uses: {}", reserved.join(", "));
        problems.push(Problem::new(path.clone(), message));
    }
    if mount.contains(':') || mount.split('/').any(|part| part == "..") {
        problems.push(Problem::new(path, "must not contain `:` or `..`"));
    }
}

fn check_claim_name(path: &str, name: &str, problems: &mut Vec<Problem>) {
    if name.len() > 253 || !name.split('.').all(is_dns_label) {
        let message = format!("must be the name of a PersistentVolumeClaim, found \"{name}\"");
        problems.push(Problem::new(path, message));
    }
}

/// Whether a mount hides a folder, or lies in it.
pub(super) fn covers(mount: &str, folder: &str) -> bool {
    mount.is_empty()
        || mount == folder
        || folder.starts_with(&format!("{mount}/"))
        || mount.starts_with(&format!("{folder}/"))
}

pub(super) fn check_storage(spec: &RLJobSpec, policy: Policy, problems: &mut Vec<Problem>) {
    let storage = &spec.storage;
    check_union("spec.storage", storage, problems);
    if storage.host_path.is_some() && !policy.allow_host_path {
        problems.push(Problem::new("spec.storage.hostPath", HOST_PATH));
    }
    if storage.s3.is_some() {
        check_s3(spec, policy, problems);
    }
    let claim = storage.persistent_volume_claim.as_ref();
    if let Some(claim) = claim {
        let path = "spec.storage.persistentVolumeClaim.claimName";
        check_claim_name(path, &claim.claim_name, problems);
    }
    let sub_path = claim.and_then(|claim| claim.sub_path.as_deref()).unwrap_or_default();
    if sub_path.starts_with('/') || sub_path.split('/').any(|part| part == "..") {
        problems.push(Problem::new(
            "spec.storage.persistentVolumeClaim.subPath",
            "must be relative and must not contain `..`",
        ));
    }
}

/// Pods of a run in a bucket share no folder.
fn check_s3(spec: &RLJobSpec, policy: Policy, problems: &mut Vec<Problem>) {
    let is_commit = |revision: &str| {
        revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let hub = spec.model.hugging_face.as_ref().filter(|_| !policy.shared_run_directory);
    if hub.is_some_and(|hub| !is_commit(&hub.revision)) {
        problems.push(Problem::new(
            "spec.model.huggingFace.revision",
            "must be a commit of 40 hexadecimal digits with storage.s3: each pod downloads the \
                model separately",
        ));
    }
    if spec.model.rljob.is_some() {
        problems.push(Problem::new(
            "spec.model.rljob",
            "needs a volume: engines cannot read a model from storage.s3; copy the export to a \
                volume and set model.path",
        ));
    }
}

pub(super) fn check_restore(spec: &RLJobSpec, name: Option<&str>, problems: &mut Vec<Problem>) {
    if spec.rollback_to.is_some() && spec.storage.s3.is_some() {
        problems.push(Problem::new(
            "spec.rollbackTo",
            "needs a run on a volume: create an RLJob with restoreFrom.rljob",
        ));
    }
    let Some(source) = &spec.restore_from else { return };
    check_union("spec.restoreFrom", source, problems);
    if let Some(folder) = &source.path {
        check_run_path("spec.restoreFrom.path", folder, problems);
    }
    if source.rljob.as_ref().is_some_and(|other| Some(other.name.as_str()) == name) {
        problems.push(Problem::new("spec.restoreFrom.rljob.name", "is the name of this job"));
    }
    if source.s3.is_some() && spec.storage.s3.is_none() {
        problems.push(Problem::new(
            "spec.restoreFrom.s3",
            "needs storage.s3, which configures the access",
        ));
    }
}
