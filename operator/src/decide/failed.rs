//! The coordinator has given up: its restart budget is spent, or the input cannot be run.

use rljob_protocol::status::Phase;

use super::{Decision, Facts, Outcome};
use rljob_crds::names::REASON_FAILED;

pub(super) fn decide(facts: &Facts) -> Option<Decision> {
    let report = facts.report().filter(|report| report.phase == Phase::Failed)?;
    let message = match &report.last_failure {
        Some(cause) => {
            let place =
                cause.supervisor.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
            let code =
                cause.exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
            format!(
                "{}{place}{code} after {} restarts: {}",
                cause.reason, report.restarts, cause.message
            )
        }
        None => format!("the coordinator gave up after {} restarts", report.restarts),
    };
    Some(Decision::Finish(Outcome { succeeded: false, reason: REASON_FAILED.to_owned(), message }))
}

#[cfg(test)]
mod tests {
    use super::super::test_support::facts;
    use super::*;
    use rljob_protocol::status::LearnerFailure;

    #[test]
    fn a_coordinator_that_gave_up_ends_the_run_with_the_first_cause() {
        let mut facts = facts();
        assert_eq!(decide(&facts), None);
        let report = facts.coordinator.as_mut().unwrap();
        report.phase = Phase::Failed;
        report.restarts = 4;
        let finish = |message: &str| {
            Some(Decision::Finish(Outcome {
                succeeded: false,
                reason: "Failed".to_owned(),
                message: message.to_owned(),
            }))
        };
        assert_eq!(decide(&facts), finish("the coordinator gave up after 4 restarts"));
        facts.coordinator.as_mut().unwrap().last_failure = Some(LearnerFailure {
            reason: "LearnerExited".to_owned(),
            message: "out of memory".to_owned(),
            supervisor: Some("sums-trainer-0".to_owned()),
            exit_code: Some(137),
        });
        assert_eq!(
            decide(&facts),
            finish(
                "LearnerExited in sums-trainer-0 with exit code 137 after 4 restarts: out of memory"
            )
        );
        facts.recorded.epoch.number = 4;
        assert_eq!(decide(&facts), None, "an older coordinator is not listened to");
    }
}
