//! Pod template of a role before the template of the job is merged: one container under the
//! restricted pod security standard.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, LocalObjectReference,
    ObjectFieldSelector, PodReadinessGate, PodSecurityContext, PodSpec, PodTemplateSpec,
    ResourceRequirements, SeccompProfile, SecurityContext, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rljob_crds::names::{
    ANNOTATION_METRICS_SCHEME, DASHBOARD_PORT, DASHBOARD_VARIABLE, GATE_WEIGHTS_SYNCED,
    HUB_TOKENS_MOUNT,
};

use super::command::{PROGRAMS, TRAINER_GRACE_SECONDS, command, config_arguments, is_sglang};
use super::probes::with_probes;
use super::settings::Settings;
use super::{Role, log, meta, runner, template, topology, volumes};
use crate::sglang;
use crate::validate::ValidatedJob;

/// Default user and group: `nonroot` of distroless images.
const USER: i64 = 65532;
/// Seconds until a pod on an unreachable node is evicted. The node controller reports the node
/// after 40 to 50 seconds.
const NODE_AWAY_SECONDS: i64 = 5;
/// Grace period of other pods.
const GRACE_SECONDS: i64 = 30;

pub(super) fn build_template(
    job: &ValidatedJob,
    role: Role,
    settings: &Settings,
) -> PodTemplateSpec {
    let (volumes, mut volume_mounts) = match role {
        Role::Verifier => runner::volumes(job),
        _ => volumes::volumes(job, role),
    };
    // Elsewhere the init container downloads.
    if role != Role::Coordinator {
        volume_mounts.retain(|mount| mount.mount_path != HUB_TOKENS_MOUNT);
    }
    let (image, resources) = of_role(job, role);
    let container = Container {
        name: role.container().to_owned(),
        image: Some(
            image
                .unwrap_or(if is_sglang(job, role) {
                    sglang::DEFAULT_IMAGE
                } else {
                    &settings.image
                })
                .to_owned(),
        ),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(command(job, role)),
        env: Some(environment(job, role)),
        // The port of verifier pods is that of another container.
        ports: (role != Role::Verifier).then(|| vec![container_port(role)]),
        resources: Some(with_default_requests(role, &resources)),
        volume_mounts: Some(volume_mounts),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..with_probes(job, role)
    };
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(meta::all_labels(job, Some(role))),
            annotations: Some(annotations(job, role, settings)).filter(|all| !all.is_empty()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            init_containers: model_download(job, role, settings).map(|container| vec![container]),
            containers: vec![container],
            volumes: Some(volumes),
            security_context: Some(pod_security()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(grace_seconds(role)),
            image_pull_secrets: pull_secrets(settings),
            priority_class_name: job.spec.scheduling.priority_class_name.clone(),
            affinity: topology::affinity(job, role, settings),
            tolerations: Some(brief_tolerations()),
            readiness_gates: role
                .is_engine()
                .then(|| vec![PodReadinessGate { condition_type: GATE_WEIGHTS_SYNCED.to_owned() }]),
            ..PodSpec::default()
        }),
    }
}

/// Without any, the API server adds those of the service account.
fn pull_secrets(settings: &Settings) -> Option<Vec<LocalObjectReference>> {
    let reference = |name: &String| LocalObjectReference { name: name.clone() };
    let all: Vec<_> = settings.image_pull_secrets.iter().map(reference).collect();
    (!all.is_empty()).then_some(all)
}

fn annotations(job: &ValidatedJob, role: Role, settings: &Settings) -> BTreeMap<String, String> {
    let mut all = topology::annotations(job, role, settings);
    if is_sglang(job, role) {
        all.insert(ANNOTATION_METRICS_SCHEME.to_owned(), "https".to_owned());
    }
    all
}

pub(super) fn container_port(role: Role) -> ContainerPort {
    ContainerPort {
        name: Some(role.port_name().to_owned()),
        container_port: i32::from(role.port()),
        ..ContainerPort::default()
    }
}

fn of_role(job: &ValidatedJob, role: Role) -> (Option<&str>, ResourceRequirements) {
    let spec = &job.spec;
    let (image, resources) = match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
            match role.engines(spec) {
                Some(engines) => (&engines.image, &engines.resources),
                None => return (None, ResourceRequirements::default()),
            }
        }
        Role::Coordinator => (&spec.coordinator.image, &spec.coordinator.resources),
        Role::Trainer => (&spec.trainer.image, &spec.trainer.resources),
        Role::Group => match spec.frozen_group() {
            Some(group) => (&spec.trainer.image, &group.resources),
            None => return (None, ResourceRequirements::default()),
        },
        Role::Verifier => match &spec.verifiers {
            Some(verifiers) => (&verifiers.image, &verifiers.resources),
            None => return (None, ResourceRequirements::default()),
        },
    };
    (image.as_deref(), resources.clone())
}

/// Whether the pods of a role have a supervisor with learners.
fn is_trainer(role: Role) -> bool {
    matches!(role, Role::Trainer | Role::Group)
}

fn grace_seconds(role: Role) -> i64 {
    if is_trainer(role) { TRAINER_GRACE_SECONDS } else { GRACE_SECONDS }
}

/// Container that downloads the model into the scratch space of a pod. Pods of a run in a bucket
/// share no folder in which the coordinator could put it.
fn model_download(job: &ValidatedJob, role: Role, settings: &Settings) -> Option<Container> {
    if role == Role::Coordinator || !role.downloads_model(&job.spec) {
        return None;
    }
    let (_, mounts) = volumes::volumes(job, role);
    let mut command = vec![format!("{PROGRAMS}/rljob-coordinator"), "--download-model".to_owned()];
    command.extend(config_arguments());
    Some(Container {
        name: "model-download".to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(command),
        // HF_ENDPOINT and proxies.
        env: Some([log::environment(job, role), template::coordinator_environment(job)].concat()),
        resources: Some(with_default_requests(role, &ResourceRequirements::default())),
        volume_mounts: Some(mounts),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    })
}

fn environment(job: &ValidatedJob, role: Role) -> Vec<EnvVar> {
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let value = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    };
    if role == Role::Verifier {
        return runner::environment(job, role);
    }
    let mut environment = log::environment(job, role);
    environment.extend([field("POD_IP", "status.podIP"), value("HOME", "/tmp")]);
    if is_trainer(role) {
        environment.push(field("POD_UID", "metadata.uid"));
    }
    if role == Role::Coordinator {
        let address = format!("127.0.0.1:{DASHBOARD_PORT}");
        environment.push(value(DASHBOARD_VARIABLE, &address));
    } else {
        environment.push(value("OMP_WAIT_POLICY", "PASSIVE"));
    }
    if is_sglang(job, role) {
        // torch.compile names its cache after the user, who has no name in an image made for root.
        environment.push(value("USER", "rljob"));
        let (name, seconds) = sglang::KEEP_ALIVE;
        environment.push(value(name, seconds));
    }
    if is_trainer(role) && processes(job, role) > 1 {
        environment.push(value("OMP_NUM_THREADS", "1"));
    }
    environment
}

/// Learners of each pod.
fn processes(job: &ValidatedJob, role: Role) -> u32 {
    let trainer = &job.spec.trainer;
    let group = job.spec.frozen_group().filter(|_| role == Role::Group);
    group.map_or_else(|| trainer.processes(), |group| trainer.of_group(group).processes())
}

/// Adds default requests for resources without request and limit, so that no pod is BestEffort.
pub(super) fn with_default_requests(
    role: Role,
    resources: &ResourceRequirements,
) -> ResourceRequirements {
    let (cpu, memory) = match role {
        Role::Inference
        | Role::Evaluation
        | Role::Reward
        | Role::Teacher
        | Role::Trainer
        | Role::Group => ("250m", "1Gi"),
        Role::Coordinator | Role::Verifier => ("100m", "256Mi"),
    };
    let mut resources = resources.clone();
    for (name, amount) in [("cpu", cpu), ("memory", memory)] {
        let is_limited = resources.limits.as_ref().is_some_and(|limits| limits.contains_key(name));
        if !is_limited {
            let requests = resources.requests.get_or_insert_default();
            requests.entry(name.to_owned()).or_insert_with(|| Quantity(amount.to_owned()));
        }
    }
    resources
}

/// Tolerations of unreachable and unready nodes. The default of Kubernetes is 300 s, in which a
/// learner group that lost a pod makes no progress.
pub(crate) fn brief_tolerations() -> Vec<Toleration> {
    let briefly = |taint: &str| Toleration {
        key: Some(taint.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: Some(NODE_AWAY_SECONDS),
        ..Toleration::default()
    };
    ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].map(briefly).to_vec()
}

/// The pod's part of the restricted pod security standard.
pub(crate) fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

/// The container's part of the restricted pod security standard.
pub(crate) fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}
