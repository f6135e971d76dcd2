//! What exists of a job, as the plain facts that decisions rest on.

use std::sync::Arc;

use kube::ResourceExt;
use rljob_crds::names::{CONDITION_SUSPENDED, ENGINE_PORT, EXIT_RUN_DIRECTORY_IN_USE};
use rljob_crds::status::RLJobStatus;
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::CoordinatorStatus;

use super::Observed;
use crate::cache::Pod;
use crate::decide::{Facts, RoleCounts, Roles};
use crate::desired::Role;
use crate::pods::{self, PodFacts};
use crate::status;
use crate::validate::ValidatedJob;

impl Observed {
    /// The facts that decisions rest on. `report` is what the coordinator of that pod UID said
    /// last.
    pub fn facts(
        &self,
        job: &ValidatedJob,
        old: &RLJobStatus,
        report: impl FnOnce(&str) -> Option<CoordinatorStatus>,
    ) -> Facts {
        let identity = self.coordinator().map(|(uid, _)| uid);
        let was_suspended = old
            .conditions
            .iter()
            .any(|condition| condition.type_ == CONDITION_SUSPENDED && condition.status == "True");
        // An engine that is to leave is on the list no more, before its pod goes.
        let stays =
            |pod: &Pod| i64::from(pods::ordinal(pod)) < i64::from(job.spec.inference.replicas);
        let engines = self
            .pods
            .get(&Role::Inference)
            .into_iter()
            .flatten()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && stays(pod));
        // By address: a name leads to the pod before for as long as DNS is cached.
        let endpoint = |pod: &Arc<Pod>| {
            Some(EngineEndpoint { name: pod.name_any(), url: super::url(pod, ENGINE_PORT)? })
        };
        Facts {
            suspend: job.spec.suspend,
            generation: job.generation,
            recorded: status::recorded(old),
            coordinator: identity.as_deref().and_then(report),
            coordinator_identity: identity,
            directory_in_use: self.directory_in_use(),
            blocked: self.blocked(),
            incidents: Vec::new(),
            exit: None,
            exits: Vec::new(),
            engines: engines.filter_map(endpoint).collect(),
            roles: Roles {
                inference: self.counts(Role::Inference, was_suspended),
                coordinator: self.counts(Role::Coordinator, was_suspended),
                trainer: self.counts(Role::Trainer, was_suspended),
            },
        }
    }

    /// The pods as plain facts.
    pub fn pod_facts(&self) -> Vec<PodFacts> {
        self.pods
            .iter()
            .flat_map(|(role, all)| {
                all.iter().map(|pod| pods::read(pod, *role, self.wants(*role, pods::ordinal(pod))))
            })
            .collect()
    }

    /// What a coordinator said that ended because the run directory belongs to another run.
    pub(super) fn directory_in_use(&self) -> Option<String> {
        let pod = self.pods.get(&Role::Coordinator)?.first()?;
        let containers = pod.status.as_ref()?.container_statuses.iter().flatten();
        let ends = containers
            .flat_map(|container| [&container.state, &container.last_state])
            .flatten()
            .filter_map(|state| state.terminated.as_ref());
        let end = ends.into_iter().find(|end| end.exit_code == EXIT_RUN_DIRECTORY_IN_USE)?;
        let words = end
            .message
            .as_deref()
            .and_then(|text| text.lines().rev().find(|line| !line.trim().is_empty()));
        Some(
            words
                .unwrap_or("the run directory belongs to another run")
                .trim_start_matches("error: ")
                .to_owned(),
        )
    }

    /// The first pod that no node can take, and why.
    pub(super) fn blocked(&self) -> Option<String> {
        self.pods.values().flatten().find_map(|pod| {
            let conditions = pod.status.as_ref()?.conditions.iter().flatten();
            let refused = conditions.into_iter().find(|condition| {
                condition.type_ == "PodScheduled"
                    && condition.reason.as_deref() == Some("Unschedulable")
            })?;
            Some(format!(
                "{} cannot be scheduled: {}",
                pod.name_any(),
                refused.message.as_deref().unwrap_or("no node fits")
            ))
        })
    }

    pub(super) fn counts(&self, role: Role, was_suspended: bool) -> RoleCounts {
        let pods = self.pods.get(&role).map(Vec::as_slice).unwrap_or_default();
        let (seen, set) = (count(pods.iter()), self.sets.get(&role));
        // Pods may be seen later than their set's size: until its controller has acted on that,
        // some may be there. A job that was suspended had none, and an edit of its spec, which its
        // sets' controller has yet to see, makes none.
        let counted = set.map_or(0, |set| {
            if set.settled || was_suspended { set.existing } else { set.existing.max(1) }
        });
        let ready = count(pods.iter().filter(|pod| pods::is_up(pod)));
        RoleCounts { wanted: set.map_or(0, |set| set.replicas), existing: seen.max(counted), ready }
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}
