//! Suspension, by the user or by a queue: drains the run, deletes its pods, then reports it as
//! suspended or queued.
//!
//! A run that ends while it drains has ended; later policies record its outcome.

use jiff::{SignedDuration, Timestamp};
use rljob_protocol::status::Phase;

use super::decision::Decision;
use super::facts::Facts;
use crate::validate::Job;

/// Drains until the coordinator reports a checkpoint of everything or the deadline has passed.
pub(super) fn suspend(job: &Job, facts: &Facts, now: Timestamp) -> Option<Decision> {
    let report = facts.report();
    let ended =
        report.is_some_and(|report| matches!(report.phase, Phase::Finished | Phase::Failed));
    if !facts.must_stop() || ended {
        return None;
    }
    if facts.roles.all().iter().all(|role| role.wanted == 0 && role.existing == 0) {
        return Some(match facts.hold() {
            Some(hold) if !facts.suspend => Decision::Queued { message: hold.to_owned() },
            _ => Decision::Suspended,
        });
    }
    let deadline = facts
        .recorded
        .drain_deadline
        .unwrap_or_else(|| now.saturating_add(timeout(job)).unwrap_or(Timestamp::MAX));
    let drained = report.is_some_and(|report| {
        report.phase == Phase::Drained && report.generation == Some(facts.generation)
    });
    let released = facts.roles.coordinator.wanted == 0;
    let never_answered = !facts.recorded.reported && report.is_none();
    if drained || released || never_answered || !facts.recorded.started || now >= deadline {
        return Some(Decision::Release);
    }
    Some(Decision::Drain { deadline })
}

fn timeout(job: &Job) -> SignedDuration {
    SignedDuration::from_secs(i64::from(job.spec.drain_timeout_seconds))
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{at, facts};
    use super::super::{Queue, RoleCounts, Roles, desired_for_coordinator};
    use super::*;
    use crate::validate::test_support::validated;
    use rljob_protocol::desired::Mode;

    fn when(change: impl FnOnce(&mut Facts)) -> Option<Decision> {
        let mut facts = facts();
        facts.suspend = true;
        change(&mut facts);
        suspend(&validated(), &facts, at(100))
    }

    fn phase(facts: &mut Facts, phase: Phase) {
        facts.coordinator.as_mut().unwrap().phase = phase;
    }

    #[test]
    fn a_job_without_quota_drains_and_is_queued_unless_it_is_suspended() {
        let mut facts = facts();
        let hold = Some("no quota".to_owned());
        facts.queue = Some(Queue { hold, ignored: Vec::new() });
        let decided = |facts: &Facts| suspend(&validated(), facts, at(100));
        assert_eq!(decided(&facts), Some(Decision::Drain { deadline: at(400) }));
        let desired = desired_for_coordinator(&validated(), &facts).unwrap();
        assert_eq!(desired.mode, Mode::Drain);
        phase(&mut facts, Phase::Drained);
        assert_eq!(decided(&facts), Some(Decision::Release));
        facts.roles = Roles::default();
        let message = "no quota".to_owned();
        assert_eq!(decided(&facts), Some(Decision::Queued { message }));
        facts.suspend = true;
        assert_eq!(decided(&facts), Some(Decision::Suspended));
        facts.suspend = false;
        facts.queue = Some(Queue::default());
        assert_eq!(decided(&facts), None, "it is admitted");
    }

    #[test]
    fn a_suspended_job_drains_then_releases_its_pods_then_is_suspended() {
        let drain = Some(Decision::Drain { deadline: at(400) });
        for (case, got, expected) in [
            ("not suspended", when(|f| f.suspend = false), None),
            ("just suspended", when(|_| {}), drain.clone()),
            ("draining", when(|f| phase(f, Phase::Draining)), drain.clone()),
            (
                "the deadline does not move",
                when(|f| f.recorded.drain_deadline = Some(at(150))),
                Some(Decision::Drain { deadline: at(150) }),
            ),
            (
                "overdue",
                when(|f| f.recorded.drain_deadline = Some(at(100))),
                Some(Decision::Release),
            ),
            ("coordinator silent", when(|f| f.coordinator = None), drain.clone()),
            ("drained", when(|f| phase(f, Phase::Drained)), Some(Decision::Release)),
            (
                "drained for an older generation",
                when(|f| {
                    phase(f, Phase::Drained);
                    f.generation = 5;
                }),
                drain.clone(),
            ),
            (
                "drained under another epoch",
                when(|f| {
                    phase(f, Phase::Drained);
                    f.epoch.number = 9;
                }),
                drain,
            ),
            (
                "pods are terminating",
                when(|f| f.roles.coordinator = RoleCounts { wanted: 0, existing: 1, ready: 1 }),
                Some(Decision::Release),
            ),
            (
                "the coordinator never answered",
                when(|f| {
                    f.coordinator = None;
                    f.recorded.reported = false;
                }),
                Some(Decision::Release),
            ),
            ("never started", when(|f| f.recorded.started = false), Some(Decision::Release)),
            ("no pod is left", when(|f| f.roles = Roles::default()), Some(Decision::Suspended)),
            ("finished while draining", when(|f| phase(f, Phase::Finished)), None),
            ("failed while draining", when(|f| phase(f, Phase::Failed)), None),
        ] {
            assert_eq!(got, expected, "{case}");
        }
    }
}
