//! Copy of the reward runner for an image of the user that may lack it.
//!
//! ```text
//!  init container reward-runner ──▶ emptyDir ──▶ container rewards
//!  image of the operator            /rljob/runner   image of the user
//! ```

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec, ResourceRequirements, VolumeMount};
use rljob_crds::names::{CONTAINER_REWARDS, CONTAINER_RUNNER, RUNNER_MOUNT};

use super::command::PROGRAMS;
use super::pod::{container_security, with_default_requests};
use super::settings::Settings;
use super::{Role, log, runner, template, volumes};
use crate::validate::ValidatedJob;

/// Limit of the copy.
const LIMIT: &str = "1Gi";

/// Lets the container of the programs start the copy of the runner, if the job sets its image.
pub(super) fn add(
    job: &ValidatedJob,
    role: Role,
    settings: &Settings,
    template: &mut PodTemplateSpec,
) {
    let Some(pod) = template.spec.as_mut().filter(|_| has_image_of_job(job, role)) else { return };
    let mut containers = pod.containers.iter_mut();
    let Some(rewards) = containers.find(|container| container.name == CONTAINER_REWARDS) else {
        return;
    };
    let (volume, mount) = volumes::scratch("rljob-runner", RUNNER_MOUNT, None, LIMIT);
    if let Some(program) = rewards.command.as_mut().and_then(|command| command.first_mut()) {
        *program = format!("{RUNNER_MOUNT}/{}", runner::PROGRAM);
    }
    let to_read = VolumeMount { read_only: Some(true), ..mount.clone() };
    rewards.volume_mounts.get_or_insert_default().push(to_read);
    pod.volumes.get_or_insert_default().push(volume);
    pod.init_containers.get_or_insert_default().push(copying(job, role, settings, mount));
}

/// Whether the job sets the image of the container of the programs.
fn has_image_of_job(job: &ValidatedJob, role: Role) -> bool {
    match role {
        Role::Verifier => job.spec.verifiers.as_ref().is_some_and(|own| own.image.is_some()),
        _ => template::container_of_job(job, role, CONTAINER_REWARDS)
            .is_some_and(|container| container.get("image").is_some()),
    }
}

fn copying(job: &ValidatedJob, role: Role, settings: &Settings, mount: VolumeMount) -> Container {
    let program = format!("{PROGRAMS}/{}", runner::PROGRAM);
    Container {
        name: CONTAINER_RUNNER.to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec![program, "copy".to_owned(), format!("--folder={RUNNER_MOUNT}")]),
        env: Some(log::environment(job, role)),
        resources: Some(with_default_requests(role, &ResourceRequirements::default())),
        volume_mounts: Some(vec![mount]),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    use crate::desired::{Role, Settings, rendered_template};
    use crate::validate::test_support::with_spec;

    fn pod(role: Role, spec: &Value) -> PodSpec {
        let template = rendered_template(&with_spec(spec), role, &Settings::new("rljob:7"));
        serde_json::from_value(template["spec"].clone()).unwrap()
    }

    /// The program of the container of the programs, and the image and command of the copy.
    fn started(role: Role, spec: &Value) -> (String, Option<(String, Vec<String>)>) {
        let pod = pod(role, spec);
        let rewards = pod.containers.iter().find(|container| container.name == "rewards").unwrap();
        let program = rewards.command.as_ref().unwrap()[0].clone();
        let mut copies = pod.init_containers.into_iter().flatten();
        let copy = copies.find(|container| container.name == "reward-runner");
        (program, copy.map(|copy| (copy.image.unwrap(), copy.command.unwrap())))
    }

    #[test]
    fn an_image_of_the_job_starts_a_copy_of_the_runner_of_the_operators_release() {
        let rewards = json!([{"name": "tests", "code": {}}]);
        let with = |verifiers: &Value| json!({"rewards": rewards, "verifiers": verifiers});
        let own = ("/usr/local/bin/rljob-reward-runner".to_owned(), None);
        assert_eq!(started(Role::Verifier, &with(&json!({"maxReplicas": 2}))), own);
        let copy = ["/usr/local/bin/rljob-reward-runner", "copy", "--folder=/rljob/runner"];
        let copy = ("rljob:7".to_owned(), copy.map(str::to_owned).to_vec());
        let copied = ("/rljob/runner/rljob-reward-runner".to_owned(), Some(copy));
        let image = json!({"maxReplicas": 2, "image": "agents:1"});
        assert_eq!(started(Role::Verifier, &with(&image)), copied);
        let container = json!([{"name": "rewards", "image": "agents:1"}]);
        let template = json!({"spec": {"containers": container}});
        let coordinator = |template: &Value| {
            let rewards = json!([{"name": "tests", "code": {}}]);
            json!({"rewards": rewards, "coordinator": {"image": "rljob:8", "template": template}})
        };
        assert_eq!(started(Role::Coordinator, &coordinator(&template)), copied);
        assert_eq!(started(Role::Coordinator, &coordinator(&Value::Null)), own);
    }

    #[test]
    fn programs_read_the_copy_and_cannot_change_it() {
        let verifiers = json!({"maxReplicas": 2, "image": "agents:1"});
        let spec = json!({"rewards": [{"name": "tests", "code": {}}], "verifiers": verifiers});
        let pod = pod(Role::Verifier, &spec);
        let [copy] = &pod.init_containers.unwrap()[..] else { panic!("one init container") };
        let all = pod.containers.iter().chain([copy]);
        let mounts = all.flat_map(|container| {
            let mounts = container.volume_mounts.iter().flatten();
            let of_copy = mounts.filter(|mount| mount.name == "rljob-runner");
            of_copy.map(|mount| (container.name.as_str(), mount.read_only.unwrap_or_default()))
        });
        assert_eq!(mounts.collect::<Vec<_>>(), [("rewards", true), ("reward-runner", false)]);
        assert_eq!(copy.volume_mounts.as_ref().unwrap().len(), 1);
        assert_eq!(copy.security_context, pod.containers[0].security_context);
        let volumes = pod.volumes.unwrap();
        let volume = volumes.iter().find(|volume| volume.name == "rljob-runner").unwrap();
        assert!(volume.empty_dir.as_ref().unwrap().size_limit.is_some());
    }
}
