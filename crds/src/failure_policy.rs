//! Failure policy: restart budget and delay, hang timeout, and actions by rule.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Restarts, hang detection and actions on failures.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailurePolicy {
    /// Restarts of the learners after failures, counted over the whole run, before the job fails
    /// with the first cause. Replacements of lost pods do not count. Default 3.
    #[serde(default = "max_restarts")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: u32,
    /// Seconds without progress of any learner (a micro-batch, a tensor that is loaded or written,
    /// an instruction) after which the learners count as hung: they are killed and restarted, which
    /// counts. Stopped processes are detected within seconds. Default 1800.
    #[serde(default = "hang_timeout_seconds")]
    #[schemars(range(min = 10, max = 86400))]
    pub hang_timeout_seconds: u32,
    /// Whether the operator deletes a pod by force that stays in Terminating past its grace period
    /// because its node does not answer. Processes of the pod may still run on that node; fencing
    /// keeps them from writing to the run. With `false`, a person or the node's controller must
    /// remove the pod. Default true.
    #[serde(default = "force_delete_lost_pods")]
    pub force_delete_lost_pods: bool,
    /// Delay of restarts.
    #[serde(default)]
    pub backoff: Backoff,
    /// Actions on failures since the rules were set; the first matching rule applies. Without a
    /// match, learners are restarted and the restart counts, except for reason LearnerInput (an
    /// incompatible model or checkpoint), which fails the job. Other containers are restarted by
    /// their kubelet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
}

fn max_restarts() -> u32 {
    3
}

fn force_delete_lost_pods() -> bool {
    true
}

fn hang_timeout_seconds() -> u32 {
    1800
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_restarts: max_restarts(),
            hang_timeout_seconds: hang_timeout_seconds(),
            force_delete_lost_pods: force_delete_lost_pods(),
            backoff: Backoff::default(),
            rules: Vec::new(),
        }
    }
}

/// Action on failures that meet all conditions of the rule. An absent condition matches every
/// failure.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureRule {
    /// `FailJob` fails the job at once. `Restart` restarts the learners and counts the restart;
    /// `RestartAndIgnoreMaxRestarts` does not count it. For containers of engines, the coordinator
    /// and supervisors, which their kubelet restarts, only `FailJob` has an effect.
    pub action: FailureAction,
    /// Exit codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<ExitCodes>,
    /// Reasons: `LearnerExited`, `LearnerKilled`, `LearnerHung` and `LearnerInput` of learners; the
    /// reason that the kubelet reports for containers, for example `OOMKilled` or `Error`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))
    )]
    pub on_reasons: Vec<String>,
    /// Roles. Default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub roles: Vec<FailureRole>,
}

/// Action on a failure.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// Fails the job.
    FailJob,
    /// Restarts the learners and counts the restart.
    Restart,
    /// Restarts the learners without counting the restart.
    RestartAndIgnoreMaxRestarts,
}

/// Role of a failed process.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureRole {
    /// Learners and their supervisors.
    Trainer,
    /// Engines.
    Inference,
    /// Engines that only evaluate.
    Evaluation,
    /// Engines of a reward model.
    Reward,
    /// Engines of a teacher.
    Teacher,
    /// The coordinator.
    Coordinator,
    /// Programs in verifier pods.
    Verifier,
}

/// Exit codes as in the podFailurePolicy of a Job; 128 + n for signal n. A failure without an exit
/// code, such as a hung learner, does not match.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExitCodes {
    /// `In` matches the listed codes, `NotIn` all others.
    pub operator: ExitCodeOperator,
    /// Exit codes other than 0.
    #[schemars(length(min = 1, max = 255), inner(range(min = 1, max = 255)))]
    pub values: Vec<i32>,
}

/// Comparison of an exit code with the list.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCodeOperator {
    /// Listed codes.
    In,
    /// Codes that are not listed.
    NotIn,
}

/// Index and action of the first rule that matches a failure.
pub fn first_match(
    rules: &[FailureRule],
    role: FailureRole,
    reason: &str,
    exit_code: Option<i32>,
) -> Option<(usize, FailureAction)> {
    let rule = rules.iter().enumerate().find(|(_, rule)| rule.matches(role, reason, exit_code));
    rule.map(|(index, rule)| (index, rule.action))
}

/// Path of a rule in messages.
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
    /// Seconds before the second restart without progress. Default 1.
    #[serde(default = "initial_seconds")]
    #[schemars(range(min = 0, max = 3600))]
    pub initial_seconds: u32,
    /// Maximum delay in seconds. Default 300.
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
