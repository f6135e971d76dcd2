//! Volumes of a pod: those of the operator (run directories, run configuration, tokens, keys,
//! scratch) and those of the job.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretProjection, SecretVolumeSource,
    Volume, VolumeMount, VolumeProjection,
};
use rljob_crds::names::{
    CONFIG_MOUNT, HUB_EVALUATION_TOKEN, HUB_MODEL_TOKEN, HUB_TOKENS_MOUNT, HUB_TRAIN_TOKEN,
    S3_KEYS_MOUNT, STORAGE_MOUNT, TOKENS_MOUNT,
};
use rljob_crds::roles::EngineKind;
use rljob_crds::storage::{S3Source, SecretKeyReference, StorageSpec, VolumeSpec};
use serde_json::Value;

use super::{Role, meta, secret};
use crate::validate::ValidatedJob;

/// A volume and where it is mounted.
type Mounted = (Volume, VolumeMount);

/// Every volume of a role's pod, with its mount.
pub(super) fn volumes(job: &ValidatedJob, role: Role) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mut all = vec![
        storage(&job.spec.storage),
        run_config(job),
        tokens(job, role),
        scratch("rljob-tmp", "/tmp", None),
    ];
    // NCCL and SGLang's processes share memory.
    if role == Role::Trainer
        || (role == Role::Inference && job.spec.inference.engine() == EngineKind::SGLang)
    {
        all.push(scratch("rljob-shm", "/dev/shm", Some("Memory")));
    }
    all.extend(
        job.spec.storage.s3.as_ref().filter(|_| role != Role::Inference).and_then(bucket_keys),
    );
    all.extend(hub_tokens(job, role));
    let (mut volumes, mut mounts): (Vec<_>, Vec<_>) = all.into_iter().unzip();
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

fn storage(storage: &StorageSpec) -> Mounted {
    let name = "rljob-storage";
    if storage.s3.is_some() {
        // The run is stored in the bucket.
        return scratch(name, STORAGE_MOUNT, None);
    }
    let host_path = storage
        .host_path
        .as_ref()
        .map(|source| HostPathVolumeSource { path: source.path.clone(), type_: None });
    let persistent_volume_claim = storage.persistent_volume_claim.as_ref().map(|source| {
        PersistentVolumeClaimVolumeSource { claim_name: source.claim_name.clone(), read_only: None }
    });
    let sub_path =
        storage.persistent_volume_claim.as_ref().and_then(|source| source.sub_path.clone());
    (
        Volume { host_path, persistent_volume_claim, ..volume(name) },
        VolumeMount { sub_path, ..mount(name, STORAGE_MOUNT, false) },
    )
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

fn tokens(job: &ValidatedJob, role: Role) -> Mounted {
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

fn scratch(name: &str, path: &str, medium: Option<&str>) -> Mounted {
    let empty_dir =
        EmptyDirVolumeSource { medium: medium.map(ToOwned::to_owned), size_limit: None };
    (Volume { empty_dir: Some(empty_dir), ..volume(name) }, mount(name, path, false))
}

/// Access tokens of the Hugging Face Hub, one file each. The coordinator downloads; other pods
/// download only the model of a run in a bucket.
fn hub_tokens(job: &ValidatedJob, role: Role) -> Option<Mounted> {
    let coordinates = role == Role::Coordinator;
    if !coordinates && job.spec.storage.s3.is_none() {
        return None;
    }
    let dataset = &job.spec.dataset;
    let train = dataset.train.hugging_face.as_ref().filter(|_| coordinates);
    let evaluation = dataset.evaluation.as_ref().filter(|_| coordinates);
    let model = job.spec.model.hugging_face.as_ref();
    let sources = [
        (HUB_MODEL_TOKEN, model.and_then(|hub| hub.token_secret_ref.as_ref())),
        (HUB_TRAIN_TOKEN, train.and_then(|hub| hub.token_secret_ref.as_ref())),
        (
            HUB_EVALUATION_TOKEN,
            evaluation
                .and_then(|evaluation| evaluation.hugging_face.as_ref())
                .and_then(|hub| hub.token_secret_ref.as_ref()),
        ),
    ];
    let project = |(file, reference): (&str, Option<&SecretKeyReference>)| {
        let reference = reference?;
        let item = KeyToPath { key: reference.key.clone(), path: file.to_owned(), mode: None };
        Some(VolumeProjection {
            secret: Some(SecretProjection {
                name: reference.name.clone(),
                items: Some(vec![item]),
                optional: None,
            }),
            ..VolumeProjection::default()
        })
    };
    let sources: Vec<VolumeProjection> = sources.into_iter().filter_map(project).collect();
    let projected = (!sources.is_empty())
        .then_some(ProjectedVolumeSource { sources: Some(sources), default_mode: Some(0o440) })?;
    let name = "rljob-hub";
    Some((
        Volume { projected: Some(projected), ..volume(name) },
        mount(name, HUB_TOKENS_MOUNT, true),
    ))
}

/// The volume under its own name, so that templates can mount it.
fn volume_of_job(spec: &VolumeSpec) -> Volume {
    let mut source: serde_json::Map<String, Value> = spec.source.clone().into_iter().collect();
    source.insert("name".to_owned(), spec.name.clone().into());
    // Fields of another type are rejected by the API server.
    serde_json::from_value(Value::Object(source)).unwrap_or_else(|_| volume(&spec.name))
}

fn mount_of_job(spec: &VolumeSpec) -> Option<VolumeMount> {
    let mount = mount(&spec.name, spec.mount_path.as_ref()?, spec.read_only);
    Some(VolumeMount { sub_path: spec.sub_path.clone(), ..mount })
}
