//! PodGroup of a job's gang.
//!
//! ```text
//!  not started    PodGroup needs all engines and trainers: none gets a node before all have one
//!  started        PodGroup needs 1 pod: lost and added pods get nodes one by one
//! ```
//!
//! A PodGroup exists while the job has pods.

use k8s_openapi::api::core::v1::PodSpec;
use rljob_crds::gang::{GangScheduler, NativeGang, VolcanoGang, VolcanoTopology};
use serde_json::{Value, json};

use crate::children::{Child, ChildName, Kind};
use crate::desired::gang::{MEMBERS, name, replicas, size};
use crate::desired::requests::{self, Requests};
use crate::desired::{Role, Settings, meta, rendered_template};
use crate::validate::{Job, ValidatedJob};

/// Kind and name of the job's PodGroup; `None` without a gang.
pub fn pod_group_name(job: &Job) -> Option<ChildName> {
    Some((Kind::PodGroup(scheduler(job)?), name(job)))
}

fn scheduler(job: &Job) -> Option<GangScheduler> {
    job.spec.scheduling.gang.as_ref()?.scheduler()
}

/// The PodGroup; `None` without a gang. `is_started`: every member had a node.
pub fn build_pod_group(job: &ValidatedJob, settings: &Settings, is_started: bool) -> Option<Child> {
    let gang = job.spec.scheduling.gang.as_ref()?;
    let (kind, name) = pod_group_name(job)?;
    let least = if is_started { 1 } else { size(job).max(1) };
    let mut spec = match gang.scheduler()? {
        GangScheduler::Native => json!({
            "schedulingPolicy": {"gang": {"minCount": least}},
            "schedulingConstraints": gang.native.as_ref().and_then(topology),
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
            "networkTopology": gang.volcano.as_ref().and_then(network_topology),
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

fn topology(native: &NativeGang) -> Option<Value> {
    native.topology_key.as_ref().map(|key| json!({"topology": [{"key": key}]}))
}

fn network_topology(volcano: &VolcanoGang) -> Option<Value> {
    let VolcanoTopology { mode, highest_tier_allowed } = volcano.network_topology.as_ref()?;
    Some(match highest_tier_allowed {
        Some(tier) => json!({"mode": mode.as_str(), "highestTierAllowed": tier}),
        None => json!({"mode": mode.as_str()}),
    })
}

/// Resources of all members.
fn needed(job: &ValidatedJob, settings: &Settings) -> Requests {
    let mut all = Requests::new();
    for role in MEMBERS.into_iter().filter(|role| replicas(job, *role) > 0) {
        let mut template = rendered_template(job, role, settings);
        // Templates are valid pod specs: validation parses them.
        let pod: PodSpec = template
            .get_mut("spec")
            .and_then(|spec| serde_json::from_value(spec.take()).ok())
            .unwrap_or_default();
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
        let zone = "topology.kubernetes.io/zone";
        assert_eq!(
            spec(&json!({"native": {"topologyKey": zone}}), true),
            json!({
                "schedulingPolicy": {"gang": {"minCount": 1}}, "priorityClassName": "high",
                "schedulingConstraints": {"topology": [{"key": zone}]},
            })
        );
        let network = |topology: Value| {
            spec(&json!({"volcano": {"networkTopology": topology}}), true)["networkTopology"].take()
        };
        assert_eq!(
            network(json!({"mode": "Hard", "highestTierAllowed": 2})),
            json!({"mode": "hard", "highestTierAllowed": 2})
        );
        assert_eq!(network(json!({"mode": "Soft"})), json!({"mode": "soft"}));
        let without = with_spec(&json!({}));
        assert_eq!(build_pod_group(&without, &Settings::new("rljob:7"), false), None);
    }
}
