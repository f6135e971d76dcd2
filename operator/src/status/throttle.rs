//! Throttling of status writes. State changes are written at once; counts and descriptions are held
//! back, so that a pod that becomes ready or a completed step does not cost one write each.
//!
//! | Only change | Written |
//! |---|---|
//! | progress, later checkpoints, known engines, memory | a minute after the last progress |
//! | these, pod counts, messages of conditions | a second after the last write |
//! | anything else | at once, with everything that was held back |
//!
//! The first checkpoint, the first memory plan and the first report about an engine count as
//! details, not as progress.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use rljob_crds::status::{InferenceStatus, RLJobStatus, RoleStatus, TrainerGroupStatus};

use super::engines;

const PROGRESS_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
const DETAILS_INTERVAL: SignedDuration = SignedDuration::from_secs(1);

/// The status to write in a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusUpdate {
    /// Equal to the old one if nothing is written.
    pub status: RLJobStatus,
    /// The time at which a held-back change is due.
    pub due: Option<Timestamp>,
}

impl StatusUpdate {
    pub(super) fn now(status: RLJobStatus) -> Self {
        Self { status, due: None }
    }
}

/// Returns the new status, or the old one while the changes can wait. Progress alone has no due
/// time: the coordinator's reports trigger the pass that writes it.
pub(super) fn throttle(
    old: &RLJobStatus,
    new: RLJobStatus,
    last_write: Option<Timestamp>,
    now: Timestamp,
) -> StatusUpdate {
    let wait = |since: Option<Timestamp>, interval| {
        since.and_then(|since| since.checked_add(interval).ok()).filter(|due| now < *due)
    };
    let progress_time =
        old.progress.as_ref().and_then(|progress| progress.time.as_ref()).map(|time| time.0);
    let first_checkpoint = old.checkpoint.is_none() && new.checkpoint.is_some();
    let first_plan = old.memory.is_none() && new.memory.is_some();
    let engine_list = |status: &RLJobStatus| {
        status.inference.clone().map(|inference| inference.engines).unwrap_or_default()
    };
    let is_first = first_checkpoint
        || first_plan
        || engines::any_is_new(&engine_list(old), &engine_list(&new));
    let without_progress = without_progress(old, new.clone());
    if without_progress == *old && !is_first && wait(progress_time, PROGRESS_INTERVAL).is_some() {
        return StatusUpdate::now(without_progress);
    }
    let due = wait(last_write, DETAILS_INTERVAL);
    if due.is_some() && without_details(old, without_progress) == *old {
        return StatusUpdate { status: old.clone(), due };
    }
    StatusUpdate::now(new)
}

/// The new status with the old progress, checkpoints, memory and engines.
fn without_progress(old: &RLJobStatus, new: RLJobStatus) -> RLJobStatus {
    let engines = old.inference.iter().flat_map(|inference| inference.engines.clone()).collect();
    let inference = new.inference.map(|inference| InferenceStatus { engines, ..inference });
    RLJobStatus {
        progress: old.progress.clone(),
        checkpoint: old.checkpoint.clone(),
        checkpoints: old.checkpoints.clone(),
        memory: old.memory.clone(),
        inference,
        ..new
    }
}

/// The new status with the old pod counts, and the old messages of conditions with the same status
/// and reason.
fn without_details(old: &RLJobStatus, new: RLJobStatus) -> RLJobStatus {
    let inference = new.inference.map(|inference| match &old.inference {
        Some(old) => InferenceStatus { ready: old.ready, replicas: old.replicas, ..inference },
        None => inference,
    });
    let with_old = |new: Option<RoleStatus>, old: &Option<RoleStatus>| {
        let ready = old.as_ref().map_or(0, |old| old.ready);
        new.map(|new| RoleStatus { ready, ..new })
    };
    let evaluation = with_old(new.evaluation, &old.evaluation);
    let reward = with_old(new.reward, &old.reward);
    let teacher = with_old(new.teacher, &old.teacher);
    let trainer = with_old(new.trainer, &old.trainer);
    let trainer_groups = new.trainer_groups.into_iter().map(|group| {
        let known = old.trainer_groups.iter().find(|known| known.name == group.name);
        TrainerGroupStatus { ready: known.map_or(0, |known| known.ready), ..group }
    });
    let trainer_groups = trainer_groups.collect();
    let verifiers = with_old(new.verifiers, &old.verifiers);
    let conditions = new.conditions.into_iter().map(|condition| {
        let before = old.conditions.iter().find(|old| {
            (&old.type_, &old.status, &old.reason)
                == (&condition.type_, &condition.status, &condition.reason)
        });
        Condition {
            message: before.map_or(condition.message, |before| before.message.clone()),
            ..condition
        }
    });
    let conditions = conditions.collect();
    RLJobStatus {
        inference,
        evaluation,
        reward,
        teacher,
        trainer,
        trainer_groups,
        verifiers,
        conditions,
        ..new
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rljob_crds::status::Progress;

    use super::*;
    use crate::decide::test_support::at;

    fn status(step: u32, ready: i32, reason: &str, message: &str) -> RLJobStatus {
        let condition = Condition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(at(0)),
            observed_generation: None,
        };
        RLJobStatus {
            progress: Some(Progress { step, time: Some(Time(at(0))), ..Progress::default() }),
            inference: Some(InferenceStatus { ready, ..InferenceStatus::default() }),
            conditions: vec![condition],
            ..RLJobStatus::default()
        }
    }

    #[test]
    fn details_and_progress_wait_and_state_changes_are_written_at_once_with_them() {
        let old = status(1, 1, "Running", "training");
        let same = || status(1, 1, "Running", "training");
        for (case, new, written, second, is_written, due) in [
            ("no change", same(), Some(0), 100, false, None),
            ("a step", status(2, 1, "Running", "training"), Some(30), 59, false, None),
            (
                "a step, a minute later",
                status(2, 1, "Running", "training"),
                Some(30),
                60,
                true,
                None,
            ),
            ("a count", status(1, 2, "Running", "training"), Some(30), 30, false, Some(31)),
            (
                "a count, a second later",
                status(1, 2, "Running", "training"),
                Some(30),
                31,
                true,
                None,
            ),
            (
                "a count and a step",
                status(2, 2, "Running", "training"),
                Some(30),
                30,
                false,
                Some(31),
            ),
            (
                "a message",
                status(1, 1, "Running", "training without 1 of 2 engines"),
                Some(30),
                30,
                false,
                Some(31),
            ),
            (
                "a message, without an own last write or while releasing",
                status(1, 1, "Running", "waiting"),
                None,
                30,
                true,
                None,
            ),
            ("another reason", status(2, 2, "Restarting", "learners"), Some(30), 30, true, None),
            ("a restart", RLJobStatus { restarts: 1, ..same() }, Some(30), 30, true, None),
        ] {
            let expected = if is_written { new.clone() } else { old.clone() };
            assert_eq!(
                throttle(&old, new, written.map(at), at(second)),
                StatusUpdate { status: expected, due: due.map(at) },
                "{case}"
            );
        }
    }
}
