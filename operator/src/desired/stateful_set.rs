//! StatefulSet of a role. Its pods start in parallel, and a new template does not replace them
//! (OnDelete).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use rljob_crds::names::ANNOTATION_TEMPLATE;
use rljob_crds::roles::InferenceSpec;
use serde_json::{Value, json};

use super::{Pinned, Role, Settings, gang, meta, pin, pod, rewards, runner_copy, template};
use crate::decide::{Wanted, WantedRoles};
use crate::validate::ValidatedJob;

pub(super) fn build_stateful_set(
    job: &ValidatedJob,
    role: Role,
    wanted: Wanted,
    settings: &Settings,
    pinned: &Pinned,
) -> Value {
    let mut template = rendered_template(job, role, settings);
    gang::join(&mut template, job, role);
    let text = pin::unless_pinned(pin::text(&template), pinned.templates.get(&role));
    let template = if pin::is_mark(&text) { json!({}) } else { template };
    let name = meta::role_name(job, role);
    let mut metadata = meta::child(job, name.clone(), Some(role));
    metadata.annotations = Some(BTreeMap::from([(ANNOTATION_TEMPLATE.to_owned(), text)]));
    let set = StatefulSet {
        metadata,
        spec: Some(StatefulSetSpec {
            replicas: Some(replicas(job, role, wanted)),
            selector: meta::role_selector(job, role),
            service_name: Some(name),
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                rolling_update: None,
            }),
            revision_history_limit: Some(2),
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    };
    // Serialization of plain data with text keys cannot fail.
    let mut set = serde_json::to_value(set).unwrap_or_default();
    // The template keeps fields that are newer than the typed one.
    if let Some(typed) = set.pointer_mut("/spec/template") {
        *typed = template;
    }
    set
}

/// The pod template of a role, as a start would render it, except its membership of a gang.
pub fn rendered_template(job: &ValidatedJob, role: Role, settings: &Settings) -> Value {
    let mut template = pod::build_template(job, role, settings);
    rewards::add_runner(job, role, &mut template);
    rewards::add_bridge(job, role, settings, &mut template);
    runner_copy::add(job, role, settings, &mut template);
    template::merge(template, job, role)
}

fn replicas(job: &ValidatedJob, role: Role, wanted: Wanted) -> i32 {
    let Wanted { roles: wanted, verifiers } = wanted;
    match role {
        _ if wanted == WantedRoles::Nothing => 0,
        _ if wanted == WantedRoles::WithoutGpus && gpus(job, role) > 0 => 0,
        Role::Inference => job.spec.inference.pods_of(match wanted {
            WantedRoles::EverythingWith { engines } => engines,
            _ => job.spec.inference.replicas,
        }),
        Role::Evaluation | Role::Reward | Role::Teacher => {
            role.engines(&job.spec).map_or(0, InferenceSpec::pods)
        }
        Role::Coordinator => 1,
        Role::Trainer => job.spec.trainers(),
        Role::Group => job.spec.group_replicas(),
        Role::Verifier => verifiers,
    }
}

/// GPUs of each pod.
fn gpus(job: &ValidatedJob, role: Role) -> u32 {
    match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
            role.engines(&job.spec).map_or(0, InferenceSpec::gpus)
        }
        Role::Coordinator | Role::Verifier => 0,
        Role::Trainer => job.spec.trainer.gpus(),
        Role::Group => {
            let group = job.spec.frozen_group();
            group.map_or(0, |group| job.spec.trainer.of_group(group).gpus())
        }
    }
}
