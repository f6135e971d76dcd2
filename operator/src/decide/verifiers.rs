//! Number of verifier pods, from the coordinator's report about the calls of programs.

use super::facts::Facts;
use crate::validate::Job;

/// The number of verifier pods of a job that runs: as many as its calls need, within the bounds of
/// the spec. Without a report, those that exist are kept. The report has the most pods that were
/// needed within some minutes, so that the number rises at once and falls slowly.
pub fn num_verifiers(job: &Job, facts: &Facts) -> i32 {
    let Some(spec) = &job.spec.verifiers else { return 0 };
    let load = facts.report().and_then(|report| report.verifiers);
    let needed = load.map_or(facts.roles.verifier.wanted, |load| {
        i32::try_from(load.needed_pods).unwrap_or(i32::MAX)
    });
    needed.min(spec.max_replicas).max(spec.min_replicas)
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::VerifierLoad;
    use serde_json::json;

    use super::super::test_support::facts;
    use super::*;
    use crate::validate::test_support::with_spec;

    #[test]
    fn verifier_pods_follow_the_load_within_the_bounds_and_stay_without_a_report() {
        let job = with_spec(&json!({
            "rewards": [{"name": "tests", "code": {}}],
            "verifiers": {"minReplicas": 2, "maxReplicas": 8},
        }));
        let number = |current: i32, needed: Option<u32>, epoch: u64| {
            let mut facts = facts();
            facts.roles.verifier.wanted = current;
            let report = facts.coordinator.as_mut().unwrap();
            report.epoch = Some(epoch);
            report.verifiers =
                needed.map(|needed_pods| VerifierLoad { needed_pods, ..VerifierLoad::default() });
            num_verifiers(&job, &facts)
        };
        let by_load = [0, 2, 5, 8, 9, u32::MAX].map(|needed| number(3, Some(needed), 3));
        assert_eq!(by_load, [2, 2, 5, 8, 8, 8]);
        assert_eq!([0, 5, 9].map(|current| number(current, None, 3)), [2, 5, 8]);
        assert_eq!(number(5, Some(0), 2), 5, "the report of an earlier epoch");
        assert_eq!(num_verifiers(&with_spec(&json!({})), &facts()), 0, "no verifier pods");
    }
}
