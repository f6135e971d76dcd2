//! A run that takes longer than `spec.activeDeadlineSeconds` since its start or last resume has
//! failed. A run that ended in time has not: the earlier policies see it.

use jiff::{SignedDuration, Timestamp};
use rljob_crds::names::REASON_DEADLINE_EXCEEDED;

use super::{Decision, Facts, Outcome, Recorded};
use crate::validate::ValidatedJob;

pub(super) fn decide(job: &ValidatedJob, facts: &Facts, now: Timestamp) -> Option<Decision> {
    deadline(job, &facts.recorded).filter(|deadline| now >= *deadline)?;
    let seconds = job.spec.active_deadline_seconds.unwrap_or_default();
    let message = format!("the run took longer than spec.activeDeadlineSeconds = {seconds}");
    Some(Decision::Finish(Outcome {
        succeeded: false,
        reason: REASON_DEADLINE_EXCEEDED.to_owned(),
        message,
    }))
}

/// When the run fails, unless it ends or is suspended before.
pub fn deadline(job: &ValidatedJob, recorded: &Recorded) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(i64::from(job.spec.active_deadline_seconds?));
    Some(recorded.active_since?.saturating_add(seconds).unwrap_or(Timestamp::MAX))
}

/// When the children of a run that ended are to be removed.
pub fn removal(job: &ValidatedJob, recorded: &Recorded) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(i64::from(job.spec.ttl_seconds_after_finished?));
    Some(recorded.completed_at?.saturating_add(seconds).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{at, facts};
    use super::*;
    use crate::decide;
    use crate::validate::test_support::validated;
    use rljob_protocol::status::Phase;

    #[test]
    fn a_run_that_takes_too_long_fails_unless_it_is_suspended_or_ends() {
        let mut job = validated();
        let mut facts = facts();
        facts.recorded.active_since = Some(at(0));
        assert_eq!(decide(&job, &facts, at(99)), None, "no deadline is set");
        job.spec.active_deadline_seconds = Some(60);
        assert_eq!(decide(&job, &facts, at(59)), None);
        let message = "the run took longer than spec.activeDeadlineSeconds = 60".to_owned();
        let failed = Decision::Finish(Outcome {
            succeeded: false,
            reason: "DeadlineExceeded".to_owned(),
            message,
        });
        assert_eq!(decide::decide(&job, &facts, at(60)), failed);
        facts.suspend = true;
        assert!(matches!(decide::decide(&job, &facts, at(60)), Decision::Drain { .. }));
        facts.suspend = false;
        facts.coordinator.as_mut().unwrap().phase = Phase::Finished;
        assert!(
            matches!(decide::decide(&job, &facts, at(60)), Decision::Finish(outcome) if outcome.succeeded)
        );
    }

    #[test]
    fn children_are_kept_for_their_time_after_the_end() {
        let mut job = validated();
        let mut recorded = facts().recorded;
        recorded.completed_at = Some(at(0));
        assert_eq!(removal(&job, &recorded), None);
        job.spec.ttl_seconds_after_finished = Some(60);
        assert_eq!(removal(&job, &recorded), Some(at(60)));
        recorded.completed_at = None;
        assert_eq!(removal(&job, &recorded), None, "the run has not ended");
    }
}
