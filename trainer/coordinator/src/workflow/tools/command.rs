//! Tool that is a program: `rljob-sandbox` runs it once per call.

use std::path::PathBuf;
use std::time::Duration;

use rljob_crds::workflow::CommandTool;
use rljob_sandbox::tool::{ToolOutcome, ToolRequest, ToolResponse, ToolSettings};
use serde_json::Value;

use super::call::{Answer, Outcome, Request};
use crate::reward::session::Start;
use crate::reward::{Runner, Sessions, VerifierError, excerpt, unexpected};

/// Time of the sandbox beyond the limit of a call: its start and its end.
const GRACE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct ToolCommand {
    timeout_seconds: u32,
    memory_mib: u32,
    output_kib: u32,
    sessions: Sessions,
}

impl ToolCommand {
    /// Starts no process; `call` starts them on demand.
    pub fn new(spec: &CommandTool, runner: &Runner) -> Result<Self, serde_json::Error> {
        let settings = ToolSettings {
            command: spec.command.clone(),
            folder: spec.folder.as_ref().map(PathBuf::from),
            timeout_seconds: spec.timeout_seconds,
            memory_mib: spec.memory_mebibytes,
            output_kib: spec.output_kibibytes,
        };
        let settings = serde_json::to_string(&settings)?;
        let start = Start::Sandbox(vec!["tool".to_owned(), "--settings".to_owned(), settings]);
        let timeout = Duration::from_secs(spec.timeout_seconds.into()).saturating_add(GRACE);
        Ok(Self {
            timeout_seconds: spec.timeout_seconds,
            memory_mib: spec.memory_mebibytes,
            output_kib: spec.output_kibibytes,
            sessions: Sessions::new(start, runner, timeout, spec.concurrency),
        })
    }

    pub async fn call(&self, request: &Request<'_>) -> Result<Answer, VerifierError> {
        let input = Value::Object(request.arguments.clone()).to_string();
        let outcome = self.sessions.exchange(|id| ToolRequest { id, input }, parse).await?;
        Ok(self.answer(outcome))
    }

    /// The result for the model.
    fn answer(&self, outcome: ToolOutcome) -> Answer {
        let (outcome, cause) = match outcome {
            ToolOutcome::Output(output) => {
                return (Outcome::Result, output.trim_end_matches(['\r', '\n']).to_owned());
            }
            ToolOutcome::Failed { status, stderr } if stderr.is_empty() => (Outcome::Error, status),
            ToolOutcome::Failed { stderr, .. } => (Outcome::Error, excerpt(stderr.as_bytes())),
            ToolOutcome::TimeLimit => {
                (Outcome::TimeLimit, format!("no result within {} s", self.timeout_seconds))
            }
            ToolOutcome::MemoryLimit => {
                (Outcome::Error, format!("more than {} MiB of memory", self.memory_mib))
            }
            ToolOutcome::OutputLimit => {
                (Outcome::OutputLimit, format!("more than {} KiB of output", self.output_kib))
            }
            ToolOutcome::NotText => (Outcome::Error, "the output is not UTF-8".to_owned()),
        };
        (outcome, format!("error: {cause}"))
    }
}

fn parse(line: &[u8], id: u64) -> Result<ToolOutcome, VerifierError> {
    let expected = "the outcome of the call";
    let response: ToolResponse =
        serde_json::from_slice(line).map_err(|error| unexpected(line, expected, &error))?;
    if response.id != id {
        return Err(unexpected(line, expected, &"another id"));
    }
    Ok(response.outcome)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn outcomes_are_results_and_errors_for_the_model() {
        let spec = serde_json::from_value(json!({"command": ["bc"], "timeoutSeconds": 3}));
        let tool = ToolCommand::new(&spec.unwrap(), &Runner::Program("runner".into())).unwrap();
        let failed = |stderr: &str| {
            let (status, stderr) = ("exit status: 2".to_owned(), stderr.to_owned());
            ToolOutcome::Failed { status, stderr }
        };
        let cases = [
            (ToolOutcome::Output(" 7\r\n\n".to_owned()), Outcome::Result, " 7"),
            (failed("a\tis missing"), Outcome::Error, "error: a is missing"),
            (failed(""), Outcome::Error, "error: exit status: 2"),
            (ToolOutcome::TimeLimit, Outcome::TimeLimit, "error: no result within 3 s"),
            (ToolOutcome::MemoryLimit, Outcome::Error, "error: more than 512 MiB of memory"),
            (ToolOutcome::OutputLimit, Outcome::OutputLimit, "error: more than 64 KiB of output"),
            (ToolOutcome::NotText, Outcome::Error, "error: the output is not UTF-8"),
        ];
        for (outcome, expected, text) in cases {
            assert_eq!(tool.answer(outcome), (expected, text.to_owned()));
        }
    }
}
