//! Workflows: the turns of a sample, and what is appended between them.

mod environment;
mod tools;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::agent::AgentWorkflow;
use crate::union::{Union, exactly_one};
pub use environment::{EnvironmentCommand, EnvironmentWorkflow};
pub use tools::{CommandTool, HttpTool, McpTool, ToolFormat, ToolSpec, ToolsWorkflow};

/// Turns of a sample: `multiTurn`, `environment`, `tools` or `agent`. Rollouts and evaluations use
/// the same workflow.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct WorkflowSpec {
    /// Several attempts at a prompt, with feedback after each one that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_turn: Option<MultiTurnWorkflow>,
    /// Turns with an HTTP server or a program that returns rewards and messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Box<EnvironmentWorkflow>>,
    /// Turns with tools that the model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolsWorkflow>,
    /// A program per sample that talks to the model over an API of OpenAI's shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentWorkflow>,
}

impl Union for WorkflowSpec {
    const MEMBERS: &'static [&'static str] = &["multiTurn", "environment", "tools", "agent"];
}

/// Settings of the `multiTurn` workflow. A turn is a completion, which the rewards score. While its
/// reward is below `correctReward`, feedback follows as the user's next turn, and the model tries
/// again. The reward of the sample is that of its last turn · `discount` ^ (turns − 1), as in
/// AReaL; evaluations do not discount. Feedback is not trained on.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MultiTurnWorkflow {
    /// Maximum number of turns. Default 2.
    #[serde(default = "max_turns")]
    #[schemars(range(min = 2, max = 64))]
    pub max_turns: u32,
    /// Jinja template of the feedback over the fields of the row and `turn`, the last turn:
    /// `turn.number` from 1, `turn.completion`, `turn.reward`, `turn.components` by name of the
    /// reward, and `turn.answer` if an `http`, `python` or `command` reward reported one. With
    /// format Chat, the feedback is a user turn of the chat template; with format Text, it is
    /// appended unchanged.
    #[schemars(length(min = 1, max = 65536))]
    pub feedback: String,
    /// Factor of the reward for each turn after the first. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub discount: f64,
    /// Smallest reward of a correct turn, which is the last. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub correct_reward: f64,
    /// Maximum number of tokens of a sample after its prompt: completions and feedback. Feedback
    /// that leaves no token for a completion is not appended; the sample then ends.
    /// `rollout.maxNewTokens` limits each completion. Default the context of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: Option<u32>,
}

impl WorkflowSpec {
    /// URLs of the servers that the coordinator calls.
    pub fn urls(&self) -> impl Iterator<Item = &str> {
        let environment = self.environment.iter().filter_map(|of| of.url.as_deref());
        let tools = self.tools.iter().flat_map(|of| &of.tools);
        let servers = tools.filter_map(|tool| {
            let http = tool.http.as_ref().map(|server| server.url.as_str());
            http.or_else(|| Some(tool.mcp.as_ref()?.url.as_str()))
        });
        environment.chain(servers)
    }

    /// Whether tools or the environment are programs.
    pub fn has_commands(&self) -> bool {
        let mut tools = self.tools.iter().flat_map(|of| &of.tools);
        let environment = self.environment.as_ref();
        environment.is_some_and(|of| of.command.is_some())
            || tools.any(|tool| tool.command.is_some())
    }

    /// Maximum number of completions of a sample.
    pub fn max_turns(&self) -> Option<u32> {
        self.limits().map(|(max_turns, _)| max_turns)
    }

    /// Maximum number of tokens of a sample after its prompt.
    pub fn max_tokens(&self) -> Option<u32> {
        self.limits().and_then(|(_, max_tokens)| max_tokens)
    }

    /// `maxTurns` and `maxTokens` of the member that is set.
    fn limits(&self) -> Option<(u32, Option<u32>)> {
        // Exhaustive: a new member is a compile error here; `dataflow::rollouts` has its calls.
        let Self { multi_turn, environment, tools, agent } = self;
        let members = [
            multi_turn.as_ref().map(|of| (of.max_turns, of.max_tokens)),
            environment.as_ref().map(|of| (of.max_turns, of.max_tokens)),
            tools.as_ref().map(|of| (of.max_turns, of.max_tokens)),
            agent.as_ref().map(|of| (of.max_turns, of.max_tokens)),
        ];
        members.into_iter().flatten().next()
    }
}

fn max_turns() -> u32 {
    2
}

fn one() -> f64 {
    1.0
}
