//! Time of the next pass without a trigger. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::runtime::controller::Action;

use crate::decide::{Decision, deadline, progress_due, removal, startup_deadline};
use crate::execute::Rejection;
use crate::observe::Observed;
use crate::status::{self, StatusUpdate};
use crate::validate::Job;

/// Time between passes that nothing triggers.
const RESYNC: Duration = Duration::from_secs(300);
/// The same for a job that needs the user.
const STALLED_RESYNC: Duration = Duration::from_secs(60);
/// Time in which a coordinator answers its first request, or the request has failed.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// After a conflict: the watch has delivered the newer object by then.
const CONFLICT_DELAY: Duration = Duration::from_millis(200);
/// Time for which a pod may wait for its volumes before the Secret is applied again.
pub(super) const MOUNT_PATIENCE: SignedDuration = SignedDuration::from_secs(30);

pub(super) fn after_conflict() -> Action {
    Action::requeue(CONFLICT_DELAY)
}

/// The time until which nothing changes by time alone.
pub(super) struct Due {
    /// A deadline, the end of a drain, or the removal of children.
    decision: Option<Duration>,
    /// A held-back status, an action on a pod, a pod without volumes, or an obstacle.
    other: Option<Duration>,
}

impl Due {
    pub(super) fn new(
        job: &Job,
        update: &StatusUpdate,
        decision: &Decision,
        observed: &Observed,
        now: Timestamp,
    ) -> Self {
        let recorded = status::recorded(&update.status);
        let at = match decision {
            Decision::Drain { deadline } => Some(*deadline),
            Decision::Start(_) | Decision::Run => {
                [deadline(job, &recorded), startup_deadline(job, &recorded)]
                    .into_iter()
                    .flatten()
                    .min()
            }
            Decision::Finish(_) | Decision::Finished(_) => removal(job, &recorded),
            Decision::Stall { .. }
            | Decision::AskCoordinator
            | Decision::Release
            | Decision::Suspended
            | Decision::Queued { .. }
            | Decision::Expired(_) => None,
        };
        let others = [
            update.due.map(|due| until(due, now)),
            observed.pod_plan.next.map(|next| until(next, now)),
            observed.unmounted_since.map(|_| MOUNT_PATIENCE.unsigned_abs()),
            observed.facts.obstacle.as_ref().map(|_| STALLED_RESYNC),
            observed.queue.problem.as_ref().map(|_| STALLED_RESYNC),
            observed.recheck.map(|recheck| until(recheck, now)),
            progress_due(job, &observed.facts).filter(|due| *due > now).map(|due| until(due, now)),
        ];
        Self { decision: at.map(|at| until(at, now)), other: others.into_iter().flatten().min() }
    }

    /// The next pass, after the actions were executed.
    pub(super) fn action(&self, decision: &Decision, rejection: Rejection) -> Action {
        match decision {
            Decision::Expired(_) => return Action::await_change(),
            Decision::Stall { .. } => return Action::requeue(STALLED_RESYNC),
            Decision::AskCoordinator => return Action::requeue(FIRST_ANSWER),
            _ => {}
        }
        let longest = match rejection {
            // The next pass records it.
            Rejection::Changed => Duration::ZERO,
            Rejection::Known => STALLED_RESYNC,
            Rejection::None => RESYNC,
        };
        let due = [self.decision, self.other, Some(longest)];
        Action::requeue(due.into_iter().flatten().min().unwrap_or(longest))
    }
}

/// The time until then; zero if it has passed.
fn until(due: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::outcome;

    #[test]
    fn the_next_pass_is_the_earliest_of_deadlines_and_resync() {
        let seconds = Duration::from_secs;
        let due = |decision, other| Due { decision, other };
        let run = |due: &Due, rejection| due.action(&Decision::Run, rejection);
        let none = due(None, None);
        assert_eq!(run(&none, Rejection::None), Action::requeue(RESYNC));
        assert_eq!(run(&none, Rejection::Known), Action::requeue(STALLED_RESYNC));
        assert_eq!(run(&none, Rejection::Changed), Action::requeue(Duration::ZERO));
        let both = due(Some(seconds(7)), Some(seconds(5)));
        assert_eq!(run(&both, Rejection::None), Action::requeue(seconds(5)));
        assert_eq!(
            both.action(&Decision::AskCoordinator, Rejection::None),
            Action::requeue(FIRST_ANSWER)
        );
        assert_eq!(
            both.action(&Decision::Expired(outcome()), Rejection::None),
            Action::await_change()
        );
    }
}
