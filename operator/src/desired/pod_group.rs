//! PodGroup of a job's gang.
//!
//! ```text
//!  not started    needs all engines and trainers: none gets a node before all have one
//!  started        needs 1 pod: lost and added pods get nodes one by one
//! ```
//!
//! It exists while the job has pods.

use k8s_openapi::api::core::v1::PodSpec;
use rljob_crds::gang::GangScheduler;
use serde::Deserialize;
use serde_json::{Value, json};

use super::gang::{MEMBERS, name, replicas, size};
use super::requests::{self, Requests};
use super::stateful_set::rendered_template;
use super::{Role, Settings, meta};
use crate::gang::pod_groups;
use crate::validate::{Job, ValidatedJob};

/// The PodGroup; `None` without a gang. `is_started`: every member had a node.
pub fn build_pod_group(job: &ValidatedJob, settings: &Settings, is_started: bool) -> Option<Value> {
    let gang = job.spec.scheduling.gang.as_ref()?;
    let scheduler = gang.scheduler()?;
    let least = if is_started { 1 } else { size(job).max(1) };
    let mut spec = match scheduler {
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
    let resource = pod_groups(scheduler);
    Some(json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": meta::child(job, name(job), None),
        "spec": spec,
    }))
}

/// Resources of all members.
fn needed(job: &ValidatedJob, settings: &Settings) -> Requests {
    let mut all = Requests::new();
    for role in MEMBERS.into_iter().filter(|role| replicas(job, *role) > 0) {
        let template = rendered_template(job, role, settings);
        // Templates are valid pod specs: validation parses them.
        let pod = template.get("spec").and_then(|pod| PodSpec::deserialize(pod).ok());
        let pod = pod.unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::with_spec;

    fn job(gang: &Value) -> ValidatedJob {
        with_spec(&json!({"scheduling": {"gang": gang, "priorityClassName": "high"}}))
    }

    fn spec(gang: &Value, is_started: bool) -> Value {
        let group = build_pod_group(&job(gang), &Settings::new("rljob:7"), is_started).unwrap();
        assert_eq!(group["metadata"]["name"], "sums-gang");
        assert_eq!(group["kind"], "PodGroup");
        group["spec"].clone()
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
}
