//! The run directory belongs to another run: no restart mends that, and nothing of the other run is
//! touched.

use rljob_crds::names::REASON_RUN_DIRECTORY_IN_USE;

use super::{Decision, Facts, Outcome};

pub(super) fn decide(facts: &Facts) -> Option<Decision> {
    let message = facts.directory_in_use.clone()?;
    Some(Decision::Finish(Outcome {
        succeeded: false,
        reason: REASON_RUN_DIRECTORY_IN_USE.to_owned(),
        message,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::test_support::facts;
    use super::*;

    #[test]
    fn a_directory_of_another_run_ends_the_run_with_what_its_coordinator_said() {
        let mut facts = facts();
        assert_eq!(decide(&facts), None);
        facts.directory_in_use = Some("it belongs to lab/other".to_owned());
        let outcome = Outcome {
            succeeded: false,
            reason: "RunDirectoryInUse".to_owned(),
            message: "it belongs to lab/other".to_owned(),
        };
        assert_eq!(decide(&facts), Some(Decision::Finish(outcome)));
    }
}
