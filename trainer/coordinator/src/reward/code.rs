//! Code reward: the program in a completion passes the tests of its row. `rljob-sandbox` runs it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, ready};
use rljob_crds::program_reward::{CodeReward, ProgramLanguage, TestVerdict};
use rljob_sandbox::cpp::is_python;
use rljob_sandbox::message::{Limits, Outcome, Request, Response, Settings, share};
use rljob_sandbox::program::{Block, Language, last_block};
use rljob_sandbox::tests_of_row::Tests;

use crate::reward::connection::Runner;
use crate::reward::external::invalid;
use crate::reward::session::Start;
use crate::reward::sessions::Sessions;
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

/// Time of the sandbox beyond the limit of a program: its start and its end.
const GRACE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct CodeVerifier {
    language: ProgramLanguage,
    verdict: TestVerdict,
    retries: u32,
    sessions: Sessions,
}

impl CodeVerifier {
    /// Starts no process; `score` starts them on demand.
    pub fn new(spec: &CodeReward, runner: &Runner) -> Result<Self, serde_json::Error> {
        let settings = serde_json::to_string(&settings(spec))?;
        let start = Start::Sandbox(vec!["judge".to_owned(), "--settings".to_owned(), settings]);
        let total = Duration::from_secs(spec.limits.total_seconds.into());
        let timeout = total.saturating_add(GRACE);
        Ok(Self {
            language: spec.language,
            verdict: spec.verdict,
            retries: spec.retries,
            sessions: Sessions::new(start, runner, timeout, spec.concurrency),
        })
    }

    async fn run(&self, request: Request) -> Result<Score, VerifierError> {
        let response = self.sessions.exchange(|id| Request { id, ..request }, parse).await?;
        Ok(score(&response.outcomes, self.verdict))
    }
}

fn settings(spec: &CodeReward) -> Settings {
    let limits = &spec.limits;
    Settings {
        limits: Limits {
            compile_seconds: limits.compile_seconds,
            test_seconds: limits.test_seconds,
            total_seconds: limits.total_seconds,
            memory_mib: limits.memory_mebibytes,
            processes: limits.processes,
            output_kib: limits.output_kibibytes,
            files_mib: limits.files_mebibytes,
        },
        compiles: spec.language != ProgramLanguage::Python,
        stops_at_failure: spec.verdict == TestVerdict::All,
    }
}

/// Language of a program; `None` if its tag names none that the spec allows.
fn language(spec: ProgramLanguage, block: &Block<'_>) -> Option<Language> {
    match spec {
        ProgramLanguage::Python => Some(Language::Python),
        ProgramLanguage::Cpp => Some(Language::Cpp),
        ProgramLanguage::FromFence => block.language(),
    }
}

fn parse(line: &[u8], id: u64) -> Result<Response, VerifierError> {
    let response: Response = serde_json::from_slice(line).map_err(|error| invalid(line, &error))?;
    if response.id == id { Ok(response) } else { Err(invalid(line, &"another id")) }
}

/// The score of a completion with a program.
fn score(outcomes: &[Outcome], verdict: TestVerdict) -> Score {
    let share_of = |outcome: Outcome| {
        let count = outcomes.iter().filter(|other| **other == outcome).count();
        if outcomes.is_empty() { 0.0 } else { count as f64 / outcomes.len() as f64 }
    };
    let passed = share(outcomes);
    let value = match verdict {
        TestVerdict::All => passed.floor(),
        TestVerdict::Share => passed,
    };
    let compiled = f64::from(u8::from(!outcomes.contains(&Outcome::NotCompiled)));
    Score {
        value,
        components: components(passed, 1.0, compiled, share_of(Outcome::TimeLimit)),
        details: serde_json::to_value(outcomes).ok(),
        ..Score::default()
    }
}

fn components(passed: f64, program: f64, compiled: f64, time: f64) -> BTreeMap<String, f64> {
    let named =
        [("passed", passed), ("program", program), ("compiled", compiled), ("timeLimit", time)];
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Verifier for CodeVerifier {
    fn description(&self) -> String {
        "code".to_owned()
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        let program = last_block(question.completion);
        let language = program.and_then(|block| language(self.language, &block));
        let (Some(block), Some(language), Some(tests)) = (program, language, question.answer)
        else {
            let components = components(0.0, 0.0, 0.0, 0.0);
            return ready(Ok(Score { components, ..Score::default() })).boxed();
        };
        let (program, tests) = (block.text.to_owned(), tests.to_owned());
        self.run(Request { id: 0, language, program, tests }).boxed()
    }

    fn retries(&self) -> u32 {
        self.retries
    }

    fn needs_answers(&self) -> bool {
        true
    }

    fn check_answer(&self, answer: &str) -> Result<(), &'static str> {
        let tests = Tests::parse(answer)?;
        let Tests::Asserts { statements, .. } = tests else { return Ok(()) };
        let is_cpp = self.language == ProgramLanguage::Cpp;
        if is_cpp && statements.iter().any(|statement| is_python(statement)) {
            return Err("asserts of C++ programs are statements of C++: assert(f(1) == 2);");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "shares are exact")]

    use serde_json::json;

    use super::*;

    #[test]
    fn the_verdict_is_all_or_a_share_and_outcomes_are_kept() {
        let outcomes = [Outcome::Passed, Outcome::TimeLimit, Outcome::Skipped, Outcome::Passed];
        let all = score(&outcomes, TestVerdict::All);
        let share = score(&outcomes, TestVerdict::Share);
        assert_eq!((all.value, share.value), (0.0, 0.5));
        assert_eq!(share.components, components(0.5, 1.0, 1.0, 0.25));
        assert_eq!(all.details, Some(json!(["Passed", "TimeLimit", "Skipped", "Passed"])));
        assert_eq!(score(&[Outcome::Passed; 3], TestVerdict::All).value, 1.0);
        let failed = score(&[Outcome::NotCompiled; 2], TestVerdict::Share);
        assert_eq!((failed.value, failed.components["compiled"]), (0.0, 0.0));
    }
}
