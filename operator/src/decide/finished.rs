//! A recorded outcome is final.

use super::{Decision, Facts};

pub(super) fn decide(facts: &Facts) -> Option<Decision> {
    facts.recorded.outcome.clone().map(Decision::Finished)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{facts, outcome};
    use super::*;

    #[test]
    fn a_recorded_outcome_decides_and_nothing_else_does() {
        assert_eq!(decide(&facts()), None);
        let mut facts = facts();
        facts.recorded.outcome = Some(outcome());
        assert_eq!(decide(&facts), Some(Decision::Finished(outcome())));
    }
}
