//! Volumes of a pod: the job's own (run directories, run configuration, tokens, a bucket's keys,
//! scratch) and the user's.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume, VolumeMount,
};
use rljob_crds::data::{ClaimSource, S3Source, StorageSpec, VolumeSpec};
use rljob_crds::names::{CONFIG_MOUNT, S3_KEYS_MOUNT, STORAGE_MOUNT, TOKENS_MOUNT};
use rljob_crds::roles::EngineKind;

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
        || (role == Role::Inference && job.spec.inference.engine == EngineKind::SGLang)
    {
        all.push(scratch("rljob-shm", "/dev/shm", Some("Memory")));
    }
    all.extend(
        job.spec.storage.s3.as_ref().filter(|_| role != Role::Inference).and_then(bucket_keys),
    );
    all.extend(job.spec.volumes.iter().map(users));
    all.into_iter().unzip()
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

fn claim(source: &ClaimSource, read_only: bool) -> PersistentVolumeClaimVolumeSource {
    PersistentVolumeClaimVolumeSource {
        claim_name: source.claim_name.clone(),
        read_only: read_only.then_some(true),
    }
}

fn storage(storage: &StorageSpec) -> Mounted {
    let name = "rljob-storage";
    if storage.s3.is_some() {
        // What is worth keeping goes to the bucket.
        return scratch(name, STORAGE_MOUNT, None);
    }
    let host_path = storage
        .host_path
        .as_ref()
        .map(|source| HostPathVolumeSource { path: source.path.clone(), type_: None });
    let persistent_volume_claim =
        storage.persistent_volume_claim.as_ref().map(|source| claim(source, false));
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

fn users(spec: &VolumeSpec) -> Mounted {
    let name = format!("user-{}", spec.name);
    let source = Volume {
        persistent_volume_claim: spec
            .persistent_volume_claim
            .as_ref()
            .map(|source| claim(source, spec.read_only)),
        host_path: spec
            .host_path
            .as_ref()
            .map(|source| HostPathVolumeSource { path: source.path.clone(), type_: None }),
        config_map: spec.config_map.as_ref().map(|source| ConfigMapVolumeSource {
            name: source.name.clone(),
            ..ConfigMapVolumeSource::default()
        }),
        ..volume(&name)
    };
    let sub_path = spec.persistent_volume_claim.as_ref().and_then(|source| source.sub_path.clone());
    (source, VolumeMount { sub_path, ..mount(&name, &spec.mount_path, spec.read_only) })
}
