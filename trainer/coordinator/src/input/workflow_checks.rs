//! Checks of the workflow against tokenizer and data.

use rljob_crds::RLJobSpec;

use crate::data::Dataset;
use crate::text::{Message, TextError, TextTokenizer, ToolCallFormat};
use crate::workflow::{Workflow, WorkflowError};

/// Checks that every row has feedback, and that turns can follow an assistant's turn.
pub(super) fn check_workflow(
    spec: &RLJobSpec,
    workflow: &Workflow,
    data: &Dataset,
    tokenizer: &TextTokenizer,
) -> Result<(), WorkflowError> {
    if matches!(workflow, Workflow::SingleTurn) {
        return Ok(());
    }
    if let Some(feedback) = workflow.feedback() {
        let rewards: Vec<&str> = spec.rewards.iter().map(|reward| reward.name.as_str()).collect();
        feedback.check(data, &rewards)?;
    }
    let messages = match workflow {
        Workflow::Tools(_) => [Message::tool("x")],
        Workflow::SingleTurn
        | Workflow::MultiTurn(_)
        | Workflow::Environment(_)
        | Workflow::Agent(_) => [Message::user("x")],
    };
    tokenizer.encode_continuation(&[], &messages, data.style())?;
    Ok(())
}

/// Format of tool calls: required by tools, and optional with agents.
pub(super) fn tool_call_format(
    workflow: &Workflow,
    tokenizer: &TextTokenizer,
) -> Result<Option<ToolCallFormat>, TextError> {
    match workflow {
        Workflow::Tools(tools) => tokenizer.tool_call_format(tools.format()).map(Some),
        Workflow::Agent(_) => Ok(tokenizer.tool_call_format(None).ok()),
        Workflow::SingleTurn | Workflow::MultiTurn(_) | Workflow::Environment(_) => Ok(None),
    }
}
