//! What of a computed status is written now. What a run does and how it stands is written at once;
//! what only counts or describes waits, so that a pod that comes up or a step that is made does not
//! cost a write each.
//!
//! | What alone has changed | Is written |
//! |---|---|
//! | progress, a later checkpoint, engines that are known | a minute after progress was written last |
//! | these, numbers of pods, words of conditions, the first of a checkpoint or engine | a second after the status was written last |
//! | anything else | at once, with all that has waited |

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use rljob_crds::status::{InferenceStatus, RLJobStatus, RoleStatus};

use super::engines;

const PROGRESS_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
const DETAILS_INTERVAL: SignedDuration = SignedDuration::from_secs(1);

/// The status to write now: the old one, if what has changed can wait; then also until when, unless
/// the next report tells of it. `written` is when this process wrote the status of this job last,
/// while it runs: of one that is being taken down, or is through, all is written at once.
pub fn settle(
    old: &RLJobStatus,
    new: RLJobStatus,
    written: Option<Timestamp>,
    now: Timestamp,
) -> (RLJobStatus, Option<Timestamp>) {
    let waits = |since: Option<Timestamp>, interval| {
        since.and_then(|since| since.checked_add(interval).ok()).filter(|due| now < *due)
    };
    let progress_time =
        old.progress.as_ref().and_then(|progress| progress.time.as_ref()).map(|time| time.0);
    let first_checkpoint = old.checkpoint.is_none() && new.checkpoint.is_some();
    let of = |status: &RLJobStatus| {
        status.inference.clone().map(|inference| inference.engines).unwrap_or_default()
    };
    let is_news = first_checkpoint || engines::any_is_new(&of(old), &of(&new));
    let without_progress = without_progress(old, new.clone());
    if without_progress == *old && !is_news && waits(progress_time, PROGRESS_INTERVAL).is_some() {
        return (without_progress, None);
    }
    let due = waits(written, DETAILS_INTERVAL);
    if due.is_some() && without_details(old, without_progress) == *old {
        return (old.clone(), due);
    }
    (new, None)
}

/// With the old progress, checkpoint and engines.
fn without_progress(old: &RLJobStatus, new: RLJobStatus) -> RLJobStatus {
    let engines = old.inference.iter().flat_map(|inference| inference.engines.clone()).collect();
    let inference = new.inference.map(|inference| InferenceStatus { engines, ..inference });
    RLJobStatus {
        progress: old.progress.clone(),
        checkpoint: old.checkpoint.clone(),
        inference,
        ..new
    }
}

/// With the old numbers of pods, and the old words of conditions that stand as they did.
fn without_details(old: &RLJobStatus, new: RLJobStatus) -> RLJobStatus {
    let inference = new.inference.map(|inference| match &old.inference {
        Some(old) => InferenceStatus { ready: old.ready, replicas: old.replicas, ..inference },
        None => inference,
    });
    let ready = old.trainer.as_ref().map_or(0, |old| old.ready);
    let trainer = new.trainer.map(|trainer| RoleStatus { ready, ..trainer });
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
    RLJobStatus { inference, trainer, conditions: conditions.collect(), ..new }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rljob_crds::status::Progress;

    use super::*;
    use crate::decide::test_support::at;

    fn status(step: u32, ready: i32, reason: &str, words: &str) -> RLJobStatus {
        let condition = Condition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            message: words.to_owned(),
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
    fn what_describes_waits_and_what_matters_takes_along_what_has_waited() {
        let old = status(1, 1, "Running", "steps are being made");
        let same = || status(1, 1, "Running", "steps are being made");
        for (case, new, written, second, is_written, due) in [
            ("nothing has changed", same(), Some(0), 100, false, None),
            ("a step", status(2, 1, "Running", "steps are being made"), Some(30), 59, false, None),
            (
                "a step, a minute later",
                status(2, 1, "Running", "steps are being made"),
                Some(30),
                60,
                true,
                None,
            ),
            (
                "a number",
                status(1, 2, "Running", "steps are being made"),
                Some(30),
                30,
                false,
                Some(31),
            ),
            (
                "a number, a second later",
                status(1, 2, "Running", "steps are being made"),
                Some(30),
                31,
                true,
                None,
            ),
            (
                "a number and a step",
                status(2, 2, "Running", "steps are being made"),
                Some(30),
                30,
                false,
                Some(31),
            ),
            (
                "words",
                status(1, 1, "Running", "steps are being made without 1 of 2 engines"),
                Some(30),
                30,
                false,
                Some(31),
            ),
            (
                "words, of another process's status or of one that is taken down",
                status(1, 1, "Running", "steps"),
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
                settle(&old, new, written.map(at), at(second)),
                (expected, due.map(at)),
                "{case}"
            );
        }
    }
}
