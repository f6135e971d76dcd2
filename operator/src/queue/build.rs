//! The desired Workload of a job: a pod set for each role that has pods, from the templates that
//! the job would start with.

use rljob_crds::roles::InferenceSpec;
use serde_json::{Value, json};

use super::workload::PriorityClass;
use super::{
    API_GROUP, API_VERSION, LABEL_JOB_UID, priority_class, queue_name, topology_annotation,
    workload_name,
};
use crate::desired::{Role, Settings, meta, rendered_template};
use crate::validate::{Job, ValidatedJob};

/// Label of the pods of StatefulSets with their ordinal.
const LABEL_POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// A priority class and its value, which Kueue requires beside the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Priority {
    pub class: PriorityClass,
    pub value: i32,
}

/// The class of the job's priority in its queue: that of the label, else that of its pods.
pub fn wanted_class(job: &Job) -> Option<PriorityClass> {
    let class = |group: &str, kind: &str, name: &str| PriorityClass {
        group: group.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    let of_pods = job.spec.scheduling.priority_class_name.as_deref();
    priority_class(job)
        .map(|name| class(API_GROUP, "WorkloadPriorityClass", name))
        .or_else(|| of_pods.map(|name| class("scheduling.k8s.io", "PriorityClass", name)))
}

/// The Workload to apply; `None` for a job without a queue.
pub fn build_workload(
    job: &ValidatedJob,
    settings: &Settings,
    priority: Option<&Priority>,
) -> Option<Value> {
    let queue = queue_name(job)?;
    let mut metadata = meta::child(job, workload_name(job), None);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(LABEL_JOB_UID.to_owned(), job.uid.clone());
    let pod_sets: Vec<Value> = Role::ALL
        .into_iter()
        .filter(|role| replicas(job, *role) > 0)
        .map(|role| pod_set(job, role, settings))
        .collect();
    let mut spec = json!({"queueName": queue, "podSets": pod_sets});
    if let (Some(priority), Some(fields)) = (priority, spec.as_object_mut()) {
        fields.insert("priorityClassRef".to_owned(), json!(priority.class));
        fields.insert("priority".to_owned(), json!(priority.value));
    }
    Some(json!({
        "apiVersion": format!("{API_GROUP}/{API_VERSION}"),
        "kind": "Workload",
        "metadata": metadata,
        "spec": spec,
    }))
}

fn pod_set(job: &ValidatedJob, role: Role, settings: &Settings) -> Value {
    let (count, template) = (replicas(job, role), rendered_template(job, role, settings));
    let mut set = json!({"name": role.as_str(), "count": count, "template": template});
    let least = job.spec.inference.min_replicas.map(|least| job.spec.inference.pods_of(least));
    let least = least.filter(|least| *least < count);
    if let (Role::Inference, Some(least), Some(fields)) = (role, least, set.as_object_mut()) {
        fields.insert("minCount".to_owned(), json!(least));
    }
    let request = topology_request(&set);
    if let (Some(request), Some(fields)) = (request, set.as_object_mut()) {
        fields.insert("topologyRequest".to_owned(), request);
    }
    set
}

/// The request of a pod set whose template has an annotation of Kueue for its topology.
fn topology_request(set: &Value) -> Option<Value> {
    let annotations = set.pointer("/template/metadata/annotations")?;
    let value = |name: &str| annotations.get(topology_annotation(name));
    let (field, value) = if let Some(level) = value("required") {
        ("required", level.clone())
    } else if let Some(level) = value("preferred") {
        ("preferred", level.clone())
    } else {
        ("unconstrained", json!(value("unconstrained")? == "true"))
    };
    Some(json!({field: value, "podIndexLabel": LABEL_POD_INDEX}))
}

fn replicas(job: &Job, role: Role) -> i32 {
    match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
            role.engines(&job.spec).map_or(0, InferenceSpec::pods)
        }
        Role::Coordinator => 1,
        Role::Trainer => job.spec.trainers(),
        Role::Group => job.spec.group_replicas(),
        // Quota for the most pods: their number changes while the job runs.
        Role::Verifier => job.spec.verifiers.as_ref().map_or(0, |pods| pods.max_replicas),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::queued_job;
    use super::*;
    use crate::validate::test_support::{validated, with_spec};

    #[test]
    fn a_workload_has_a_pod_set_for_each_role_with_pods() {
        let (mut job, settings) = (queued_job(), Settings::new("rljob:7"));
        assert_eq!(build_workload(&validated(), &settings, None), None);
        let class = PriorityClass {
            group: "kueue.x-k8s.io".to_owned(),
            kind: "WorkloadPriorityClass".to_owned(),
            name: "high".to_owned(),
        };
        let priority = Priority { class, value: 1000 };
        let mut workload = build_workload(&job, &settings, Some(&priority)).unwrap();
        for set in workload["spec"]["podSets"].as_array_mut().unwrap() {
            let role = Role::parse(set["name"].as_str().unwrap()).unwrap();
            assert_eq!(set["template"].take(), rendered_template(&job, role, &settings));
        }
        insta::assert_yaml_snapshot!(workload);
        job.spec.inference.replicas = 0;
        let without = build_workload(&job, &settings, None).unwrap();
        assert_eq!(without["spec"]["podSets"].as_array().unwrap().len(), 2);
        assert!(without["spec"].get("priority").is_none(), "{without}");
    }

    #[test]
    fn a_job_that_only_evaluates_needs_no_quota_for_trainers() {
        let mut job = queued_job();
        job.spec.algorithm = serde_json::from_value(json!({"evaluation": {}})).unwrap();
        let workload = build_workload(&job, &Settings::new("rljob:7"), None).unwrap();
        let sets = workload["spec"]["podSets"].as_array().unwrap().iter();
        let names: Vec<&Value> = sets.map(|set| &set["name"]).collect();
        assert_eq!(names, ["inference", "coordinator"]);
    }

    #[test]
    fn annotations_of_a_template_request_a_topology() {
        let request = |annotations: Value| {
            let set = json!({"template": {"metadata": {"annotations": annotations}}});
            topology_request(&set)
        };
        let index = "apps.kubernetes.io/pod-index";
        assert_eq!(request(json!({"other": "rack"})), None);
        assert_eq!(
            request(json!({"kueue.x-k8s.io/podset-required-topology": "rack"})),
            Some(json!({"required": "rack", "podIndexLabel": index}))
        );
        assert_eq!(
            request(json!({"kueue.x-k8s.io/podset-preferred-topology": "block"})),
            Some(json!({"preferred": "block", "podIndexLabel": index}))
        );
        assert_eq!(
            request(json!({"kueue.x-k8s.io/podset-unconstrained-topology": "true"})),
            Some(json!({"unconstrained": true, "podIndexLabel": index}))
        );
    }

    #[test]
    fn hints_request_the_topology_of_their_pod_sets() {
        let mut job = queued_job();
        let topology =
            json!({"trainer": {"required": "rack"}, "inference": {"preferred": "block"}});
        job.spec.scheduling.topology = serde_json::from_value(topology).unwrap();
        let settings = Settings { kueue: true, ..Settings::new("rljob:7") };
        let workload = build_workload(&job, &settings, None).unwrap();
        let sets = workload["spec"]["podSets"].as_array().unwrap().iter();
        let requests: Vec<&Value> = sets.map(|set| &set["topologyRequest"]).collect();
        let index = "apps.kubernetes.io/pod-index";
        let engines = json!({"preferred": "block", "podIndexLabel": index});
        let trainer = json!({"required": "rack", "podIndexLabel": index});
        assert_eq!(requests, [&engines, &Value::Null, &trainer]);
    }

    #[test]
    fn engines_may_be_admitted_partially() {
        let mut job = queued_job();
        let min_count = |job: &ValidatedJob| {
            let workload = build_workload(job, &Settings::new("rljob:7"), None).unwrap();
            let sets = workload["spec"]["podSets"].as_array().unwrap().iter();
            sets.map(|set| set.get("minCount").cloned()).collect::<Vec<_>>()
        };
        job.spec.inference.min_replicas = Some(1);
        assert_eq!(min_count(&job), [Some(json!(1)), None, None]);
        job.spec.inference.min_replicas = Some(2);
        assert_eq!(min_count(&job), [None, None, None], "all are needed");
        job.spec.inference.min_replicas = Some(1);
        job.spec.inference.pods_per_replica = 4;
        assert_eq!(min_count(&job), [Some(json!(4)), None, None]);
        assert_eq!(replicas(&job, Role::Inference), 8);
    }

    #[test]
    fn the_label_determines_the_priority_before_the_class_of_the_pods() {
        let mut job = with_spec(&json!({"scheduling": {"priorityClassName": "urgent"}}));
        let class = |job: &Job| wanted_class(job).map(|class| (class.kind, class.name));
        assert_eq!(class(&job), Some(("PriorityClass".to_owned(), "urgent".to_owned())));
        job.labels.insert(super::super::LABEL_PRIORITY.to_owned(), "high".to_owned());
        assert_eq!(class(&job), Some(("WorkloadPriorityClass".to_owned(), "high".to_owned())));
        assert_eq!(class(&validated()), None);
    }
}
