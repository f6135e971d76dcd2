//! Gang of a job: its PodGroup, and the fields that make pods its members.
//!
//! ```text
//!  not started    PodGroup needs all engines and trainers: none gets a node before all have one
//!  started        PodGroup needs 1 pod: lost and added pods get nodes one by one
//! ```
//!
//! A PodGroup exists while the job has pods. The coordinator is no member: it starts before pods
//! with GPUs.

#![expect(
    clippy::indexing_slicing,
    reason = "rendered templates are objects, whose fields JSON values index without panics"
)]

use k8s_openapi::api::core::v1::PodSpec;
use rljob_crds::gang::GangScheduler;
use serde_json::{Value, json};

use super::requests::{self, Requests};
use super::stateful_set::rendered_template;
use super::{Role, Settings, meta};
use crate::children::{Child, ChildName, Kind};
use crate::validate::{Job, ValidatedJob};

/// Label of pods for the coscheduling plugin.
const LABEL_COSCHEDULING: &str = "scheduling.x-k8s.io/pod-group";
/// Annotation of pods for Volcano.
const ANNOTATION_VOLCANO: &str = "scheduling.k8s.io/group-name";
/// Roles whose pods are members.
const MEMBERS: [Role; 2] = [Role::Inference, Role::Trainer];

/// Kind and name of the job's PodGroup; `None` without a gang.
pub fn pod_group_name(job: &Job) -> Option<ChildName> {
    Some((Kind::PodGroup(scheduler(job)?), name(job)))
}

/// Name of the PodGroup, whatever its kind.
pub fn name(job: &Job) -> String {
    format!("{}-gang", job.name)
}

fn scheduler(job: &Job) -> Option<GangScheduler> {
    job.spec.scheduling.gang.as_ref()?.scheduler()
}

/// Whether pods of the role are members.
pub fn is_member(role: Role) -> bool {
    MEMBERS.contains(&role)
}

/// Number of members.
pub fn size(job: &Job) -> i32 {
    MEMBERS.into_iter().map(|role| replicas(job, role)).fold(0, i32::saturating_add)
}

fn replicas(job: &Job, role: Role) -> i32 {
    match role {
        Role::Inference => job.spec.inference.replicas,
        Role::Trainer => job.spec.trainers(),
        Role::Coordinator => 0,
    }
}

/// The PodGroup; `None` without a gang. `is_started`: every member had a node.
pub fn build_pod_group(job: &ValidatedJob, settings: &Settings, is_started: bool) -> Option<Child> {
    let gang = job.spec.scheduling.gang.as_ref()?;
    let (kind, name) = pod_group_name(job)?;
    let least = if is_started { 1 } else { size(job).max(1) };
    let mut spec = match gang.scheduler()? {
        GangScheduler::Native => json!({
            "schedulingPolicy": {"gang": {"minCount": least}},
            "priorityClassName": priority_class(job),
        }),
        GangScheduler::Coscheduling => json!({
            "minMember": least,
            "scheduleTimeoutSeconds":
                gang.coscheduling.as_ref().and_then(|settings| settings.timeout_seconds),
        }),
        GangScheduler::Volcano => json!({
            "minMember": least,
            "queue": gang.volcano.as_ref().and_then(|settings| settings.queue.as_deref()),
            "priorityClassName": priority_class(job),
        }),
    };
    if let Some(fields) = spec.as_object_mut() {
        if gang.native.is_none() && !is_started {
            let needed = needed(job, settings);
            fields.insert("minResources".to_owned(), json!(requests::texts(&needed)));
        }
        fields.retain(|_, value| !value.is_null());
    }
    let resource = kind.resource();
    let object = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": meta::child(job, name.clone(), None),
        "spec": spec,
    });
    Some(Child { name: (kind, name), object })
}

/// Resources of all members.
fn needed(job: &ValidatedJob, settings: &Settings) -> Requests {
    let mut all = Requests::new();
    for role in MEMBERS.into_iter().filter(|role| replicas(job, *role) > 0) {
        let mut template = rendered_template(job, role, settings);
        // Templates are valid pod specs: validation parses them.
        let pod: PodSpec = serde_json::from_value(template["spec"].take()).unwrap_or_default();
        requests::add(&mut all, &requests::of_pod(&pod), replicas(job, role));
    }
    all
}

/// Priority class of the members: validation rejects two.
fn priority_class(job: &Job) -> Option<&str> {
    let template = match replicas(job, Role::Inference) {
        0 => job.spec.trainer.template.as_ref(),
        _ => job.spec.inference.template.as_ref(),
    };
    let own = template.and_then(|template| template.spec.get("priorityClassName")?.as_str());
    own.or(job.spec.scheduling.priority_class_name.as_deref())
}

/// Makes pods of the template members of the job's gang.
pub(super) fn join(template: &mut Value, job: &Job, role: Role) {
    let Some(gang) = job.spec.scheduling.gang.as_ref().filter(|_| is_member(role)) else { return };
    let name = name(job);
    match gang.scheduler() {
        None => {}
        Some(GangScheduler::Native) => {
            template["spec"]["schedulingGroup"] = json!({"podGroupName": name});
        }
        Some(GangScheduler::Coscheduling) => {
            template["metadata"]["labels"][LABEL_COSCHEDULING] = json!(name);
            let own = gang.coscheduling.as_ref().and_then(|own| own.scheduler_name.as_deref());
            set_scheduler(template, own.unwrap_or("scheduler-plugins-scheduler"));
        }
        Some(GangScheduler::Volcano) => {
            template["metadata"]["annotations"][ANNOTATION_VOLCANO] = json!(name);
            set_scheduler(template, "volcano");
        }
    }
}

fn set_scheduler(template: &mut Value, name: &str) {
    let own = &mut template["spec"]["schedulerName"];
    if own.is_null() {
        *own = json!(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::WantedRoles;
    use crate::desired::Pinned;
    use crate::desired::stateful_set::build_stateful_set;
    use crate::validate::test_support::with_spec;

    fn job(gang: &Value) -> ValidatedJob {
        with_spec(&json!({"scheduling": {"gang": gang, "priorityClassName": "high"}}))
    }

    fn spec(gang: &Value, is_started: bool) -> Value {
        let group = build_pod_group(&job(gang), &Settings::new("rljob:7"), is_started).unwrap();
        assert_eq!(group.object["metadata"]["name"], "sums-gang");
        assert_eq!(group.object["kind"], "PodGroup");
        group.object["spec"].clone()
    }

    #[test]
    fn a_pod_group_needs_all_members_until_they_have_started() {
        let native = json!({"native": {}});
        assert_eq!(size(&job(&native)), 3, "2 engines and a trainer");
        assert_eq!(
            spec(&native, false),
            json!({"schedulingPolicy": {"gang": {"minCount": 3}}, "priorityClassName": "high"})
        );
        assert_eq!(spec(&native, true)["schedulingPolicy"]["gang"]["minCount"], 1);
        let resources = json!({"cpu": "750m", "memory": "3221225472"});
        assert_eq!(
            spec(&json!({"coscheduling": {"timeoutSeconds": 60}}), false),
            json!({"minMember": 3, "minResources": resources, "scheduleTimeoutSeconds": 60})
        );
        assert_eq!(spec(&json!({"coscheduling": {}}), true), json!({"minMember": 1}));
        let volcano = json!({"volcano": {"queue": "research"}});
        let class = "high";
        assert_eq!(
            spec(&volcano, false),
            json!({
                "minMember": 3, "minResources": resources, "queue": "research",
                "priorityClassName": class,
            })
        );
        let without = with_spec(&json!({}));
        assert_eq!(build_pod_group(&without, &Settings::new("rljob:7"), false), None);
    }

    #[test]
    fn engines_and_trainers_are_members_of_the_schedulers_gang() {
        let template = |job: &ValidatedJob, role| {
            let (settings, pinned) = (Settings::new("rljob:7"), Pinned::default());
            let wanted = WantedRoles::Everything;
            build_stateful_set(job, role, wanted, &settings, &pinned)["spec"]["template"].take()
        };
        let native = template(&job(&json!({"native": {}})), Role::Trainer);
        assert_eq!(native["spec"]["schedulingGroup"], json!({"podGroupName": "sums-gang"}));
        assert_eq!(native["spec"].get("schedulerName"), None);
        let own = json!({"coscheduling": {"schedulerName": "gangs"}});
        let engine = template(&job(&own), Role::Inference);
        assert_eq!(engine["metadata"]["labels"][LABEL_COSCHEDULING], "sums-gang");
        assert_eq!(engine["spec"]["schedulerName"], "gangs");
        let mut volcano = job(&json!({"volcano": {}}));
        assert_eq!(template(&volcano, Role::Trainer)["spec"]["schedulerName"], "volcano");
        let own = json!({"spec": {"schedulerName": "another"}});
        volcano.spec.trainer.template = serde_json::from_value(own).unwrap();
        let trainer = template(&volcano, Role::Trainer);
        assert_eq!(trainer["metadata"]["annotations"][ANNOTATION_VOLCANO], "sums-gang");
        assert_eq!(trainer["spec"]["schedulerName"], "another");
        let coordinator = template(&volcano, Role::Coordinator);
        assert_eq!(
            coordinator,
            template(
                &with_spec(&json!({
                    "scheduling": {"priorityClassName": "high"},
                })),
                Role::Coordinator
            )
        );
    }
}
