//! Tools behind HTTP: executes the calls of a completion in their order.
//!
//! ```text
//!  completion of turn t ─ parsed ─▶ calls ─┬─ malformed, unknown ─▶ error message ─┐
//!                                          └─ POST url, call by call ─▶ result ────┴─▶ messages
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use rljob_crds::workflow::{HttpTool, ToolFormat, ToolSpec, ToolsWorkflow};
use rljob_protocol::status::RewardOutage;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::reward::{RewardError, Server, Service, VerifierError, unexpected, without_secrets};
use crate::rollout::request::Key;
use crate::telemetry::ToolCalls;
use crate::text::{Message, Tool, ToolCall, ToolCallError, ToolCallFormat, Tools};
use crate::workflow::session::session;

/// Most calls of a completion. Further ones have an error message as their result.
const MAX_CALLS: usize = 32;
/// Statuses of arguments that a tool rejects.
const REJECTED: [u16; 2] = [400, 422];

/// The tools of a run.
#[derive(Debug)]
pub struct ToolServers {
    spec: ToolsWorkflow,
    /// Prefix of sessions.
    run: String,
    servers: BTreeMap<String, ToolServer>,
}

#[derive(Debug)]
struct ToolServer {
    url: String,
    server: Server,
    service: Service,
}

/// How a call ended, and its result for the model.
type Answer = (Outcome, String);

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Result,
    /// The tool rejects the arguments.
    Error,
    /// The call is malformed.
    Malformed,
    /// The job has no tool of this name.
    Unknown,
    /// The completion has too many calls.
    Skipped,
    /// No retries are left, or the tool is down for too long.
    Failed,
}

impl Outcome {
    /// Value of the label `outcome` of the metric of calls.
    fn label(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Error => "error",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// Body of a request.
#[derive(Debug, Serialize)]
struct Request<'a> {
    name: &'a str,
    arguments: &'a Map<String, Value>,
    session: &'a str,
    turn: u32,
    call: u32,
}

impl ToolServers {
    /// `run` distinguishes the sessions of runs that share a server.
    pub fn new(spec: &ToolsWorkflow, run: &str) -> Result<Self, reqwest::Error> {
        let server = |tool: &ToolSpec| Ok((tool.name.clone(), ToolServer::new(tool)?));
        let servers = spec.tools.iter().map(server).collect::<Result<_, _>>()?;
        Ok(Self { spec: spec.clone(), run: run.to_owned(), servers })
    }

    /// Tools for the chat template.
    pub fn described(&self) -> Tools {
        let tools = self.spec.tools.iter();
        tools.map(|tool| Tool::new(&tool.name, &tool.description, &tool.parameters)).collect()
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

    /// Executes the calls of turn `number` of a sample: a message for each.
    pub async fn execute(
        &self,
        key: Key,
        number: u32,
        calls: &[Result<ToolCall, ToolCallError>],
        counts: &ToolCalls,
    ) -> Result<Vec<Message>, RewardError> {
        let session = session(&self.run, key);
        let mut messages = Vec::with_capacity(calls.len().min(MAX_CALLS));
        for (index, call) in (0_u32..).zip(calls.iter().take(MAX_CALLS)) {
            let (tool, result) = self.result(&session, number, index, call).await;
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
        turn: u32,
        index: u32,
        call: &Result<ToolCall, ToolCallError>,
    ) -> (&str, Result<Answer, RewardError>) {
        let ToolCall { name, arguments } = match call {
            Ok(call) => call,
            Err(error) => return ("", Ok((Outcome::Malformed, format!("error: {error}")))),
        };
        let Some((tool, server)) = self.servers.get_key_value(name) else {
            let names: Vec<&str> = self.servers.keys().map(String::as_str).collect();
            let message = format!("error: no tool {name}; the tools are {}", names.join(", "));
            return ("", Ok((Outcome::Unknown, message)));
        };
        let request = Request { name, arguments, session, turn, call: index };
        (tool, server.call(&request).await)
    }

    /// The outage of the first tool that is down.
    pub fn outage(&self) -> Option<RewardOutage> {
        self.servers.values().find_map(|tool| tool.service.outage())
    }
}

impl ToolServer {
    fn new(tool: &ToolSpec) -> Result<Self, reqwest::Error> {
        let HttpTool { url, timeout_seconds, retries, concurrency, max_outage_seconds } =
            &tool.http;
        let label = format!("tool {} ({})", tool.name, without_secrets(url));
        let max_outage = Duration::from_secs((*max_outage_seconds).into());
        Ok(Self {
            url: url.clone(),
            server: Server::new(*timeout_seconds, *concurrency)?,
            service: Service::new(label, *retries, max_outage),
        })
    }

    async fn call(&self, request: &Request<'_>) -> Result<Answer, RewardError> {
        let call = || async move {
            let request = self.server.client.post(&self.url).json(request);
            result_of(self.server.call(request).await)
        };
        self.service.call(call).await
    }
}

/// The result for the model.
fn result_of(response: Result<Vec<u8>, VerifierError>) -> Result<Answer, VerifierError> {
    match response {
        Ok(body) => String::from_utf8(body)
            .map(|text| (Outcome::Result, text))
            .map_err(|error| unexpected(error.as_bytes(), "text or JSON", &error.utf8_error())),
        Err(VerifierError::Status { status, excerpt }) if REJECTED.contains(&status.as_u16()) => {
            Ok((Outcome::Error, format!("error: {excerpt}")))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
