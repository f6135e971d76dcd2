//! A container failed in a way on which `failurePolicy.rules` fail the job. Learners are judged by
//! the coordinator, by the same rules.

use rljob_crds::failure_policy::{FailureAction, FailureRole, first_match, rule_name};
use rljob_crds::names::REASON_FAILED;

use super::{Decision, Facts, Outcome};
use crate::validate::ValidatedJob;

/// The end of a container, as its kubelet reports it, or of a process of a local run. One that was
/// told to end is not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The role.
    pub role: FailureRole,
    /// The pod or process.
    pub name: String,
    /// CamelCase, as `Error` or `OOMKilled`.
    pub reason: String,
    /// 128 + n for signal n.
    pub exit_code: i32,
    /// Its last words; may be empty.
    pub message: String,
}

pub(super) fn decide(job: &ValidatedJob, facts: &Facts) -> Option<Decision> {
    let rules = &job.spec.failure_policy.rules;
    facts.exits.iter().find_map(|exit| {
        let (index, action) = first_match(rules, exit.role, &exit.reason, Some(exit.exit_code))?;
        (action == FailureAction::FailJob).then(|| {
            let Exit { name, reason, exit_code, message, .. } = exit;
            let words = message.trim().lines().next_back().map(|line| format!(": {line}")).unwrap_or_default();
            let message = format!("{name} ended with exit code {exit_code} ({reason}), on which {} fails the job{words}", rule_name(index));
            Decision::Finish(Outcome { succeeded: false, reason: REASON_FAILED.to_owned(), message })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::facts;
    use super::*;
    use crate::validate::test_support::validated;
    use serde_json::json;

    #[test]
    fn the_first_rule_that_matches_a_container_decides_whether_the_job_fails() {
        let exit = |role, name: &str, exit_code, reason: &str| Exit {
            role,
            name: name.to_owned(),
            reason: reason.to_owned(),
            exit_code,
            message: "a log line\nout of memory\n".to_owned(),
        };
        let engine = || exit(FailureRole::Inference, "sums-inference-1", 137, "OOMKilled");
        let coordinator = || exit(FailureRole::Coordinator, "sums-coordinator-0", 3, "Error");
        let mut job = validated();
        let rules = [
            json!({"action": "Restart", "onExitCodes": {"operator": "In", "values": [3]}}),
            json!({"action": "FailJob", "onReasons": ["OOMKilled", "Error"], "roles": ["Inference", "Coordinator"]}),
        ];
        job.spec.failure_policy.rules =
            rules.map(|rule| serde_json::from_value(rule).unwrap()).to_vec();
        let message = "sums-inference-1 ended with exit code 137 (OOMKilled), on which failurePolicy.rules[1] fails the job: out of memory";
        let fails = Decision::Finish(Outcome {
            succeeded: false,
            reason: "Failed".to_owned(),
            message: message.to_owned(),
        });
        for (case, exits, expected) in [
            ("nothing failed", vec![], None),
            ("an earlier rule takes it", vec![coordinator()], None),
            ("a later container fails the job", vec![coordinator(), engine()], Some(fails)),
            (
                "no rule matches",
                vec![exit(FailureRole::Trainer, "sums-trainer-0", 1, "Error")],
                None,
            ),
        ] {
            assert_eq!(decide(&job, &super::super::Facts { exits, ..facts() }), expected, "{case}");
        }
    }
}
