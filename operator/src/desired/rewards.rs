//! Container of the coordinator's pod that runs the commands of rewards and agents. It has none of
//! the job's tokens, keys, environment variables and run directories.

use k8s_openapi::api::core::v1::{
    Container, EnvVar, PodTemplateSpec, ResourceRequirements, VolumeMount,
};
use rljob_crds::names::{CONTAINER_REWARDS, REWARDS_MOUNT, REWARDS_SOCKET};
use rljob_crds::storage::VolumeSpec;

use super::Role;
use super::pod::{PROGRAMS, container_security, with_default_requests};
use super::volumes::{SCRATCH_LIMIT, mount_of_job, scratch};
use crate::validate::ValidatedJob;

/// Sources of volumes without secrets. Commands get others only by a mount in the template.
const DATA_SOURCES: [&str; 6] =
    ["configMap", "emptyDir", "hostPath", "image", "nfs", "persistentVolumeClaim"];
/// Limit of the folder of the socket. It is in memory, so that a command that fills it does not
/// evict the pod.
const SOCKET_LIMIT: &str = "1Mi";

/// Adds the container, and its socket to the coordinator, if rewards or agents of the job
/// are programs.
pub(super) fn add_runner(job: &ValidatedJob, role: Role, template: &mut PodTemplateSpec) {
    let is_needed = role == Role::Coordinator && job.spec.runs_programs();
    let Some(pod) = template.spec.as_mut().filter(|_| is_needed) else { return };
    let Some(coordinator) = pod.containers.first_mut() else { return };
    let (folder, mount) = scratch("rljob-rewards", REWARDS_MOUNT, Some("Memory"), SOCKET_LIMIT);
    let (scratch, tmp) = scratch("rljob-rewards-tmp", "/tmp", None, SCRATCH_LIMIT);
    let socket = format!("{REWARDS_MOUNT}/{REWARDS_SOCKET}");
    coordinator.command.get_or_insert_default().push(format!("--reward-runner={socket}"));
    let connecting = VolumeMount { read_only: Some(true), ..mount.clone() };
    coordinator.volume_mounts.get_or_insert_default().push(connecting);
    let runs = job.spec.storage.persistent_volume_claim.as_ref();
    let runs = runs.map(|claim| claim.claim_name.as_str());
    let data = job.spec.volumes.iter().filter_map(|volume| data_mount(volume, runs));
    let mut command = vec![
        format!("{PROGRAMS}/rljob-reward-runner"),
        "serve".to_owned(),
        format!("--socket={socket}"),
    ];
    if job.spec.agent().is_some() {
        command.push("--network".to_owned());
    }
    let runner = Container {
        name: CONTAINER_REWARDS.to_owned(),
        image: coordinator.image.clone(),
        image_pull_policy: coordinator.image_pull_policy.clone(),
        command: Some(command),
        env: Some(vec![EnvVar {
            name: "HOME".to_owned(),
            value: Some("/tmp".to_owned()),
            ..EnvVar::default()
        }]),
        resources: Some(with_default_requests(role, &ResourceRequirements::default())),
        volume_mounts: Some([mount, tmp].into_iter().chain(data).collect()),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    };
    pod.containers.push(runner);
    pod.volumes.get_or_insert_default().extend([folder, scratch]);
}

/// The mount of a volume of the job, read-only. Commands read programs and data, and write nothing
/// that others read. The claim of runs contains the job's run directory and those of other jobs.
fn data_mount(volume: &VolumeSpec, runs: Option<&str>) -> Option<VolumeMount> {
    let has_data = DATA_SOURCES.iter().any(|source| volume.source.contains_key(*source));
    let claim = volume.source.get("persistentVolumeClaim");
    let has_runs = runs.is_some_and(|runs| claim.is_some_and(|claim| claim["claimName"] == runs));
    let mount = mount_of_job(volume).filter(|_| has_data && !has_runs)?;
    Some(VolumeMount { read_only: Some(true), ..mount })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::desired::{Settings, pod, template};
    use crate::validate::test_support::with_spec;

    fn pod_of(role: Role, patch: &Value) -> PodSpec {
        let job = with_spec(patch);
        let mut template = pod::build_template(&job, role, &Settings::new("rljob:7"));
        add_runner(&job, role, &mut template);
        let merged = template::merge(template, &job, role);
        serde_json::from_value(merged["spec"].clone()).unwrap()
    }

    /// A job with a command, keys of a bucket, a secret among its volumes and an environment.
    fn job() -> Value {
        json!({
            "rewards": [{"name": "judge", "command": {"command": ["judge"]}}],
            "volumes": [
                {"name": "models", "mountPath": "/models", "configMap": {"name": "models"}},
                {"name": "keys", "mountPath": "/keys", "secret": {"secretName": "keys"}},
                {"name": "unmounted", "configMap": {"name": "x"}},
            ],
            "storage": {
                "persistentVolumeClaim": null,
                "s3": {"bucket": "runs", "credentialsSecretRef": {"name": "bucket-keys"}},
            },
            "weightSync": {"method": "Distributed"},
            "coordinator": {"image": "judge:1", "template": {"spec": {"containers": [
                {"name": "coordinator", "env": [{"name": "SECRET", "value": "x"}]},
                {"name": "rewards", "resources": {"limits": {"memory": "1Gi"}}},
            ]}}},
        })
    }

    #[test]
    fn the_container_of_commands_has_no_tokens_keys_run_and_environment() {
        let pod = pod_of(Role::Coordinator, &job());
        let [coordinator, rewards] = &pod.containers[..] else { panic!("{:?}", pod.containers) };
        let mounts = |container: &Container| -> Vec<(String, bool)> {
            let mounts = container.volume_mounts.iter().flatten();
            mounts
                .map(|mount| (mount.mount_path.clone(), mount.read_only.unwrap_or_default()))
                .collect()
        };
        let expected = [(REWARDS_MOUNT, false), ("/tmp", false), ("/models", true)]
            .map(|(path, read_only)| (path.to_owned(), read_only));
        assert_eq!(mounts(rewards), expected);
        assert!(mounts(coordinator).contains(&(REWARDS_MOUNT.to_owned(), true)));
        let variables: Vec<&str> =
            rewards.env.iter().flatten().map(|variable| variable.name.as_str()).collect();
        assert_eq!((variables, &rewards.env_from), (vec!["HOME"], &None));
        assert_eq!(rewards.image, coordinator.image);
        assert_eq!(rewards.security_context, coordinator.security_context);
        assert!(rewards.resources.as_ref().unwrap().limits.is_some());
        assert_eq!(pod.automount_service_account_token, Some(false));
        assert_eq!(pod.share_process_namespace, None);
        let scratch = pod.volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some());
        for volume in scratch {
            assert!(volume.empty_dir.as_ref().unwrap().size_limit.is_some(), "{}", volume.name);
        }
        let flag = format!("--reward-runner={REWARDS_MOUNT}/{REWARDS_SOCKET}");
        assert!(coordinator.command.iter().flatten().any(|argument| *argument == flag));
    }

    #[test]
    fn commands_read_no_volume_of_secrets_or_runs() {
        let volumes = json!([
            {"name": "vault", "mountPath": "/vault", "csi": {"driver": "secrets-store.csi.k8s.io"}},
            {"name": "runs", "mountPath": "/runs", "persistentVolumeClaim": {"claimName": "runs"}},
            {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "data"}},
        ]);
        let pod = pod_of(
            Role::Coordinator,
            &json!({
                "rewards": [{"name": "judge", "command": {"command": ["judge"]}}],
                "storage": {"persistentVolumeClaim": {"claimName": "runs"}},
                "volumes": volumes,
            }),
        );
        let mounts = pod.containers[1].volume_mounts.iter().flatten();
        let paths: Vec<&str> = mounts.map(|mount| mount.mount_path.as_str()).collect();
        assert_eq!(paths, [REWARDS_MOUNT, "/tmp", "/data"]);
    }

    #[test]
    fn only_agents_have_a_container_with_network() {
        let network = |spec: &serde_json::Value| {
            let pod = pod_of(Role::Coordinator, spec);
            let command = pod.containers[1].command.clone().unwrap();
            command.contains(&"--network".to_owned())
        };
        let workflow = json!({"agent": {"command": ["agent"]}});
        assert!(network(&json!({"rollout": {"workflow": workflow}})));
        assert!(!network(&json!({"rewards": [{"name": "tests", "code": {}}]})));
    }

    #[test]
    fn rewards_that_run_programs_have_the_container() {
        for kind in [
            json!({"name": "tests", "code": {}}),
            json!({"name": "own", "python": {"path": "/models/own.py", "function": "score"}}),
        ] {
            let pod = pod_of(Role::Coordinator, &json!({"rewards": [kind]}));
            let names: Vec<&str> = pod.containers.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, ["coordinator", CONTAINER_REWARDS]);
        }
    }

    #[test]
    fn other_pods_and_other_rewards_have_no_such_container() {
        assert_eq!(pod_of(Role::Trainer, &job()).containers.len(), 1);
        let math = json!({"rewards": [{"name": "correct", "math": {}}]});
        assert_eq!(pod_of(Role::Coordinator, &math).containers.len(), 1);
    }
}
