//! Rules of pod templates: fields that the operator sets cannot be overridden.

use k8s_openapi::api::core::v1::PodSpec;
use rljob_crds::RLJobSpec;
use rljob_crds::names::{
    CONTAINER_BRIDGE, CONTAINER_REWARDS, CONTAINER_RUNNER, GROUP, LABEL_COMPONENT, LABEL_INSTANCE,
    LABEL_MANAGED_BY, LABEL_NAME,
};
use rljob_crds::storage::VolumeSpec;
use rljob_crds::template::PodTemplate;
use serde_json::Value;

use super::common::{COORDINATOR, Role, TRAINER, VERIFIERS};
use super::sources::{HOST_PATH, RESERVED_FOLDERS, RESERVED_PREFIX, covers};
use crate::validate::{Policy, Problem};

/// Fields of the pod that the operator or the StatefulSet sets.
const POD_FIELDS: [&str; 4] = ["restartPolicy", "hostname", "subdomain", "readinessGates"];
/// Fields of the main container that the operator sets, and the field of the spec to use instead.
const CONTAINER_FIELDS: [(&str, Option<&str>); 8] = [
    ("command", None),
    ("args", None),
    ("ports", None),
    ("livenessProbe", None),
    ("readinessProbe", None),
    ("startupProbe", None),
    ("resources", Some("resources")),
    ("image", Some("image")),
];
/// Fields of a pod that give the commands of rewards its tokens and keys.
const EXPOSING_FIELDS: [&str; 3] =
    ["shareProcessNamespace", "hostPID", "automountServiceAccountToken"];
/// Environment variables that programs of the main container read.
const VARIABLES: [&str; 2] = ["POD_NAME", "POD_IP"];

pub(super) fn check_template(
    role: Role<'_>,
    template: &PodTemplate,
    volumes: &[VolumeSpec],
    policy: Policy,
    problems: &mut Vec<Problem>,
) {
    let path = format!("spec.{}.template", role.field);
    for label in template.metadata.labels.keys().filter(|label| is_reserved(label)) {
        problems.push(owned(&format!("{path}.metadata.labels.{label}"), None));
    }
    for field in POD_FIELDS.into_iter().filter(|field| template.spec.contains_key(*field)) {
        problems.push(owned(&format!("{path}.spec.{field}"), None));
    }
    let spec = Value::Object(template.spec.clone());
    if let Err(error) = serde_path_to_error::deserialize::<_, PodSpec>(&spec) {
        let message = error.inner().to_string();
        return problems.push(Problem::new(format!("{path}.spec.{}", error.path()), message));
    }
    for list in ["containers", "initContainers"] {
        for (index, container) in items(&spec, list) {
            let path = format!("{path}.spec.{list}[{index}]");
            check_container(role, list, &path, container, problems);
        }
    }
    for (index, volume) in items(&spec, "volumes") {
        let path = format!("{path}.spec.volumes[{index}]");
        let name = volume["name"].as_str().unwrap_or_default();
        check_volume_name(&path, volume, problems);
        if volumes.iter().any(|volume| volume.name == name) {
            let message = format!("`{name}` is the name of a volume of spec.volumes");
            problems.push(Problem::new(format!("{path}.name"), message));
        }
        if volume.get("hostPath").is_some() && !policy.allow_host_path {
            problems.push(Problem::new(format!("{path}.hostPath"), HOST_PATH));
        }
    }
}

/// Checks that programs of rewards, tools and agents stay in their container.
pub(super) fn check_isolation(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let coordinator = spec.coordinator.template.as_ref().filter(|_| spec.runs_programs());
    let verifiers = spec.verifiers.as_ref().and_then(|verifiers| verifiers.template.as_ref());
    for (role, template) in [(COORDINATOR, coordinator), (VERIFIERS, verifiers)] {
        let Some(template) = template else { continue };
        let is_set = |field: &&str| template.spec.get(*field) == Some(&Value::Bool(true));
        for field in EXPOSING_FIELDS.into_iter().filter(is_set) {
            problems.push(Problem::new(
                format!("spec.{}.template.spec.{field}", role.field),
                "must not be true: it gives the commands of rewards access to tokens",
            ));
        }
    }
}

fn check_container(
    role: Role<'_>,
    list: &str,
    path: &str,
    container: &Value,
    problems: &mut Vec<Problem>,
) {
    let Some(name) = container["name"].as_str() else {
        return problems.push(Problem::new(format!("{path}.name"), "is missing"));
    };
    for (index, mount) in items(container, "volumeMounts") {
        let path = format!("{path}.volumeMounts[{index}]");
        let folder = mount["mountPath"].as_str().unwrap_or_default().trim_end_matches('/');
        if RESERVED_FOLDERS.iter().any(|reserved| covers(folder, reserved)) {
            problems.push(owned(&format!("{path}.mountPath"), None));
        }
        check_volume_name(&path, mount, problems);
    }
    let runs_programs = role == VERIFIERS || role == COORDINATOR;
    if (role == VERIFIERS && name == CONTAINER_BRIDGE)
        || (runs_programs && name == CONTAINER_RUNNER)
    {
        let message = format!("`{name}` is the name of a container of the operator");
        return problems.push(Problem::new(format!("{path}.name"), message));
    }
    check_privileges(role, path, name, &container["securityContext"], problems);
    if list == "initContainers" && name == role.container {
        let message = format!("`{name}` is the name of the main container");
        return problems.push(Problem::new(format!("{path}.name"), message));
    }
    let is_own = name == role.container || (role == COORDINATOR && name == CONTAINER_REWARDS);
    if !is_own && container.get("image").is_none_or(|image| image == "") {
        let message = format!("is missing; the operator sets that of `{}` only", role.container);
        problems.push(Problem::new(format!("{path}.image"), message));
    }
    if role == COORDINATOR && name == CONTAINER_REWARDS {
        for field in ["command", "args"].into_iter().filter(|field| container.get(field).is_some())
        {
            problems.push(owned(&format!("{path}.{field}"), None));
        }
    }
    if name != role.container {
        return;
    }
    for (field, instead) in CONTAINER_FIELDS {
        if container.get(field).is_some() {
            // Groups of the trainer have its image.
            let is_shared = field == "image" && role.container == TRAINER.container;
            let owner = if is_shared { TRAINER.field } else { role.field };
            let instead = instead.map(|field| format!("spec.{owner}.{field}"));
            problems.push(owned(&format!("{path}.{field}"), instead.as_deref()));
        }
    }
    for (index, variable) in items(container, "env") {
        if variable["name"].as_str().is_some_and(|name| VARIABLES.contains(&name)) {
            problems.push(owned(&format!("{path}.env[{index}]"), None));
        }
    }
}

/// Kubernetes rejects privileged containers without privilege escalation, which the containers of
/// the operator do not allow unless the template does.
fn check_privileges(
    role: Role<'_>,
    path: &str,
    name: &str,
    context: &Value,
    problems: &mut Vec<Problem>,
) {
    let escalation = &context["allowPrivilegeEscalation"];
    let is_own = name == role.container || name == CONTAINER_REWARDS;
    if context["privileged"] == true && (*escalation == false || escalation.is_null() && is_own) {
        problems.push(Problem::new(
            format!("{path}.securityContext.privileged"),
            "needs allowPrivilegeEscalation: true",
        ));
    }
}

/// Checks the name in a volume or a mount. Tokens, keys and runs are in volumes of the operator.
fn check_volume_name(path: &str, object: &Value, problems: &mut Vec<Problem>) {
    if object["name"].as_str().is_some_and(|name| name.starts_with(RESERVED_PREFIX)) {
        let message = format!("names that start with `{RESERVED_PREFIX}` are reserved");
        problems.push(Problem::new(format!("{path}.name"), message));
    }
}

fn items<'v>(value: &'v Value, list: &str) -> impl Iterator<Item = (usize, &'v Value)> {
    value.get(list).and_then(Value::as_array).into_iter().flatten().enumerate()
}

fn owned(path: &str, instead: Option<&str>) -> Problem {
    let message = instead.map_or_else(
        || "the operator sets this field; remove it".to_owned(),
        |field| format!("the operator sets this field; remove it and use {field}"),
    );
    Problem::new(path, message)
}

fn is_reserved(label: &str) -> bool {
    let ours = [LABEL_NAME, LABEL_INSTANCE, LABEL_COMPONENT, LABEL_MANAGED_BY];
    label.split('/').next() == Some(GROUP) || ours.contains(&label)
}
