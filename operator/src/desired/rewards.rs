//! Containers that run the programs of rewards, tools and agents, and connect the coordinator with
//! them: in the coordinator's pod, or in verifier pods.

use k8s_openapi::api::core::v1::{
    Container, PodTemplateSpec, Probe, ResourceRequirements, TCPSocketAction, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rljob_crds::names::{CONTAINER_BRIDGE, CONTAINER_REWARDS, TOKENS_MOUNT, VERIFIER_PORT};
use rljob_http as tls;

use super::command::PROGRAMS;
use super::pod::{container_port, container_security, with_default_requests};
use super::settings::Settings;
use super::{Role, log, runner, volumes};
use crate::validate::ValidatedJob;

/// Adds the container of the runner to the coordinator's pod, if programs of rewards, tools or
/// agents run there, and tells the coordinator where they run.
pub(super) fn add_runner(job: &ValidatedJob, role: Role, template: &mut PodTemplateSpec) {
    let Some(pod) = template.spec.as_mut().filter(|_| role == Role::Coordinator) else { return };
    let Some(coordinator) = pod.containers.first_mut() else { return };
    let command = coordinator.command.get_or_insert_default();
    command.extend(job.spec.verifiers.is_some().then(|| "--verifiers".to_owned()));
    if !job.spec.runs_programs() {
        return;
    }
    command.push(format!("--reward-runner={}", runner::socket()));
    let [(folder, mount), (scratch, tmp)] = runner::folders();
    let connecting = VolumeMount { read_only: Some(true), ..mount.clone() };
    coordinator.volume_mounts.get_or_insert_default().push(connecting);
    let container = Container {
        name: CONTAINER_REWARDS.to_owned(),
        image: coordinator.image.clone(),
        image_pull_policy: coordinator.image_pull_policy.clone(),
        command: Some(command_of(runner::arguments(job))),
        env: Some(runner::environment(job, role)),
        resources: Some(with_default_requests(role, &ResourceRequirements::default())),
        volume_mounts: Some([mount, tmp].into_iter().chain(runner::data_mounts(job)).collect()),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    };
    pod.containers.push(container);
    pod.volumes.get_or_insert_default().extend([folder, scratch]);
}

fn command_of(arguments: Vec<String>) -> Vec<String> {
    let program = format!("{PROGRAMS}/{}", runner::PROGRAM);
    std::iter::once(program).chain(arguments).collect()
}

/// Adds the container that has the key of a verifier pod. Programs run in another one.
pub(super) fn add_bridge(
    job: &ValidatedJob,
    role: Role,
    settings: &Settings,
    template: &mut PodTemplateSpec,
) {
    let Some(pod) = template.spec.as_mut().filter(|_| role == Role::Verifier) else { return };
    let [(_, mount), _] = runner::folders();
    let mount = VolumeMount { read_only: Some(true), ..mount };
    let (file, client) = (tls::Role::Verifier.file(), tls::Role::Coordinator);
    let command = command_of(vec![
        "bridge".to_owned(),
        format!("--listen=[::]:{VERIFIER_PORT}"),
        format!("--socket={}", runner::socket()),
        format!("--tls-file={TOKENS_MOUNT}/{file}"),
        format!("--tls-client-name={}", client.server_name(&job.uid)),
    ]);
    // It listens once the runner does. The kernel answers, so that programs that use all processors
    // do not make the pod unready.
    let connect = Probe {
        tcp_socket: Some(TCPSocketAction {
            port: IntOrString::String(role.port_name().to_owned()),
            host: None,
        }),
        period_seconds: Some(5),
        timeout_seconds: Some(5),
        ..Probe::default()
    };
    let startup =
        Probe { period_seconds: Some(1), failure_threshold: Some(120), ..connect.clone() };
    pod.containers.push(Container {
        name: CONTAINER_BRIDGE.to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(command),
        env: Some(log::environment(job, role)),
        ports: Some(vec![container_port(role)]),
        resources: Some(with_default_requests(role, &ResourceRequirements::default())),
        volume_mounts: Some(vec![mount, volumes::tokens(job, role).1]),
        security_context: Some(container_security()),
        startup_probe: Some(startup),
        readiness_probe: Some(connect),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    use rljob_crds::names::{REWARDS_MOUNT, REWARDS_SOCKET};

    use super::*;
    use crate::desired::{pod, template};
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
        let expected = vec!["POD_NAME", "RLJOB_LOG_FORMAT", "RLJOB_LOG_FIELDS", "HOME"];
        assert_eq!((variables, &rewards.env_from), (expected, &None));
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
