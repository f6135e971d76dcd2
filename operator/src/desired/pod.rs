//! Pod template of a role before the template of the job is merged: one container under the
//! restricted pod security standard.

use std::path::Path;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction,
    ObjectFieldSelector, PodReadinessGate, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    ResourceRequirements, SeccompProfile, SecurityContext, TCPSocketAction, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rljob_crds::names::{
    ANNOTATION_METRICS_SCHEME, CONFIG_MOUNT, COORDINATOR_PORT, DASHBOARD_PORT, DASHBOARD_VARIABLE,
    ENGINE_PORT, GATE_WEIGHTS_SYNCED, HUB_TOKENS_MOUNT, RUN_CONFIG_FILE, SUPERVISOR_PORT,
    TOKENS_MOUNT,
};
use rljob_crds::roles::{EngineKind, InferenceSpec};
use rljob_crds::{EnginePurpose, RunConfig};

use super::settings::Settings;
use super::{Role, log, meta, run_config, runner, template, volumes};
use crate::served_model::ServedModel;
use crate::validate::ValidatedJob;
use crate::{embedded_engine, sglang};

/// Default user and group: `nonroot` of distroless images.
const USER: i64 = 65532;
/// Seconds until a pod on an unreachable node is evicted. The node controller reports the node
/// after 40 to 50 seconds.
const NODE_AWAY_SECONDS: i64 = 5;
/// Grace period of trainer pods: the rest of a step and a checkpoint.
const TRAINER_GRACE_SECONDS: i64 = 125;
/// Grace period of other pods.
const GRACE_SECONDS: i64 = 30;
/// Part of the grace period in which a supervisor kills its learners.
const KILL_SECONDS: i64 = 5;
/// Folder of the programs in the image.
pub const PROGRAMS: &str = "/usr/local/bin";

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
            annotations: is_sglang(job, role)
                .then(|| [(ANNOTATION_METRICS_SCHEME.to_owned(), "https".to_owned())].into()),
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
            priority_class_name: job.spec.scheduling.priority_class_name.clone(),
            tolerations: Some(brief_tolerations()),
            readiness_gates: role
                .is_engine()
                .then(|| vec![PodReadinessGate { condition_type: GATE_WEIGHTS_SYNCED.to_owned() }]),
            ..PodSpec::default()
        }),
    }
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
        Role::Inference | Role::Evaluation | Role::Reward => match role.engines(spec) {
            Some(engines) => (&engines.image, &engines.resources),
            None => return (None, ResourceRequirements::default()),
        },
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

fn is_sglang(job: &ValidatedJob, role: Role) -> bool {
    role.engines(&job.spec).is_some_and(|engines| engines.engine() == EngineKind::SGLang)
}

/// Whether the pods of a role have a supervisor with learners.
fn is_trainer(role: Role) -> bool {
    matches!(role, Role::Trainer | Role::Group)
}

fn grace_seconds(role: Role) -> i64 {
    if is_trainer(role) { TRAINER_GRACE_SECONDS } else { GRACE_SECONDS }
}

/// Time that a supervisor gives its learners after SIGTERM.
fn supervisor_grace_seconds(job: &ValidatedJob, role: Role) -> i64 {
    let template = template::of_role(job, role);
    let set = template.and_then(|template| template.spec.get("terminationGracePeriodSeconds"));
    let seconds = set.and_then(serde_json::Value::as_i64).unwrap_or(TRAINER_GRACE_SECONDS);
    seconds.saturating_sub(KILL_SECONDS).max(0)
}

fn command(job: &ValidatedJob, role: Role) -> Vec<String> {
    if let Some(engines) = role.engines(&job.spec).filter(|_| is_sglang(job, role)) {
        return sglang_command(job, role, engines);
    }
    let arguments = match role {
        Role::Inference | Role::Evaluation | Role::Reward => engine_arguments(job, role),
        Role::Coordinator => {
            let mut arguments = config_arguments();
            arguments.extend([
                format!("--listen=[::]:{COORDINATOR_PORT}"),
                "--address=$(POD_IP)".to_owned(),
            ]);
            arguments
        }
        Role::Trainer | Role::Group => {
            let mut arguments = config_arguments();
            arguments.push(format!("--coordinator={}", meta::coordinator_url(job)));
            // Reports carry the address, so that ranks do not wait for the DNS record of a new pod.
            arguments.extend(["--name=$(POD_NAME)", "--address=$(POD_IP)"].map(ToOwned::to_owned));
            arguments.push(format!("--health-port={SUPERVISOR_PORT}"));
            arguments.push(format!("--grace-seconds={}", supervisor_grace_seconds(job, role)));
            let group = job.spec.frozen_group().filter(|_| role == Role::Group);
            arguments.extend(group.map(|group| format!("--group={}", group.name)));
            arguments
        }
        Role::Verifier => runner::arguments(job),
    };
    let program = match role {
        Role::Inference | Role::Evaluation | Role::Reward => embedded_engine::PROGRAM,
        Role::Coordinator => "rljob-coordinator",
        Role::Trainer | Role::Group => "rljob-supervisor",
        Role::Verifier => runner::PROGRAM,
    };
    std::iter::once(format!("{PROGRAMS}/{program}")).chain(arguments).collect()
}

fn sglang_command(job: &ValidatedJob, role: Role, engines: &InferenceSpec) -> Vec<String> {
    let program = ["python3", "-m", "sglang.launch_server"].map(ToOwned::to_owned);
    let config = run_config(job);
    let model = served_model(&config, role);
    let flags = sglang::arguments(
        &job.spec,
        engines,
        model,
        // The server listens on one family of addresses only.
        "$(POD_IP)",
        Path::new(TOKENS_MOUNT),
    );
    let command = program.into_iter().chain(flags).chain([format!("--port={ENGINE_PORT}")]);
    let service = meta::service_host(&job.namespace, &meta::role_name(job, role));
    let command = sglang::across_pods(engines, &service, command);
    model.when_complete(command)
}

/// The model of engines of a role.
fn served_model(config: &RunConfig, role: Role) -> ServedModel<'_> {
    ServedModel::new(config, role.purpose().unwrap_or(EnginePurpose::Rollouts))
}

fn config_arguments() -> Vec<String> {
    vec![format!("--config={CONFIG_MOUNT}/{RUN_CONFIG_FILE}"), format!("--tokens={TOKENS_MOUNT}")]
}

fn engine_arguments(job: &ValidatedJob, role: Role) -> Vec<String> {
    let config = run_config(job);
    let model = served_model(&config, role);
    let tokens = Path::new(TOKENS_MOUNT);
    let mut arguments = embedded_engine::arguments(&job.spec, model, "::", tokens, &job.uid);
    arguments.push(format!("--port={ENGINE_PORT}"));
    arguments
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
        return vec![value("HOME", "/tmp")];
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
        Role::Inference | Role::Evaluation | Role::Reward | Role::Trainer | Role::Group => {
            ("250m", "1Gi")
        }
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

/// Adds the probes of a role. An engine has no liveness probe, because a server that pauses for
/// weights must not be killed; the coordinator detects hung engines. The start of an engine may
/// take an hour: 100 GB of weights at 50 MB/s, kernel compilation, or a wait for the export of
/// another job. Of rljob's programs, probes get plain answers on the port of TLS; SGLang's port
/// speaks TLS only, except in pods of an engine that do not serve: these listen, without TLS, once
/// their ranks are ready.
fn with_probes(job: &ValidatedJob, role: Role) -> Container {
    let is_sglang = is_sglang(job, role);
    let engines = role.engines(&job.spec);
    let spans_pods = engines.is_some_and(|engines| engines.pods_per_engine() > 1);
    let port = || IntOrString::String("http".to_owned());
    let get = |path: &str, period: i32, failures: i32| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: port(),
            scheme: is_sglang.then(|| "HTTPS".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    };
    // A hung process fails three consecutive probes within 3 · 5 s + 4 s; a busy one answers one of
    // them. A hung process ignores SIGTERM, so that it gets no grace period.
    let alive = Probe {
        timeout_seconds: Some(4),
        termination_grace_period_seconds: Some(1),
        ..get("/healthz", 5, 3)
    };
    let connect = Probe {
        tcp_socket: Some(TCPSocketAction { port: port(), host: None }),
        period_seconds: Some(5),
        timeout_seconds: Some(5),
        ..Probe::default()
    };
    match role {
        Role::Inference | Role::Evaluation | Role::Reward => Container {
            startup_probe: Some(if spans_pods {
                Probe { period_seconds: Some(2), failure_threshold: Some(1800), ..connect.clone() }
            } else {
                get("/health", 2, 1800)
            }),
            readiness_probe: Some(connect),
            ..Container::default()
        },
        Role::Coordinator | Role::Trainer | Role::Group => Container {
            startup_probe: Some(get("/healthz", 1, 120)),
            readiness_probe: Some(get("/healthz", 5, 3)),
            liveness_probe: Some(alive),
            ..Container::default()
        },
        Role::Verifier => Container::default(),
    }
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
