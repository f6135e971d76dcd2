//! Desired PodGroup of a job. Pure.

use crate::children::{Child, ChildName, Kind};
use crate::decide::{Decision, WantedRoles};
use crate::desired::Settings;
use crate::desired::gang::{is_member, size};
use crate::observe::Observed;
use crate::pod_group::{build_pod_group, pod_group_name};
use crate::pods::PodFacts;
use crate::validate::{Job, ValidatedJob};

/// The PodGroup of a job with a gang that has pods.
pub(super) fn pod_group(
    job: &ValidatedJob,
    observed: &Observed,
    wanted: WantedRoles,
    settings: &Settings,
) -> Option<Child> {
    let has_pods = wanted != WantedRoles::Nothing;
    has_pods.then(|| build_pod_group(job, settings, is_started(job, observed)))?
}

/// PodGroups that no pod needs: of a job without pods, and of another scheduler than the gang's.
pub(super) fn obsolete(job: &Job, observed: &Observed, decision: &Decision) -> Vec<ChildName> {
    if has_members(observed) {
        return Vec::new();
    }
    let wanted = pod_group_name(job).filter(|_| decision.keeps_running());
    let own = pod_groups(observed)
        .filter(|(name, is_terminating)| !is_terminating && wanted.as_ref() != Some(*name));
    own.map(|(name, _)| name.clone()).collect()
}

/// Whether a PodGroup of the previous start must be deleted before pods are created: they would
/// keep it.
pub(super) fn awaits_deletion(observed: &Observed, wanted: WantedRoles) -> bool {
    let is_terminating = pod_groups(observed).any(|(_, is_terminating)| is_terminating);
    wanted != WantedRoles::Nothing && is_terminating && !has_members(observed)
}

/// Whether every member has had a node since the gang's start. A PodGroup that needs one pod
/// records it while there are members.
fn is_started(job: &Job, observed: &Observed) -> bool {
    let name = pod_group_name(job);
    let child = name.and_then(|name| observed.children.get(&name));
    let is_recorded = child.is_some_and(|child| child.least_pods == Some(1));
    let placed = members(observed).filter(|pod| pod.node.is_some() && pod.deletion.is_none());
    let is_placed = i64::from(size(job)) <= i64::try_from(placed.count()).unwrap_or(i64::MAX);
    has_members(observed) && (is_recorded || is_placed)
}

fn members(observed: &Observed) -> impl Iterator<Item = &PodFacts> {
    observed.pods.iter().filter(|pod| is_member(pod.role))
}

fn has_members(observed: &Observed) -> bool {
    let roles = &observed.facts.roles;
    let engines = [roles.inference, roles.evaluation, roles.reward, roles.teacher];
    let learners = [roles.trainer, roles.group];
    let counted = engines.iter().chain(&learners).any(|role| role.existing > 0);
    counted || members(observed).next().is_some()
}

/// The job's own PodGroups, and whether they are terminating.
fn pod_groups(observed: &Observed) -> impl Iterator<Item = (&ChildName, bool)> {
    let own = observed.children.iter().filter(|((kind, _), _)| matches!(kind, Kind::PodGroup(_)));
    own.map(|(name, child)| (name, child.terminating))
}
