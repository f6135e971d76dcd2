//! The desired step: decision → side effects. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use rljob_crds::status::RLJobStatus;
use rljob_http::Role;

use super::gang;
use super::requeue::MOUNT_PATIENCE;
use super::subject::Subject;
use crate::children::{Child, ChildName, Kind, children, readable};
use crate::decide::{
    Decision, Obstacle, Recorded, Wanted, desired_for_coordinator, num_verifiers, wanted_roles,
};
use crate::desired::tokens::TokenKey;
use crate::desired::{Pinned, Settings, Tokens, build};
use crate::execute::{Actions, ChildAction, CoordinatorAction, Secrets};
use crate::observe::{CoordinatorPod, Observed};
use crate::poll::CoordinatorOrder;
use crate::queue::build::build_workload;
use crate::queue::plan::{WorkloadAction, plan};
use crate::queue::workload_name;
use crate::validate::{Job, ValidatedJob};

/// The side effects of a decision.
pub(super) fn actions(
    job: &Subject,
    observed: &Observed,
    decision: &Decision,
    status: RLJobStatus,
    settings: &Settings,
    key: &TokenKey,
    now: Timestamp,
) -> Actions {
    let tokens = Tokens::derive(key, &job.uid);
    let has_pod_actions = !matches!(decision, Decision::AskCoordinator);
    let is_blocked = observed.facts.obstacle.as_ref().is_some_and(Obstacle::is_blocking);
    let workload = queue_action(job, observed, decision, now);
    Actions {
        status,
        pods: has_pod_actions.then(|| observed.pod_plan.clone()),
        children: match job {
            Subject::Valid(job) if !is_blocked => {
                child_action(job, observed, decision, settings, &tokens, now)
            }
            _ => blocked_child_action(decision),
        },
        obsolete: obsolete(job, observed, decision, is_blocked),
        workload: (workload_name(job), workload),
        coordinator: coordinator_action(job, observed, decision, tokens),
    }
}

/// The action on the job's Workload.
fn queue_action(
    job: &Job,
    observed: &Observed,
    decision: &Decision,
    now: Timestamp,
) -> WorkloadAction {
    let queue = &observed.queue;
    match plan(job, queue.workload(), decision, &observed.facts, now) {
        WorkloadAction::Apply if queue.problem.is_some() => WorkloadAction::Keep,
        action => action,
    }
}

/// Objects that cannot be created or changed keep their pods until the run ends or is suspended.
fn blocked_child_action(decision: &Decision) -> ChildAction {
    let keeps_pods = decision.keeps_running() || matches!(decision, Decision::Stall { .. });
    if keeps_pods { ChildAction::Keep } else { ChildAction::Release }
}

fn child_action(
    job: &ValidatedJob,
    observed: &Observed,
    decision: &Decision,
    settings: &Settings,
    tokens: &Tokens,
    now: Timestamp,
) -> ChildAction {
    let is_expired = matches!(decision, Decision::Expired(_));
    let mut kinds = observed.children.keys().map(|(kind, _)| kind);
    let has_children = kinds.any(|kind| matches!(kind, Kind::ConfigMap | Kind::StatefulSet));
    match decision {
        Decision::Stall { .. } | Decision::AskCoordinator => return ChildAction::Keep,
        Decision::Expired(_) if !has_children => return ChildAction::Keep,
        _ => {}
    }
    let wanted = wanted_roles(job, &observed.facts, decision);
    let run_config = observed.children.values().find_map(|child| child.run_config.as_ref());
    let pinned = Pinned::from_live(run_config, &observed.sets, wanted);
    if observed.unreadable.iter().any(|(kind, _)| kind.is_essential()) {
        return ChildAction::Keep;
    }
    if gang::awaits_deletion(observed, wanted) {
        return ChildAction::Keep;
    }
    let pods = Wanted { roles: wanted, verifiers: num_verifiers(job, &observed.facts) };
    let mut children = children(&build(job, pods, settings, tokens, &pinned));
    children.extend(gang::pod_group(job, observed, wanted, settings));
    children.retain(|child| !observed.unreadable.contains(&child.name));
    if queue_action(job, observed, decision, now) == WorkloadAction::Apply {
        let priority = observed.queue.priority.as_ref();
        let object = build_workload(job, settings, priority);
        let name = (Kind::Workload, workload_name(job));
        children.extend(object.map(|object| Child { name, object }));
    }
    let is_unmounted =
        observed.unmounted_since.is_some_and(|since| now.duration_since(since) >= MOUNT_PATIENCE);
    let secrets = if is_unmounted { Secrets::Always } else { Secrets::WithOthers };
    if is_expired { ChildAction::Remove(children) } else { ChildAction::Apply(children, secrets) }
}

/// Children that the job needs no longer: PodGroups, and objects of roles and servers that its spec
/// lost while it was suspended.
fn obsolete(
    job: &Subject,
    observed: &Observed,
    decision: &Decision,
    is_blocked: bool,
) -> Vec<ChildName> {
    if matches!(
        decision,
        // The children are kept, or all of them are deleted.
        Decision::Stall { .. } | Decision::AskCoordinator | Decision::Expired(_)
    ) {
        return Vec::new();
    }
    let mut obsolete = gang::obsolete(job, observed, decision);
    if matches!(job, Subject::Valid(_)) && !is_blocked {
        let needed = readable(job);
        let has_own_rules = |kind: Kind| matches!(kind, Kind::PodGroup(_) | Kind::Workload);
        let own = observed.children.iter().filter(|(name, child)| {
            !child.terminating && !has_own_rules(name.0) && !needed.contains(name)
        });
        obsolete.extend(own.map(|(name, _)| name.clone()));
    }
    obsolete
}

/// The coordinator receives its desired state once it has an address and holds the recorded epoch.
fn coordinator_action(
    job: &Job,
    observed: &Observed,
    decision: &Decision,
    tokens: Tokens,
) -> CoordinatorAction {
    if matches!(decision, Decision::Stall { .. }) {
        return CoordinatorAction::Keep;
    }
    if !decision.keeps_running() {
        return CoordinatorAction::Forget;
    }
    let order = || {
        let desired = desired_for_coordinator(job, &observed.facts)?;
        let pod = observed.coordinator.clone()?;
        let CoordinatorPod { uid: identity, url, restarts } = pod;
        Some(Box::new(CoordinatorOrder {
            identity,
            url: url?,
            restarts,
            token: tokens.operator,
            certificate: Arc::clone(tokens.certificates.of(Role::Operator)),
            server_name: Role::Coordinator.server_name(&job.uid),
            max_steps: max_steps(job, &observed.facts.recorded),
            desired,
        }))
    };
    order().map_or(CoordinatorAction::Keep, CoordinatorAction::Send)
}

/// The steps of the run; more if they were lowered, until its coordinator has restarted with the
/// new number, or if it had done more by then. Without a bound if they depend on the data.
fn max_steps(job: &Job, recorded: &Recorded) -> u32 {
    let done = recorded.progress.map_or(0, |(step, _)| step);
    let steps = job.spec.training.known_steps().unwrap_or(u32::MAX);
    steps.max(recorded.total_steps.unwrap_or_default()).max(done)
}
