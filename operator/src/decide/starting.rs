//! No steps are being made yet: processes are missing, or the coordinator says that it waits.

use rljob_protocol::status::Phase;

use super::{Decision, Facts, Wait};

pub(super) fn decide(facts: &Facts) -> Option<Decision> {
    match facts.report().map(|report| report.phase) {
        Some(Phase::Running) => None,
        Some(Phase::Restarting) => Some(Decision::Start(Wait::Restarting)),
        // Draining and Drained without suspension: the run was resumed and the coordinator is about
        // to hear of it.
        None
        | Some(
            Phase::Starting | Phase::Draining | Phase::Drained | Phase::Finished | Phase::Failed,
        ) => Some(Decision::Start(Wait::Starting)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::facts;
    use super::*;

    #[test]
    fn a_run_is_starting_until_its_coordinator_says_that_it_runs() {
        for (phase, expected) in [
            (None, Some(Decision::Start(Wait::Starting))),
            (Some(Phase::Starting), Some(Decision::Start(Wait::Starting))),
            (Some(Phase::Restarting), Some(Decision::Start(Wait::Restarting))),
            (Some(Phase::Drained), Some(Decision::Start(Wait::Starting))),
            (Some(Phase::Running), None),
        ] {
            let mut facts = facts();
            facts.coordinator = phase.and_then(|phase| {
                Some(rljob_protocol::status::CoordinatorStatus { phase, ..facts.coordinator? })
            });
            assert_eq!(decide(&facts), expected, "{phase:?}");
        }
    }

    #[test]
    fn a_report_under_another_epoch_is_not_listened_to() {
        let mut facts = facts();
        facts.recorded.epoch.number = 4;
        assert_eq!(decide(&facts), Some(Decision::Start(Wait::Starting)));
    }
}
