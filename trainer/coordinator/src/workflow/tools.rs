//! Tools: executes the calls of a completion in their order.
//!
//! ```text
//!  completion of turn t ─ parsed ─▶ calls ─┬─ malformed, unknown ─▶ error message ─┐
//!                                          ├─ POST url ([`http`]) ─────▶ result ───┼─▶ messages
//!                                          ├─ program ([`command`]) ───▶ result ───┤
//!                                          └─ tools/call ([`mcp`]) ────▶ result ───┘
//! ```

mod call;
mod command;
mod http;
mod mcp;

use std::collections::BTreeMap;
use std::time::Duration;

use rljob_crds::workflow::{ToolFormat, ToolSpec, ToolsWorkflow};
use rljob_protocol::status::RewardOutage;

use crate::reward::{RewardError, Runner, Service, without_secrets};
use crate::rollout::request::Key;
use crate::telemetry::ToolCalls;
use crate::text::{self, Message, ToolCall, ToolCallError, ToolCallFormat, Tools};
use crate::workflow::session::session;
use call::{Answer, Outcome, Request};
use command::ToolCommand;
use http::ToolServer;
use mcp::McpServer;

/// Most calls of a completion. Further ones have an error message as their result.
const MAX_CALLS: usize = 32;

/// The tools of a run.
#[derive(Debug)]
pub struct ToolSet {
    spec: ToolsWorkflow,
    /// Prefix of sessions.
    run: String,
    tools: BTreeMap<String, Tool>,
}

/// A turn whose calls are executed.
#[derive(Clone, Copy, Debug)]
pub struct ToolTurn<'a> {
    pub key: Key,
    /// From 1.
    pub number: u32,
    /// Tools of the row; none for all of the run.
    pub offered: Option<&'a Tools>,
}

#[derive(Debug)]
struct Tool {
    executor: Executor,
    service: Service,
}

#[derive(Debug)]
enum Executor {
    Http(ToolServer),
    Command(ToolCommand),
    Mcp(McpServer),
}

/// A tool that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("failed to create the client of the servers of rollout.workflow.tools")]
    Client(#[source] reqwest::Error),
    #[error("failed to write the settings of a sandbox")]
    Settings(#[source] serde_json::Error),
    #[error("failed to create the client of an MCP server")]
    Mcp(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("tool {0} has no kind: set http, command or mcp")]
    NoKind(String),
}

impl ToolSet {
    /// `run` distinguishes the sessions of runs that share a server. `runner` runs programs.
    pub fn new(spec: &ToolsWorkflow, run: &str, runner: &Runner) -> Result<Self, ToolError> {
        let tool = |spec: &ToolSpec| Ok((spec.name.clone(), Tool::new(spec, runner)?));
        let tools = spec.tools.iter().map(tool).collect::<Result<_, _>>()?;
        Ok(Self { spec: spec.clone(), run: run.to_owned(), tools })
    }

    /// Tools for the chat template.
    pub fn described(&self) -> Tools {
        let tools = self.spec.tools.iter();
        tools.map(|tool| text::Tool::new(&tool.name, &tool.description, &tool.parameters)).collect()
    }

    /// Format of calls, if the spec sets one.
    pub fn format(&self) -> Option<ToolCallFormat> {
        self.spec.format.map(|format| match format {
            ToolFormat::Qwen => ToolCallFormat::Qwen,
            ToolFormat::Llama => ToolCallFormat::Llama,
        })
    }

    /// Whether another completion may follow turn `number`, counted from 1.
    pub fn may_continue(&self, number: u32) -> bool {
        number < self.spec.max_turns
    }

    /// Executes the calls of a turn: a message for each.
    pub async fn execute(
        &self,
        turn: ToolTurn<'_>,
        calls: &[Result<ToolCall, ToolCallError>],
        counts: &ToolCalls,
    ) -> Result<Vec<Message>, RewardError> {
        let session = session(&self.run, turn.key);
        let mut messages = Vec::with_capacity(calls.len().min(MAX_CALLS));
        for (index, call) in (0_u32..).zip(calls.iter().take(MAX_CALLS)) {
            let (tool, result) = self.result(&session, turn, index, call).await;
            counts.count(tool, result.as_ref().map_or(Outcome::Failed, |(of, _)| *of).label());
            messages.push(Message::tool(result?.1));
        }
        if calls.len() > MAX_CALLS {
            calls.iter().skip(MAX_CALLS).for_each(|_| counts.count("", Outcome::Skipped.label()));
            let message = format!("error: only the first {MAX_CALLS} calls were executed");
            messages.push(Message::tool(message));
        }
        Ok(messages)
    }

    /// The tool of a call, empty for none of the job, and the result.
    async fn result(
        &self,
        session: &str,
        turn: ToolTurn<'_>,
        index: u32,
        call: &Result<ToolCall, ToolCallError>,
    ) -> (&str, Result<Answer, RewardError>) {
        let ToolCall { name, arguments } = match call {
            Ok(call) => call,
            Err(error) => return ("", Ok((Outcome::Malformed, format!("error: {error}")))),
        };
        let offered = self.tools.get_key_value(name).filter(|_| turn.offers(name));
        let Some((name, tool)) = offered else {
            return ("", Ok((Outcome::Unknown, self.unknown(name, turn))));
        };
        let request = Request { name, arguments, session, turn: turn.number, call: index };
        (name, tool.call(&request).await)
    }

    /// Message for a call of a tool that the sample does not offer.
    fn unknown(&self, name: &str, turn: ToolTurn<'_>) -> String {
        let names: Vec<&str> = match turn.offered {
            Some(offered) => offered.iter().map(text::Tool::name).collect(),
            None => self.tools.keys().map(String::as_str).collect(),
        };
        match names.as_slice() {
            [] => format!("error: no tool {name}; there are no tools"),
            names => format!("error: no tool {name}; the tools are {}", names.join(", ")),
        }
    }

    /// The outage of the first tool that is down.
    pub fn outage(&self) -> Option<RewardOutage> {
        self.tools.values().find_map(|tool| tool.service.outage())
    }
}

impl ToolTurn<'_> {
    fn offers(&self, name: &str) -> bool {
        self.offered.is_none_or(|tools| tools.iter().any(|tool| tool.name() == name))
    }
}

impl Tool {
    fn new(spec: &ToolSpec, runner: &Runner) -> Result<Self, ToolError> {
        let (executor, target, retries, max_outage) = match spec {
            ToolSpec { http: Some(http), .. } => {
                let server = ToolServer::new(http).map_err(ToolError::Client)?;
                let url = without_secrets(&http.url);
                (Executor::Http(server), url, http.retries, http.max_outage_seconds)
            }
            ToolSpec { command: Some(spec), .. } => {
                let command = ToolCommand::new(spec, runner).map_err(ToolError::Settings)?;
                let line = spec.command.join(" ");
                (Executor::Command(command), line, spec.retries, spec.max_outage_seconds)
            }
            ToolSpec { mcp: Some(mcp), .. } => {
                let server = McpServer::new(mcp, &spec.name).map_err(ToolError::Mcp)?;
                let url = without_secrets(&mcp.url);
                (Executor::Mcp(server), url, mcp.retries, mcp.max_outage_seconds)
            }
            _ => return Err(ToolError::NoKind(spec.name.clone())),
        };
        let label = format!("tool {} ({target})", spec.name);
        let max_outage = Duration::from_secs(max_outage.into());
        Ok(Self { executor, service: Service::new(label, retries, max_outage) })
    }

    async fn call(&self, request: &Request<'_>) -> Result<Answer, RewardError> {
        let call = || async move {
            match &self.executor {
                Executor::Http(server) => server.call(request).await,
                Executor::Command(command) => command.call(request).await,
                Executor::Mcp(server) => server.call(request).await,
            }
        };
        self.service.call(call).await
    }
}

#[cfg(test)]
mod tests;
