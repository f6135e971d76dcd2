//! Volumes of a pod: those of the operator (run directories, run configuration, tokens, keys,
//! scratch) and those of the job.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretProjection, SecretVolumeSource,
    Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rljob_crds::algorithm::Capabilities;
use rljob_crds::names::{
    CONFIG_MOUNT, HUB_MODEL_TOKEN, HUB_TOKENS_MOUNT, S3_KEYS_MOUNT, SECRETS_MOUNT, STORAGE_MOUNT,
    TOKENS_MOUNT,
};
use rljob_crds::roles::EngineKind;
use rljob_crds::storage::{S3Source, SecretKeyReference, VolumeSpec};
use serde_json::Value;

use super::{Role, meta, secret};
use crate::validate::ValidatedJob;

/// Limit of `/tmp`. A template of the job may set another one, by the name of the volume.
pub(super) const SCRATCH_LIMIT: &str = "16Gi";
/// Limit of `/dev/shm`; it also counts as memory of the container.
const SHARED_MEMORY_LIMIT: &str = "16Gi";
/// Limit of the copy of a run in a bucket: model, weights, and checkpoints that are uploaded.
const RUN_SCRATCH_LIMIT: &str = "1Ti";

/// A volume and where it is mounted.
pub(super) type Mounted = (Volume, VolumeMount);

/// Every volume of a role's pod, with its mount.
pub(super) fn volumes(job: &ValidatedJob, role: Role) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mut all =
        vec![run_config(job), tokens(job, role), scratch("rljob-tmp", "/tmp", None, SCRATCH_LIMIT)];
    // NCCL and SGLang's processes share memory.
    let engines = role.engines(&job.spec);
    if matches!(role, Role::Trainer | Role::Group)
        || engines.is_some_and(|engines| engines.engine() == EngineKind::SGLang)
    {
        all.push(scratch("rljob-shm", "/dev/shm", Some("Memory"), SHARED_MEMORY_LIMIT));
    }
    all.extend(job.spec.storage.s3.as_ref().filter(|_| !role.is_engine()).and_then(bucket_keys));
    all.extend(hub_tokens(job, role));
    all.extend(service_tokens(job, role));
    let (storage, mut mounts) = storage(job, role);
    let (mut volumes, more): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    volumes.insert(0, storage);
    mounts.extend(more);
    volumes.extend(job.spec.volumes.iter().map(volume_of_job));
    mounts.extend(job.spec.volumes.iter().filter_map(mount_of_job));
    (volumes, mounts)
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn volume(name: &str) -> Volume {
    Volume { name: name.to_owned(), ..Volume::default() }
}

/// The volume of run directories, with mounts of the job's own run directory and, read-only, of
/// those that its spec names. Other jobs of the volume are out of reach. Engines only read weights.
fn storage(job: &ValidatedJob, role: Role) -> (Volume, Vec<VolumeMount>) {
    let (name, storage) = ("rljob-storage", &job.spec.storage);
    if storage.s3.is_some() {
        // The run is stored in the bucket.
        let (volume, mount) = scratch(name, STORAGE_MOUNT, None, RUN_SCRATCH_LIMIT);
        return (volume, vec![mount]);
    }
    let host_path = storage
        .host_path
        .as_ref()
        .map(|source| HostPathVolumeSource { path: source.path.clone(), type_: None });
    let persistent_volume_claim = storage.persistent_volume_claim.as_ref().map(|source| {
        PersistentVolumeClaimVolumeSource { claim_name: source.claim_name.clone(), read_only: None }
    });
    let parent =
        storage.persistent_volume_claim.as_ref().and_then(|source| source.sub_path.as_deref());
    let of_run = |run: &str, read_only| {
        let path = meta::run_directory(job, run);
        let parts = [parent, Some(job.namespace.as_str()), Some(run)];
        let sub_path = parts.into_iter().flatten().collect::<Vec<_>>().join("/");
        let mount = mount(name, &path.to_string_lossy(), read_only);
        VolumeMount { sub_path: Some(sub_path), ..mount }
    };
    let own = of_run(&job.name, role.is_engine());
    let others = other_runs(job).into_iter().map(|run| of_run(run, true));
    (
        Volume { host_path, persistent_volume_claim, ..volume(name) },
        [own].into_iter().chain(others).collect(),
    )
}

/// The runs of the job's namespace whose export or checkpoint it starts from, or whose reward model
/// or teacher it uses.
fn other_runs(job: &ValidatedJob) -> BTreeSet<&str> {
    let restore = job.spec.restore_from.as_ref();
    let namespace = Path::new(STORAGE_MOUNT).join(&job.namespace);
    let held = job.spec.algorithm.capabilities().and_then(Capabilities::teacher);
    let paths =
        [job.spec.model.path.as_deref(), restore.and_then(|from| from.path.as_deref()), held];
    let paths = paths.into_iter().flatten().chain(job.spec.fixed_models().map(|model| model.path));
    let in_storage = paths.filter_map(|path| {
        let mut parts = Path::new(path).strip_prefix(&namespace).ok()?.components();
        parts.next()?.as_os_str().to_str()
    });
    let named = [
        job.spec.model.job(),
        restore.and_then(|from| from.rljob.as_ref()).map(|from| from.name.as_str()),
    ];
    let mut runs: BTreeSet<&str> = named.into_iter().flatten().chain(in_storage).collect();
    runs.remove(job.name.as_str());
    runs
}

/// Keys of the bucket, if a Secret has them.
fn bucket_keys(source: &S3Source) -> Option<Mounted> {
    let name = "rljob-s3";
    let secret_name = Some(source.credentials_secret_ref.as_ref()?.name.clone());
    let secret = SecretVolumeSource {
        secret_name,
        default_mode: Some(0o440),
        ..SecretVolumeSource::default()
    };
    Some((Volume { secret: Some(secret), ..volume(name) }, mount(name, S3_KEYS_MOUNT, true)))
}

fn run_config(job: &ValidatedJob) -> Mounted {
    let name = "rljob-config";
    let config_map = ConfigMapVolumeSource {
        name: meta::config_map_name(job),
        ..ConfigMapVolumeSource::default()
    };
    (Volume { config_map: Some(config_map), ..volume(name) }, mount(name, CONFIG_MOUNT, true))
}

pub(super) fn tokens(job: &ValidatedJob, role: Role) -> Mounted {
    let name = "rljob-tokens";
    let item = |token: &&str| KeyToPath {
        key: (*token).to_owned(),
        path: (*token).to_owned(),
        mode: None,
    };
    let secret = SecretVolumeSource {
        secret_name: Some(meta::secret_name(job)),
        default_mode: Some(0o440),
        items: Some(secret::tokens_of(job, role).iter().map(item).collect()),
        optional: None,
    };
    (Volume { secret: Some(secret), ..volume(name) }, mount(name, TOKENS_MOUNT, true))
}

pub(super) fn scratch(name: &str, path: &str, medium: Option<&str>, limit: &str) -> Mounted {
    let size_limit = Some(Quantity(limit.to_owned()));
    let empty_dir = EmptyDirVolumeSource { medium: medium.map(ToOwned::to_owned), size_limit };
    (Volume { empty_dir: Some(empty_dir), ..volume(name) }, mount(name, path, false))
}

/// Access tokens of the Hugging Face Hub, one file each. The coordinator downloads; other pods
/// download only the model of a run in a bucket.
fn hub_tokens(job: &ValidatedJob, role: Role) -> Option<Mounted> {
    let coordinates = role == Role::Coordinator;
    let model = job.spec.model.hugging_face.as_ref().filter(|_| role.downloads_model(&job.spec));
    let model = model.and_then(|hub| hub.token_secret_ref.as_ref());
    let data = job.spec.dataset.sources().into_iter().filter(|_| coordinates);
    let data = data.map(|source| {
        (source.token, source.hugging_face.and_then(|hub| hub.token_secret_ref.as_ref()))
    });
    let sources = [(HUB_MODEL_TOKEN.to_owned(), model)].into_iter().chain(data);
    let sources = sources.filter_map(|(file, reference)| Some((file, reference?)));
    projected("rljob-hub", HUB_TOKENS_MOUNT, sources)
}

/// Tokens for servers outside the job, which only the coordinator calls: a file `NAME/KEY` each.
fn service_tokens(job: &ValidatedJob, role: Role) -> Option<Mounted> {
    let tokens = job.spec.service_tokens().into_iter().filter(|_| role == Role::Coordinator);
    // Servers may share a token.
    let keys: BTreeSet<&SecretKeyReference> = tokens.map(|token| token.secret).collect();
    let files = keys.into_iter().map(|key| (key.file(), key));
    projected("rljob-secrets", SECRETS_MOUNT, files)
}

/// A volume with a file for each key of a Secret; `None` without files.
fn projected<'a>(
    name: &str,
    path: &str,
    files: impl Iterator<Item = (String, &'a SecretKeyReference)>,
) -> Option<Mounted> {
    let project = |(file, reference): (String, &SecretKeyReference)| VolumeProjection {
        secret: Some(SecretProjection {
            name: reference.name.clone(),
            items: Some(vec![KeyToPath { key: reference.key.clone(), path: file, mode: None }]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let sources: Vec<VolumeProjection> = files.map(project).collect();
    let projected = (!sources.is_empty())
        .then_some(ProjectedVolumeSource { sources: Some(sources), default_mode: Some(0o440) })?;
    Some((Volume { projected: Some(projected), ..volume(name) }, mount(name, path, true)))
}

/// The volume under its own name, so that templates can mount it.
pub(super) fn volume_of_job(spec: &VolumeSpec) -> Volume {
    let mut source: serde_json::Map<String, Value> = spec.source.clone().into_iter().collect();
    source.insert("name".to_owned(), spec.name.clone().into());
    // Fields of another type are rejected by the API server.
    serde_json::from_value(Value::Object(source)).unwrap_or_else(|_| volume(&spec.name))
}

pub(super) fn mount_of_job(spec: &VolumeSpec) -> Option<VolumeMount> {
    let mount = mount(&spec.name, spec.mount_path.as_ref()?, spec.read_only);
    Some(VolumeMount { sub_path: spec.sub_path.clone(), ..mount })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validate::test_support::with_spec;

    /// Path, path in the volume, and whether it is read-only, of the mounts of run directories.
    fn mounts(spec: &Value, role: Role) -> Vec<(String, String, bool)> {
        let (_, mounts) = storage(&with_spec(spec), role);
        let facts = mounts.into_iter().map(|mount| {
            (
                mount.mount_path,
                mount.sub_path.unwrap_or_default(),
                mount.read_only.unwrap_or_default(),
            )
        });
        facts.collect()
    }

    fn mounted(run: &str, read_only: bool) -> (String, String, bool) {
        (format!("/rljob/runs/lab/{run}"), format!("team-a/lab/{run}"), read_only)
    }

    #[test]
    fn a_pod_reaches_its_own_run_and_reads_those_that_its_spec_names() {
        let alone = json!({});
        assert_eq!(mounts(&alone, Role::Trainer), [mounted("sums", false)]);
        assert_eq!(mounts(&alone, Role::Inference), [mounted("sums", true)]);
        let others = json!({
            "model": {"path": null, "rljob": {"name": "base"}},
            "restoreFrom": {"path": "/rljob/runs/lab/older/checkpoints/step-4.attempt-0"},
        });
        assert_eq!(
            mounts(&others, Role::Coordinator),
            [mounted("sums", false), mounted("base", true), mounted("older", true)]
        );
        // A teacher of the learners, and one of engines.
        for engines in [json!(null), json!({})] {
            let teacher = json!({"path": "/rljob/runs/lab/teach/export", "engines": engines});
            let taught = json!({"algorithm": {"grpo": null, "distillation": {"teacher": teacher}}});
            let expected = [mounted("sums", false), mounted("teach", true)];
            assert_eq!(mounts(&taught, Role::Coordinator), expected);
            assert_eq!(mounts(&taught, Role::Trainer), expected);
        }
        let of_another_namespace = json!({
            "restoreFrom": {"path": "/rljob/runs/other/older/checkpoints/step-4.attempt-0"},
        });
        assert_eq!(mounts(&of_another_namespace, Role::Trainer), [mounted("sums", false)]);
    }
}
