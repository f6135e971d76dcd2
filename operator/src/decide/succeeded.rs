//! The last step is done and the model is exported.

use rljob_protocol::status::Phase;

use super::{Decision, Facts, Outcome};
use rljob_crds::names::REASON_COMPLETED;

pub(super) fn decide(facts: &Facts) -> Option<Decision> {
    let report = facts.report().filter(|report| report.phase == Phase::Finished)?;
    let message = format!("{} steps are done and the model is exported", report.step);
    Some(Decision::Finish(Outcome {
        succeeded: true,
        reason: REASON_COMPLETED.to_owned(),
        message,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::test_support::facts;
    use super::*;

    #[test]
    fn a_coordinator_that_finished_ends_the_run() {
        let mut facts = facts();
        assert_eq!(decide(&facts), None);
        facts.coordinator.as_mut().unwrap().phase = Phase::Finished;
        let message = "7 steps are done and the model is exported".to_owned();
        assert_eq!(
            decide(&facts),
            Some(Decision::Finish(Outcome {
                succeeded: true,
                reason: "Completed".to_owned(),
                message
            }))
        );
        facts.recorded.epoch.number = 4;
        assert_eq!(decide(&facts), None, "an older coordinator is not listened to");
    }
}
