//! What follows from a failure: rules, how often and how soon learners are restarted, and when they
//! count as hung.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// What follows from failures of a job's processes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailurePolicy {
    /// Restarts of the learners after failures, counted over the whole run, before the job fails
    /// with the first cause. Lost pods are replaced without being counted. Default 3.
    #[serde(default = "max_restarts")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: u32,
    /// Seconds in which no learner gets any further (a micro-batch, a tensor that is loaded or
    /// written, an instruction) before they count as hung: they are killed and restarted, and it is
    /// counted. A stopped process is found within seconds, whatever this says. Default 1800.
    #[serde(default = "hang_timeout_seconds")]
    #[schemars(range(min = 10, max = 86400))]
    pub hang_timeout_seconds: u32,
    /// Waiting time between restarts.
    #[serde(default)]
    pub backoff: Backoff,
    /// What follows from failures that match; the first rule that matches holds. Without a match
    /// learners are restarted and counted, except for reason LearnerInput (a model or checkpoint
    /// that does not fit), which fails the job; other containers are restarted by their kubelet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
}

fn max_restarts() -> u32 {
    3
}

fn hang_timeout_seconds() -> u32 {
    1800
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_restarts: max_restarts(),
            hang_timeout_seconds: hang_timeout_seconds(),
            backoff: Backoff::default(),
            rules: Vec::new(),
        }
    }
}

/// What follows from the failures that match all of its conditions. One that is left out matches
/// every failure.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureRule {
    /// `FailJob`: the job fails at once. `Restart`: the learners are restarted, and it is counted.
    /// `RestartAndIgnoreMaxRestarts`: they are restarted, and it is not. Containers of engines, of
    /// the coordinator and of supervisors are restarted by their kubelet: of them only FailJob
    /// makes a difference.
    pub action: FailureAction,
    /// Exit codes that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<ExitCodes>,
    /// Reasons that match: of learners `LearnerExited`, `LearnerKilled`, `LearnerHung`,
    /// `LearnerInput`; of containers what their kubelet says, as `OOMKilled` or `Error`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))
    )]
    pub on_reasons: Vec<String>,
    /// Roles that match. Default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub roles: Vec<FailureRole>,
}

/// What follows from a failure.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// The job fails.
    FailJob,
    /// A restart that is counted.
    Restart,
    /// A restart that is not.
    RestartAndIgnoreMaxRestarts,
}

/// A role whose processes can fail.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureRole {
    /// Learners, and the supervisors above them.
    Trainer,
    /// Engines.
    Inference,
    /// The coordinator.
    Coordinator,
}

/// Exit codes, as in a Job's podFailurePolicy: 128 + n for signal n. A failure without one, as that
/// of a hung learner, matches none.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExitCodes {
    /// `In`: one of the values. `NotIn`: none of them.
    pub operator: ExitCodeOperator,
    /// The codes; 0 is no failure.
    #[schemars(length(min = 1, max = 255), inner(range(min = 1, max = 255)))]
    pub values: Vec<i32>,
}

/// How a code is compared.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCodeOperator {
    /// One of the values.
    In,
    /// None of the values.
    NotIn,
}

/// The first rule that matches a failure: its index and its action.
pub fn first_match(
    rules: &[FailureRule],
    role: FailureRole,
    reason: &str,
    exit_code: Option<i32>,
) -> Option<(usize, FailureAction)> {
    let rule = rules.iter().enumerate().find(|(_, rule)| rule.matches(role, reason, exit_code));
    rule.map(|(index, rule)| (index, rule.action))
}

/// How a rule is named to a person.
pub fn rule_name(index: usize) -> String {
    format!("failurePolicy.rules[{index}]")
}

impl FailureRule {
    fn matches(&self, role: FailureRole, reason: &str, exit_code: Option<i32>) -> bool {
        let code = |codes: &ExitCodes| {
            exit_code.is_some_and(|code| {
                codes.values.contains(&code) == (codes.operator == ExitCodeOperator::In)
            })
        };
        (self.roles.is_empty() || self.roles.contains(&role))
            && (self.on_reasons.is_empty() || self.on_reasons.iter().any(|wanted| wanted == reason))
            && self.on_exit_codes.as_ref().is_none_or(code)
    }
}

/// Delay of restarts. The first restart has no delay. Further restarts without progress (a new step
/// or a checkpoint) wait `initialSeconds`, doubled each time up to `maxSeconds`; progress resets
/// the delay. Delays are randomized between half and all of this value.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.initialSeconds <= self.maxSeconds")
        .message("initialSeconds must not exceed maxSeconds")
)]
pub struct Backoff {
    /// Seconds before the second restart of a row in which none led to anything. Default 1.
    #[serde(default = "initial_seconds")]
    #[schemars(range(min = 0, max = 3600))]
    pub initial_seconds: u32,
    /// Longest wait in seconds. Default 300.
    #[serde(default = "max_seconds")]
    #[schemars(range(min = 0, max = 86400))]
    pub max_seconds: u32,
}

fn initial_seconds() -> u32 {
    1
}

fn max_seconds() -> u32 {
    300
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial_seconds: initial_seconds(), max_seconds: max_seconds() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: serde_json::Value) -> FailureRule {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_first_rule_whose_conditions_all_match_holds() {
        use FailureAction::{FailJob, Restart, RestartAndIgnoreMaxRestarts};
        use FailureRole::{Coordinator, Inference, Trainer};
        let rules = [
            rule(serde_json::json!({
                "action": "FailJob",
                "onExitCodes": {"operator": "In", "values": [3, 42]},
                "roles": ["Trainer"],
            })),
            rule(serde_json::json!({
                "action": "RestartAndIgnoreMaxRestarts",
                "onReasons": ["LearnerKilled", "OOMKilled"],
            })),
            rule(serde_json::json!({
                "action": "Restart",
                "onExitCodes": {"operator": "NotIn", "values": [1]},
                "roles": ["Trainer", "Inference"],
            })),
        ];
        for (role, reason, code, expected) in [
            (Trainer, "LearnerExited", Some(42), Some((0, FailJob))),
            (Inference, "Error", Some(42), Some((2, Restart))),
            (Coordinator, "Error", Some(42), None),
            (Trainer, "LearnerKilled", Some(137), Some((1, RestartAndIgnoreMaxRestarts))),
            (Coordinator, "OOMKilled", Some(137), Some((1, RestartAndIgnoreMaxRestarts))),
            (Trainer, "LearnerExited", Some(1), None),
            (Trainer, "LearnerExited", Some(2), Some((2, Restart))),
            (Trainer, "LearnerHung", None, None),
        ] {
            assert_eq!(
                first_match(&rules, role, reason, code),
                expected,
                "{role:?} {reason} {code:?}"
            );
        }
        assert_eq!(
            first_match(
                &[rule(serde_json::json!({"action": "FailJob"}))],
                Trainer,
                "LearnerHung",
                None
            ),
            Some((0, FailJob)),
            "no condition matches all"
        );
    }
}
