//! State of the group of `spec.trainer.groups` that holds the algorithm's frozen model.

use rljob_crds::RLJobStatus;
use rljob_crds::status::TrainerGroupStatus;
use rljob_crds::trainer_groups::TrainerGroupSpec;

use super::memory::planned;
use crate::decide::Facts;
use crate::validate::Job;

/// The groups that have pods. Their counters never decrease.
pub(super) fn groups(
    job: &Job,
    old: &RLJobStatus,
    facts: &Facts,
    keeps_running: bool,
) -> Vec<TrainerGroupStatus> {
    let status = |group: &TrainerGroupSpec| {
        let known = old.trainer_groups.iter().find(|known| known.name == group.name);
        let reported = facts.report().map(|report| report.groups.as_slice()).unwrap_or_default();
        let reported = reported.iter().find(|reported| reported.name == group.name);
        let [attempt, restarts] =
            [known.map_or(0, |known| known.attempt), known.map_or(0, |known| known.restarts)];
        TrainerGroupStatus {
            name: group.name.clone(),
            desired: if keeps_running { group.replicas } else { 0 },
            ready: facts.roles.group.ready,
            attempt: reported.map_or(0, |reported| reported.attempt).max(attempt),
            restarts: reported.map_or(0, |reported| reported.restarts).max(restarts),
            memory: reported
                .and_then(|reported| reported.memory.as_ref())
                .map(|plan| planned(plan, None))
                .or_else(|| known.and_then(|known| known.memory.clone())),
        }
    };
    job.spec.frozen_group().into_iter().map(status).collect()
}
