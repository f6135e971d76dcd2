//! Placement of the pods of an admitted job: labels, annotations, node selectors and tolerations of
//! the assigned ResourceFlavors and of admission checks.

use std::collections::{BTreeMap, BTreeSet};

use rljob_crds::RLJobSpec;
use rljob_crds::template::PodTemplate;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::workload::Workload;
use super::{ANNOTATION_WORKLOAD, LABEL_POD_SET, TOPOLOGY_GATE, topology_annotation};
use crate::desired::Role;
use crate::desired::topology::hint;

/// Placement of each role's pods.
pub type Placements = BTreeMap<Role, Placement>;

/// What an admission adds to a pod template. Values replace those of the job.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Placement {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Value>,
    /// Whether Kueue assigns nodes to the pods, which wait for it behind a scheduling gate.
    pub is_gated: bool,
}

/// Spec of a ResourceFlavor, reduced to what its nodes require of pods.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Flavor {
    pub node_labels: BTreeMap<String, String>,
    pub tolerations: Vec<Value>,
}

/// Names of the assigned flavors.
pub fn flavors(workload: &Workload) -> BTreeSet<&str> {
    let admission = workload.status.admission.iter();
    let assignments = admission.flat_map(|admission| &admission.pod_set_assignments);
    assignments.flat_map(|assignment| assignment.flavors.values().map(String::as_str)).collect()
}

/// Placement of every role that has quota from the Workload of this name.
pub fn placements(
    name: &str,
    workload: &Workload,
    flavors: &BTreeMap<String, Flavor>,
) -> Placements {
    let Some(admission) = &workload.status.admission else { return Placements::new() };
    let mut placements = Placements::new();
    for assignment in &admission.pod_set_assignments {
        let Some(role) = Role::parse(&assignment.name) else { continue };
        let mut placement = Placement::default();
        placement.labels.insert(LABEL_POD_SET.to_owned(), assignment.name.clone());
        if assignment.topology_assignment.is_some() {
            placement.is_gated = true;
            placement.annotations.insert(ANNOTATION_WORKLOAD.to_owned(), name.to_owned());
        }
        let assigned: BTreeSet<&String> = assignment.flavors.values().collect();
        for flavor in assigned.into_iter().filter_map(|name| flavors.get(name)) {
            placement.node_selector.extend(flavor.node_labels.clone());
            placement.add_tolerations(&flavor.tolerations);
        }
        let checks = workload.status.admission_checks.iter();
        let updates = checks.flat_map(|check| &check.pod_set_updates);
        for update in updates.filter(|update| update.name == assignment.name) {
            placement.labels.extend(update.labels.clone());
            placement.annotations.extend(update.annotations.clone());
            placement.node_selector.extend(update.node_selector.clone());
            placement.add_tolerations(&update.tolerations);
        }
        placements.insert(role, placement);
    }
    placements
}

/// Placement of the roles whose templates or hints request a topology, before the Workload of this
/// name has nodes.
pub fn requested(name: &str, spec: &RLJobSpec) -> Placements {
    let verifiers = spec.verifiers.as_ref();
    let engines = Role::ALL.into_iter().filter_map(|role| {
        let engines = role.engines(spec)?;
        Some((role, engines.template.as_ref()))
    });
    let others = [
        (Role::Coordinator, spec.coordinator.template.as_ref()),
        (Role::Trainer, spec.trainer.template.as_ref()),
        (Role::Group, spec.frozen_group().and_then(|group| group.template.as_ref())),
        (Role::Verifier, verifiers.and_then(|pods| pods.template.as_ref())),
    ];
    let requests = ["required", "preferred", "unconstrained"].map(topology_annotation);
    let is_requested = |template: &PodTemplate| {
        requests.iter().any(|request| template.metadata.annotations.contains_key(request))
    };
    let requested = engines.chain(others).filter(|(role, template)| {
        hint(spec, *role).is_some() || template.is_some_and(is_requested)
    });
    let gated = |(role, _): (Role, _)| {
        let labels = [(LABEL_POD_SET.to_owned(), role.as_str().to_owned())].into();
        let annotations = [(ANNOTATION_WORKLOAD.to_owned(), name.to_owned())].into();
        (role, Placement { labels, annotations, is_gated: true, ..Placement::default() })
    };
    requested.map(gated).collect()
}

impl Placement {
    fn add_tolerations(&mut self, tolerations: &[Value]) {
        for toleration in tolerations {
            if !self.tolerations.contains(toleration) {
                self.tolerations.push(toleration.clone());
            }
        }
    }

    /// `has_hint`: the role has a topology hint, whose annotation its pods get.
    fn apply(&self, template: &mut PodTemplate, has_hint: bool) {
        template.metadata.labels.extend(self.labels.clone());
        template.metadata.annotations.extend(self.annotations.clone());
        if !self.node_selector.is_empty() {
            let selector = template.spec.entry("nodeSelector").or_insert_with(|| Map::new().into());
            if let Some(selector) = selector.as_object_mut() {
                selector.extend(fields(&self.node_selector));
            }
        }
        if self.is_gated {
            add(&mut template.spec, "schedulingGates", &[json!({"name": TOPOLOGY_GATE})]);
            // Kueue ignores pods without one of these annotations.
            let requests = ["required", "preferred", "unconstrained"].map(topology_annotation);
            let annotations = &mut template.metadata.annotations;
            let is_requested = requests.iter().any(|request| annotations.contains_key(request));
            if !is_requested && !has_hint {
                annotations.insert(topology_annotation("unconstrained"), "true".to_owned());
            }
        }
        add(&mut template.spec, "tolerations", &self.tolerations);
    }
}

/// Appends the items that the list of a pod template lacks.
fn add(spec: &mut Map<String, Value>, list: &str, items: &[Value]) {
    if items.is_empty() {
        return;
    }
    let all = spec.entry(list).or_insert_with(|| Value::Array(vec![]));
    if let Some(all) = all.as_array_mut() {
        let new: Vec<Value> = items.iter().filter(|item| !all.contains(item)).cloned().collect();
        all.extend(new);
    }
}

fn fields(texts: &BTreeMap<String, String>) -> impl Iterator<Item = (String, Value)> {
    texts.iter().map(|(key, value)| (key.clone(), Value::String(value.clone())))
}

/// Adds the placements to the templates of the job's roles.
pub fn place(spec: &mut RLJobSpec, placements: &Placements) {
    for (role, placement) in placements {
        let has_hint = hint(spec, *role).is_some();
        let template = match role {
            Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
                let purpose = role.purpose();
                match purpose.and_then(|purpose| spec.engines_mut(purpose)) {
                    Some(engines) => &mut engines.template,
                    None => continue,
                }
            }
            Role::Coordinator => &mut spec.coordinator.template,
            Role::Trainer => &mut spec.trainer.template,
            Role::Group => match spec.frozen_group_mut() {
                Some(group) => &mut group.template,
                None => continue,
            },
            Role::Verifier => match &mut spec.verifiers {
                Some(verifiers) => &mut verifiers.template,
                None => continue,
            },
        };
        placement.apply(template.get_or_insert_default(), has_hint);
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::admitted;
    use super::*;
    use crate::validate::test_support::with_spec;

    #[test]
    fn pods_get_the_selectors_and_tolerations_of_their_flavors_and_of_admission_checks() {
        let mut workload = admitted(2);
        assert_eq!(flavors(&workload), ["spot"].into());
        let check = json!({
            "name": "provision",
            "podSetUpdates": [{
                "name": "trainer",
                "annotations": {"autoscaler/request": "r-1"},
                "labels": {"zone": "a"},
                "nodeSelector": {"zone": "a"},
                "tolerations": [{"key": "new", "operator": "Exists"}],
            }],
        });
        workload.status.admission_checks = vec![serde_json::from_value(check).unwrap()];
        let spot = json!({
            "nodeLabels": {"pool": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "topologyName": "ignored",
        });
        let spot: Flavor = serde_json::from_value(spot).unwrap();
        let placements = placements("w", &workload, &[("spot".to_owned(), spot)].into());
        let template = json!({
            "metadata": {"labels": {"team": "a"}},
            "spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "spot"}]},
        });
        let mut job = with_spec(&json!({"trainer": {"template": template}}));
        place(&mut job.spec, &placements);
        assert_eq!(
            serde_json::to_value(&job.spec.trainer.template).unwrap(),
            json!({
                "metadata": {
                    "labels": {
                        "kueue.x-k8s.io/podset": "trainer", "team": "a", "zone": "a",
                    },
                    "annotations": {"autoscaler/request": "r-1"},
                },
                "spec": {
                    "nodeSelector": {"disk": "ssd", "pool": "spot", "zone": "a"},
                    "tolerations": [
                        {"key": "spot"},
                        {"key": "spot", "operator": "Exists"},
                        {"key": "new", "operator": "Exists"},
                    ],
                },
            })
        );
        assert_eq!(
            serde_json::to_value(&job.spec.coordinator.template).unwrap(),
            json!({
                "metadata": {"labels": {"kueue.x-k8s.io/podset": "coordinator"}},
                "spec": {
                    "nodeSelector": {"pool": "spot"},
                    "tolerations": [{"key": "spot", "operator": "Exists"}],
                },
            })
        );
    }

    #[test]
    fn pods_with_a_topology_wait_until_kueue_assigns_their_nodes() {
        let mut workload = admitted(2);
        let admission = workload.status.admission.as_mut().unwrap();
        admission.pod_set_assignments[2].topology_assignment = Some(json!({"levels": ["rack"]}));
        let mut job = with_spec(&json!({}));
        place(&mut job.spec, &placements("w", &workload, &BTreeMap::new()));
        assert_eq!(
            serde_json::to_value(&job.spec.trainer.template).unwrap(),
            json!({
                "metadata": {
                    "labels": {"kueue.x-k8s.io/podset": "trainer"},
                    "annotations": {
                        "kueue.x-k8s.io/podset-unconstrained-topology": "true",
                        "kueue.x-k8s.io/workload": "w",
                    },
                },
                "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]},
            })
        );
        assert_eq!(job.spec.inference.template.as_ref().unwrap().spec, Map::new());

        // The pods of a role with a hint get its annotation.
        let topology = json!({"trainer": {"required": "rack"}});
        let mut job = with_spec(&json!({"scheduling": {"topology": topology}}));
        let requested = requested("w", &job.spec);
        assert_eq!(requested.keys().collect::<Vec<_>>(), [&Role::Trainer]);
        place(&mut job.spec, &requested);
        let template = job.spec.trainer.template.clone().unwrap();
        let annotations = [("kueue.x-k8s.io/workload".to_owned(), "w".to_owned())].into();
        assert_eq!(template.metadata.annotations, annotations);
        assert_eq!(template.spec["schedulingGates"], json!([{"name": "kueue.x-k8s.io/topology"}]));
    }
}
