//! Command reward: long-lived processes that read one JSON line per completion and answer with one
//! ([`sessions`](super::sessions)). Python functions are such processes in the sandbox.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use rljob_crds::program_reward::PythonReward;
use rljob_crds::reward::CommandReward;
use rljob_sandbox::plan::FunctionLimits;

use crate::reward::connection::Runner;
use crate::reward::external::{Request, parse, unexpected};
use crate::reward::session::Start;
use crate::reward::sessions::Sessions;
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

/// Processes and threads of a function.
const FUNCTION_PROCESSES: u32 = 64;
/// All files of a function in MiB.
const FUNCTION_FILES: u32 = 64;

#[derive(Debug)]
pub struct CommandVerifier {
    description: String,
    retries: u32,
    sessions: Sessions,
    /// Whether the process answers `null` to `null`.
    is_function: bool,
}

impl CommandVerifier {
    /// Starts no process; `score` starts them on demand.
    pub fn new(spec: &CommandReward, runner: &Runner) -> Self {
        let start = Start::Command(spec.command.clone());
        let timeout = Duration::from_secs(spec.timeout_seconds.into());
        Self {
            description: format!("command {}", spec.command.join(" ")),
            retries: spec.retries,
            sessions: Sessions::new(start, runner, timeout, spec.processes),
            is_function: false,
        }
    }

    /// The process of a Python function. Starts none.
    pub fn of_function(spec: &PythonReward, runner: &Runner) -> Result<Self, serde_json::Error> {
        let limits = FunctionLimits {
            memory_mib: spec.memory_mebibytes,
            processes: FUNCTION_PROCESSES,
            files_mib: FUNCTION_FILES,
        };
        let limits = serde_json::to_string(&limits)?;
        let arguments = ["function", "--limits", &limits, "--", &spec.path, &spec.function];
        let start = Start::Sandbox(arguments.map(str::to_owned).to_vec());
        let timeout = Duration::from_secs(spec.timeout_seconds.into());
        Ok(Self {
            description: format!("python {} of {}", spec.function, spec.path),
            retries: spec.retries,
            sessions: Sessions::new(start, runner, timeout, spec.processes),
            is_function: true,
        })
    }
}

impl Verifier for CommandVerifier {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        let request = move |id| Request::new(Some(id), question);
        self.sessions.exchange(request, |line, id| parse(line, Some(id))).boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), VerifierError>> {
        async {
            if !self.is_function {
                return Ok(());
            }
            let parse = |line: &[u8], _| {
                serde_json::from_slice(line).map_err(|error| unexpected(line, "null", &error))
            };
            self.sessions.exchange(|_| (), parse).await
        }
        .boxed()
    }

    fn retries(&self) -> u32 {
        self.retries
    }
}
