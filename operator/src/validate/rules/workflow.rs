//! Rules of the workflow of rollouts.

use rljob_crds::workflow::WorkflowSpec;

use super::common::exactly_one;
use super::prompts::check_template;
use crate::validate::Problem;

const PATH: &str = "spec.rollout.workflow";

pub(super) fn check_workflow(workflow: &WorkflowSpec, problems: &mut Vec<Problem>) {
    let members = [
        ("multiTurn", workflow.multi_turn.is_some()),
        ("environment", workflow.environment.is_some()),
        ("agent", workflow.agent.is_some()),
    ];
    exactly_one(PATH, &members, problems);
    if let Some(multi_turn) = &workflow.multi_turn {
        check_template(&format!("{PATH}.multiTurn.feedback"), &multi_turn.feedback, problems);
    }
}
