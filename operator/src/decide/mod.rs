//! Facts and time → [`Decision`]. Pure: knows roles and facts, not pods or processes.
//!
//! ```text
//!  recorded outcome ─▶ cannot start ─▶ directory in use ─▶ suspension
//!    ─▶ failed ─▶ succeeded ─▶ coordinator failed ─▶ failure rules ─▶ deadlines
//!    ─▶ unsupported protocol ─▶ unresponsive ─▶ storage ─▶ starting ─▶ reward ─▶ no progress
//!    ─▶ run
//!                                            the first policy that returns a decision wins
//! ```
//!
//! Decisions depend on the recorded status, the observed objects and the coordinator's report, not
//! on events, so a missed pass changes nothing. Restarting learners is the coordinator's task: it
//! spends the budget of [`desired_for_coordinator`] and reports `Failed` when the budget is spent.

use jiff::Timestamp;

use crate::validate::Job;

mod coordinator;
mod decision;
mod ending;
mod facts;
mod running;
mod suspension;
mod verifiers;

pub use coordinator::{assign_epoch, desired_for_coordinator};
pub use decision::{Decision, Outcome, Wait, Wanted, WantedRoles};
pub use ending::{deadline, is_expired, removal, startup_deadline};
pub use facts::{
    Epoch, Exit, Facts, Obstacle, Queue, Recorded, RoleCounts, Roles, Silence, Waiting,
};
pub use running::{UNRESPONSIVE_AFTER, progress_due, wanted_roles};
pub use verifiers::num_verifiers;

#[cfg(test)]
pub(crate) mod test_support;

/// Returns the decision of the first policy that has one.
pub fn decide(job: &Job, facts: &Facts, now: Timestamp) -> Decision {
    let decision = ending::recorded_outcome(job, facts, now)
        .or_else(|| running::cannot_start(facts))
        .or_else(|| ending::directory_in_use(facts))
        .or_else(|| suspension::suspend(job, facts, now))
        .or_else(|| ending::failed(facts))
        .or_else(|| ending::succeeded(job, facts))
        .or_else(|| ending::coordinator_failed(job, facts))
        .or_else(|| ending::failure_rules(job, facts))
        .or_else(|| ending::deadline_exceeded(job, facts, now))
        .or_else(|| ending::startup_deadline_exceeded(job, facts, now))
        .or_else(|| ending::protocol_unsupported(facts))
        .or_else(|| running::unresponsive(facts, now))
        .or_else(|| running::storage_unavailable(facts))
        .or_else(|| running::starting(facts))
        .or_else(|| running::reward_unavailable(facts))
        .or_else(|| running::no_progress(job, facts, now))
        .unwrap_or(Decision::Run);
    if decision.keeps_running() && coordinator::awaits_first_answer(facts) {
        return Decision::AskCoordinator;
    }
    decision
}
