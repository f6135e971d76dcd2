//! Container of the reward runner: its arguments and volumes. It has none of the job's tokens, keys
//! and run directories.

use k8s_openapi::api::core::v1::{EnvVar, Volume, VolumeMount};
use rljob_crds::names::{REWARDS_MOUNT, REWARDS_SOCKET};
use rljob_crds::storage::VolumeSpec;

use super::volumes::{Mounted, SCRATCH_LIMIT, mount_of_job, scratch, tokens, volume_of_job};
use super::{Role, log};
use crate::validate::ValidatedJob;

/// Its program in the image.
pub(super) const PROGRAM: &str = "rljob-reward-runner";
/// Sources of volumes without secrets. Commands get others only by a mount in the template.
const DATA_SOURCES: [&str; 6] =
    ["configMap", "emptyDir", "hostPath", "image", "nfs", "persistentVolumeClaim"];
/// Limit of the folder of the socket. It is in memory, so that a command that fills it does not
/// evict the pod.
const SOCKET_LIMIT: &str = "1Mi";

/// Path of the socket.
pub(super) fn socket() -> String {
    format!("{REWARDS_MOUNT}/{REWARDS_SOCKET}")
}

/// Arguments of the program. Only agents use the network.
pub(super) fn arguments(job: &ValidatedJob) -> Vec<String> {
    let mut arguments = vec!["serve".to_owned(), format!("--socket={}", socket())];
    arguments.extend(job.spec.agent().map(|_| "--network".to_owned()));
    arguments
}

/// Variables of the container: those of its log, and the folder of programs without another one.
/// Programs get none of the former.
pub(super) fn environment(job: &ValidatedJob, role: Role) -> Vec<EnvVar> {
    let mut environment = log::environment(job, role);
    environment.push(EnvVar {
        name: "HOME".to_owned(),
        value: Some("/tmp".to_owned()),
        ..EnvVar::default()
    });
    environment
}

/// The folder of the socket, and the scratch folder of commands.
pub(super) fn folders() -> [Mounted; 2] {
    [
        scratch("rljob-rewards", REWARDS_MOUNT, Some("Memory"), SOCKET_LIMIT),
        scratch("rljob-rewards-tmp", "/tmp", None, SCRATCH_LIMIT),
    ]
}

/// Volumes of a verifier pod, with the mounts of the runner's container: not that of the key.
pub(super) fn volumes(job: &ValidatedJob) -> (Vec<Volume>, Vec<VolumeMount>) {
    let (mut volumes, mut mounts): (Vec<_>, Vec<_>) = folders().into_iter().unzip();
    volumes.push(tokens(job, Role::Verifier).0);
    volumes.extend(job.spec.volumes.iter().map(volume_of_job));
    mounts.extend(data_mounts(job));
    (volumes, mounts)
}

/// The mounts of the volumes of the job, read-only. Commands read programs and data, and write
/// nothing that others read. The claim of runs contains the job's run directory and those of other
/// jobs.
pub(super) fn data_mounts(job: &ValidatedJob) -> impl Iterator<Item = VolumeMount> {
    let runs = job.spec.storage.persistent_volume_claim.as_ref();
    let runs = runs.map(|claim| claim.claim_name.as_str());
    job.spec.volumes.iter().filter_map(move |volume| data_mount(volume, runs))
}

fn data_mount(volume: &VolumeSpec, runs: Option<&str>) -> Option<VolumeMount> {
    let has_data = DATA_SOURCES.iter().any(|source| volume.source.contains_key(*source));
    let claim = volume.source.get("persistentVolumeClaim");
    let has_runs = runs.is_some_and(|runs| claim.is_some_and(|claim| claim["claimName"] == runs));
    let mount = mount_of_job(volume).filter(|_| has_data && !has_runs)?;
    Some(VolumeMount { read_only: Some(true), ..mount })
}
