//! How many engines are wanted. One that is to leave leaves the coordinator's list first, so that
//! nothing is sent to an engine that is being stopped.

use super::Facts;
use crate::validate::ValidatedJob;

/// The number that the spec asks for, or while the coordinator has not heard of it, at least the
/// number there is. The list it is told is that of the spec.
pub(super) fn engines(job: &ValidatedJob, facts: &Facts) -> i32 {
    let asked = job.spec.inference.replicas;
    let heard = facts.report().is_none_or(|report| report.generation == Some(facts.generation));
    if heard { asked } else { asked.max(facts.roles.inference.wanted) }
}

#[cfg(test)]
mod tests {
    use super::super::RoleCounts;
    use super::super::test_support::facts;
    use super::*;
    use crate::validate::test_support::validated;

    #[test]
    fn engines_come_at_once_and_leave_when_the_coordinator_has_heard_of_it() {
        for (case, asked, there, generation, expected) in [
            ("as it is", 2, 2, Some(4), 2),
            ("more", 3, 2, Some(3), 3),
            ("fewer, not heard of", 1, 2, Some(3), 2),
            ("fewer, told nothing yet", 1, 2, None, 2),
            ("fewer, heard of", 1, 2, Some(4), 1),
        ] {
            let (mut job, mut facts) = (validated(), facts());
            job.spec.inference.replicas = asked;
            facts.roles.inference = RoleCounts { wanted: there, existing: there, ready: there };
            facts.coordinator.as_mut().unwrap().generation = generation;
            assert_eq!(engines(&job, &facts), expected, "{case}");
            facts.coordinator = None;
            assert_eq!(engines(&job, &facts), asked, "{case}: nobody routes to them");
        }
    }
}
