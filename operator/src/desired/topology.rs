//! Topology hints of a role: pod affinity, or in a queue of Kueue an annotation that requests the
//! topology.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use rljob_crds::RLJobSpec;
use rljob_crds::names::{LABEL_JOB, LABEL_ROLE};

use super::{Role, Settings};
use crate::queue::{queue_name, topology_annotation};
use crate::validate::Job;

/// Weight of a preferred domain: the highest.
const WEIGHT: i32 = 100;

/// Topology key of a role's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint<'a> {
    Required(&'a str),
    Preferred(&'a str),
}

/// The hint for a role.
pub fn hint(spec: &RLJobSpec, role: Role) -> Option<Hint<'_>> {
    let topology = spec.scheduling.topology.as_ref()?;
    match role {
        Role::Group if spec.frozen_group().is_none() => None,
        Role::Trainer | Role::Group => {
            let trainer = topology.trainer.as_ref()?;
            let required = trainer.required.as_deref().map(Hint::Required);
            required.or(trainer.preferred.as_deref().map(Hint::Preferred))
        }
        Role::Inference => Some(Hint::Preferred(&topology.inference.as_ref()?.preferred)),
        Role::Evaluation | Role::Reward | Role::Teacher | Role::Coordinator | Role::Verifier => {
            None
        }
    }
}

/// Annotations of the pods of a job in a queue, from which Kueue places them.
pub(super) fn annotations(job: &Job, role: Role, settings: &Settings) -> BTreeMap<String, String> {
    let hint = hint(&job.spec, role).filter(|_| is_queued(job, settings));
    let (request, key) = match hint {
        Some(Hint::Required(key)) => ("required", key),
        Some(Hint::Preferred(key)) => ("preferred", key),
        None => return BTreeMap::new(),
    };
    [(topology_annotation(request), key.to_owned())].into()
}

/// Affinity of the pods of a job without a queue.
pub(super) fn affinity(job: &Job, role: Role, settings: &Settings) -> Option<Affinity> {
    let hint = hint(&job.spec, role).filter(|_| !is_queued(job, settings))?;
    let term = |key: &str| PodAffinityTerm {
        label_selector: Some(near(job, role)),
        topology_key: key.to_owned(),
        ..PodAffinityTerm::default()
    };
    let pod_affinity = match hint {
        Hint::Required(key) => PodAffinity {
            required_during_scheduling_ignored_during_execution: Some(vec![term(key)]),
            ..PodAffinity::default()
        },
        Hint::Preferred(key) => {
            let pod_affinity_term = term(key);
            let term = WeightedPodAffinityTerm { weight: WEIGHT, pod_affinity_term };
            PodAffinity {
                preferred_during_scheduling_ignored_during_execution: Some(vec![term]),
                ..PodAffinity::default()
            }
        }
    };
    Some(Affinity { pod_affinity: Some(pod_affinity), ..Affinity::default() })
}

fn is_queued(job: &Job, settings: &Settings) -> bool {
    settings.kueue && queue_name(job).is_some()
}

/// Selects the pods that a role's pods are near: its own, and for engines those of the trainer.
fn near(job: &Job, role: Role) -> LabelSelector {
    let roles = match role {
        Role::Inference => vec![role.as_str().to_owned(), Role::Trainer.as_str().to_owned()],
        _ => vec![role.as_str().to_owned()],
    };
    LabelSelector {
        match_labels: Some([(LABEL_JOB.to_owned(), job.name.clone())].into()),
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: LABEL_ROLE.to_owned(),
            operator: "In".to_owned(),
            values: Some(roles),
        }]),
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::names::LABEL_QUEUE;
    use serde_json::{Value, json};

    use super::*;
    use crate::desired::rendered_template;
    use crate::validate::ValidatedJob;
    use crate::validate::test_support::{merge, with_spec};

    const ZONE: &str = "topology.kubernetes.io/zone";

    fn job(trainer: &Value, more: &Value) -> ValidatedJob {
        let topology = json!({"trainer": trainer, "inference": {"preferred": "rack"}});
        let mut spec = json!({"scheduling": {"topology": topology}});
        merge(&mut spec, more);
        with_spec(&spec)
    }

    fn term(key: &str, roles: &[&str]) -> Value {
        let role = json!({"key": "rljob.dev/role", "operator": "In", "values": roles});
        json!({
            "labelSelector": {
                "matchLabels": {"rljob.dev/job": "sums"}, "matchExpressions": [role],
            },
            "topologyKey": key,
        })
    }

    fn affinity_of(job: &ValidatedJob, role: Role) -> Option<Value> {
        let mut template = rendered_template(job, role, &Settings::new("rljob:7"));
        assert_eq!(template["metadata"].get("annotations"), None);
        template["spec"].get_mut("affinity").map(Value::take)
    }

    #[test]
    fn hints_are_affinities_of_trainers_to_themselves_and_of_engines_to_both() {
        let job = job(&json!({"required": ZONE}), &json!({}));
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let trainer = json!({"podAffinity": {required: [term(ZONE, &["trainer"])]}});
        assert_eq!(affinity_of(&job, Role::Trainer), Some(trainer));
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let near = |key: &str, roles: &[&str]| {
            let term = json!({"weight": 100, "podAffinityTerm": term(key, roles)});
            json!({"podAffinity": {preferred: [term]}})
        };
        let engines = near("rack", &["inference", "trainer"]);
        assert_eq!(affinity_of(&job, Role::Inference), Some(engines));
        assert_eq!(affinity_of(&job, Role::Coordinator), None);
        let job = super::tests::job(&json!({"preferred": ZONE}), &json!({}));
        assert_eq!(affinity_of(&job, Role::Trainer), Some(near(ZONE, &["trainer"])));
        assert_eq!(affinity_of(&with_spec(&json!({})), Role::Trainer), None);
    }

    #[test]
    fn terms_of_a_template_are_added_to_those_of_the_hint() {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let own =
            json!({"labelSelector": {"matchLabels": {"app": "store"}}, "topologyKey": "rack"});
        let affinity = json!({"podAffinity": {required: [own]}, "podAntiAffinity": {}});
        let template = json!({"spec": {"affinity": affinity}});
        let job = job(&json!({"required": ZONE}), &json!({"trainer": {"template": template}}));
        let both = json!({
            "podAffinity": {required: [term(ZONE, &["trainer"]), own]}, "podAntiAffinity": {},
        });
        assert_eq!(affinity_of(&job, Role::Trainer), Some(both));
    }

    #[test]
    fn hints_of_a_queued_job_are_annotations_of_kueue() {
        let mut job = job(&json!({"required": ZONE}), &json!({}));
        job.labels.insert(LABEL_QUEUE.to_owned(), "research".to_owned());
        let settings = Settings { kueue: true, ..Settings::new("rljob:7") };
        let of = |role| {
            let mut template = rendered_template(&job, role, &settings);
            assert_eq!(template["spec"].get("affinity"), None);
            template["metadata"].get_mut("annotations").map(Value::take)
        };
        let trainer = json!({"kueue.x-k8s.io/podset-required-topology": ZONE});
        assert_eq!(of(Role::Trainer), Some(trainer));
        let engines = json!({"kueue.x-k8s.io/podset-preferred-topology": "rack"});
        assert_eq!(of(Role::Inference), Some(engines));
        assert_eq!(of(Role::Coordinator), None);
    }
}
