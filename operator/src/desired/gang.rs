//! Gang of a job: which pods are its members, and the fields that make them so. Its PodGroup is
//! [`crate::pod_group`].
//!
//! The coordinator is no member: it starts before pods with GPUs.

#![expect(
    clippy::indexing_slicing,
    reason = "rendered templates are objects, whose fields JSON values index without panics"
)]

use rljob_crds::gang::GangScheduler;
use rljob_crds::roles::InferenceSpec;
use serde_json::{Value, json};

use super::Role;
use crate::validate::Job;

/// Label of pods for the coscheduling plugin.
const LABEL_COSCHEDULING: &str = "scheduling.x-k8s.io/pod-group";
/// Annotation of pods for Volcano.
const ANNOTATION_VOLCANO: &str = "scheduling.k8s.io/group-name";
/// Roles whose pods are members.
pub const MEMBERS: [Role; 6] =
    [Role::Inference, Role::Evaluation, Role::Reward, Role::Teacher, Role::Trainer, Role::Group];

/// Name of the PodGroup, whatever its kind.
pub fn name(job: &Job) -> String {
    format!("{}-gang", job.name)
}

/// Whether pods of the role are members.
pub fn is_member(role: Role) -> bool {
    MEMBERS.contains(&role)
}

/// Number of members.
pub fn size(job: &Job) -> i32 {
    MEMBERS.into_iter().map(|role| replicas(job, role)).fold(0, i32::saturating_add)
}

/// Members of a role.
pub fn replicas(job: &Job, role: Role) -> i32 {
    match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
            role.engines(&job.spec).map_or(0, InferenceSpec::pods)
        }
        Role::Trainer => job.spec.trainers(),
        Role::Group => job.spec.group_replicas(),
        Role::Coordinator | Role::Verifier => 0,
    }
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
    use crate::desired::stateful_set::build_stateful_set;
    use crate::desired::{Pinned, Settings};
    use crate::validate::ValidatedJob;
    use crate::validate::test_support::with_spec;

    fn job(gang: &Value) -> ValidatedJob {
        with_spec(&json!({"scheduling": {"gang": gang, "priorityClassName": "high"}}))
    }

    #[test]
    fn engines_and_trainers_are_members_of_the_schedulers_gang() {
        let template = |job: &ValidatedJob, role| {
            let (settings, pinned) = (Settings::new("rljob:7"), Pinned::default());
            let wanted = WantedRoles::Everything.into();
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
