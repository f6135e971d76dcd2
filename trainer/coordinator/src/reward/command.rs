//! Command reward: long-lived processes that read one JSON line per completion and answer with one
//! ([`sessions`](super::sessions)).

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use rljob_crds::reward::CommandReward;

use crate::reward::connection::Runner;
use crate::reward::external::{Request, parse};
use crate::reward::session::Start;
use crate::reward::sessions::Sessions;
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

#[derive(Debug)]
pub struct CommandVerifier {
    description: String,
    retries: u32,
    sessions: Sessions,
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
        }
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

    fn retries(&self) -> u32 {
        self.retries
    }
}
