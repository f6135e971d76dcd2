//! Steps are being made: nothing but to let them.

use super::Decision;

pub(super) fn decide() -> Decision {
    Decision::Run
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{at, facts};
    use super::super::{Decision, RoleCounts, decide};
    use crate::validate::test_support::validated;

    #[test]
    fn a_run_that_makes_steps_runs_even_while_an_engine_is_away() {
        let mut facts = facts();
        assert_eq!(decide(&validated(), &facts, at(0)), Decision::Run);
        facts.roles.inference = RoleCounts { wanted: 2, existing: 1, ready: 1 };
        assert_eq!(decide(&validated(), &facts, at(0)), Decision::Run);
    }
}
