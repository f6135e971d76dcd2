//! Python reward: a function of the user in a long-lived process of the sandbox.
//!
//! An exception, or a result that is not a reward, is a fault of the function: the same completion
//! would cause it again. Everything else that fails (a process that ends, no response in time, a
//! lost pod) may succeed at the next try.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use rljob_crds::program_reward::PythonReward;
use rljob_math::reference_text;
use rljob_sandbox::plan::FunctionLimits;
use serde::Deserialize;

use crate::reward::connection::Runner;
use crate::reward::external::{Request, parse, unexpected};
use crate::reward::session::Start;
use crate::reward::sessions::Sessions;
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

/// Processes and threads of a function.
const PROCESSES: u32 = 64;
/// All files of a function in MiB.
const FILES: u32 = 64;

#[derive(Debug)]
pub struct PythonVerifier {
    description: String,
    retries: u32,
    sessions: Sessions,
}

/// The response to a completion that the function does not score.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    id: u64,
    /// What the function did, after "the function".
    fault: String,
}

impl PythonVerifier {
    /// Starts no process; `score` starts them on demand.
    pub fn new(spec: &PythonReward, runner: &Runner) -> Result<Self, serde_json::Error> {
        let limits = FunctionLimits {
            memory_mib: spec.memory_mebibytes,
            processes: PROCESSES,
            files_mib: FILES,
        };
        let limits = serde_json::to_string(&limits)?;
        let arguments = ["function", "--limits", &limits, "--", &spec.path, &spec.function];
        let start = Start::Sandbox(arguments.map(str::to_owned).to_vec());
        let timeout = Duration::from_secs(spec.timeout_seconds.into());
        Ok(Self {
            description: format!("python {} of {}", spec.function, spec.path),
            retries: spec.retries,
            sessions: Sessions::new(start, runner, timeout, spec.processes),
        })
    }

    async fn call(&self, question: Question<'_>) -> Result<Score, VerifierError> {
        let request = |id| Request::new(Some(id), question);
        // The process of a function that has a fault is kept: it waits for the next completion.
        let response = |line: &[u8], id| {
            Ok(match fault(line, id) {
                Some(fault) => Err(VerifierError::Function(fault)),
                None => Ok(parse(line, Some(id))?),
            })
        };
        self.sessions.exchange(request, response).await?
    }
}

fn fault(line: &[u8], id: u64) -> Option<String> {
    let fault = serde_json::from_slice::<Fault>(line).ok()?;
    (fault.id == id).then_some(fault.fault)
}

impl Verifier for PythonVerifier {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        self.call(question).boxed()
    }

    /// The process answers `null` to `null` if it can call the function.
    fn check(&self) -> BoxFuture<'_, Result<(), VerifierError>> {
        let parse = |line: &[u8], _| {
            serde_json::from_slice(line).map_err(|error| unexpected(line, "null", &error))
        };
        self.sessions.exchange(|_| (), parse).boxed()
    }

    fn retries(&self) -> u32 {
        self.retries
    }

    /// Functions of data such as GSM8K and MATH need one of these forms.
    fn statements(&self, answer: &str) -> Vec<String> {
        let text = reference_text(answer);
        vec![answer.to_owned(), format!("#### {text}"), format!("\\boxed{{{text}}}")]
    }
}
