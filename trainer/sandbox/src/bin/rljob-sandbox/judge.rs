//! Judge: runs a program on its tests in one sandbox, test by test, and compares the outcomes. The
//! expected outputs never enter the sandbox, except those in statements.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use rljob_sandbox::cpp;
use rljob_sandbox::filter;
use rljob_sandbox::message::{Outcome, Request, Response, Settings};
use rljob_sandbox::output::{equal_results, equal_streams};
use rljob_sandbox::plan::Plan;
use rljob_sandbox::program::Language;
use rljob_sandbox::tests_of_row::Tests;
use rustix::process::{getpid, set_child_subreaper};
use tempfile::TempDir;

use crate::driver::{Driver, Silence};
use crate::node::{PYTHON, entering, has_namespaces, program, scratch};

const DRIVER: &str = include_str!("driver.py");
/// Maximum time until the driver runs.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time of the driver beyond the limit of a test.
const GRACE: Duration = Duration::from_secs(5);

/// Answers requests until the end of standard input.
pub fn run(settings: &Settings, may_have_namespaces: bool) -> anyhow::Result<()> {
    set_child_subreaper(Some(getpid())).context("failed to become a subreaper")?;
    if settings.compiles {
        program("g++")?;
    }
    let namespaces = may_have_namespaces
        && has_namespaces(false, PYTHON, |namespaces, scratch| {
            Plan::for_tests(settings, namespaces, scratch)
        })?;
    let judge = Judge { settings, namespaces, mount: scratch(false)? };
    let mut output = std::io::stdout().lock();
    for line in BufReader::new(std::io::stdin()).lines() {
        let request: Request = serde_json::from_str(&line?).context("invalid request")?;
        let tests = Tests::parse(&request.tests).map_err(anyhow::Error::msg)?;
        let outcomes = judge.outcomes(&request, &tests)?;
        serde_json::to_writer(&mut output, &Response { id: request.id, outcomes })?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

struct Judge<'a> {
    settings: &'a Settings,
    namespaces: bool,
    /// Where the files of each program are mounted, with namespaces.
    mount: TempDir,
}

/// A compiled program.
#[derive(Clone, Copy)]
struct Run<'a> {
    driver: &'a Driver,
    tests: &'a Tests,
    language: Language,
    secret: &'a [u8],
    end: Instant,
}

impl Judge<'_> {
    /// Outcomes of a program, one per test. An error says that the sandbox did not start.
    fn outcomes(&self, request: &Request, tests: &Tests) -> anyhow::Result<Vec<Outcome>> {
        let all = |outcome| vec![outcome; tests.count()];
        let scratch = if self.namespaces { None } else { Some(scratch(false)?) };
        let folder = scratch.as_ref().unwrap_or(&self.mount).path().to_owned();
        let limits = &self.settings.limits;
        let plan = Plan::for_tests(self.settings, self.namespaces, folder);
        let mut command = entering(&plan, false)?;
        command.arg(program("python3")?).args(["-c", DRIVER]).stderr(Stdio::inherit());
        let longest = (limits.output_kib as usize).saturating_mul(1024).max(1024);
        let driver = Driver::start(command, &plan, longest)?;
        let secret = driver.receive(deadline(START_TIMEOUT));
        let secret = secret.map_err(|silence| anyhow::anyhow!("no sandbox: {silence:?}"))?;
        let end = deadline(Duration::from_secs(limits.total_seconds.into()));
        self.set_up(&driver, request, tests)?;
        let compiling = u64::from(limits.compile_seconds);
        match driver
            .receive(end.min(deadline(Duration::from_secs(compiling).saturating_add(GRACE))))
        {
            Ok(status) if status == b"compiled" => {}
            Ok(_) | Err(Silence::Ended) => return Ok(all(Outcome::NotCompiled)),
            Err(Silence::Late) => return Ok(all(Outcome::TimeLimit)),
        }
        driver.memory.set(u64::from(limits.memory_mib) << 20);
        let run = Run { driver: &driver, tests, language: request.language, secret: &secret, end };
        Ok(self.run_tests(&run))
    }

    fn set_up(&self, driver: &Driver, request: &Request, tests: &Tests) -> anyhow::Result<()> {
        let (kind, setup) = match tests {
            Tests::Streams(_) => ("streams", ""),
            Tests::Calls { function, .. } => ("calls", function.as_str()),
            Tests::Asserts { setup, .. } => ("asserts", setup.as_str()),
        };
        let limits = &self.settings.limits;
        let header = format!(
            "{kind} {:?} {} {} {} {} {} {}",
            request.language,
            u8::from(self.namespaces),
            limits.compile_seconds,
            limits.test_seconds,
            u64::from(limits.memory_mib) << 20,
            limits.processes,
            u64::from(limits.output_kib) << 10,
        );
        let filter = filter::bytes(&filter::test(!self.namespaces)?);
        let program = match request.language {
            Language::Python => request.program.clone(),
            Language::Cpp => cpp::source(&request.program, tests),
        };
        for message in [header.into_bytes(), setup.into(), program.into_bytes(), filter] {
            driver.send(message);
        }
        Ok(())
    }

    fn run_tests(&self, run: &Run<'_>) -> Vec<Outcome> {
        let Run { tests, end, .. } = *run;
        let mut outcomes = Vec::with_capacity(tests.count());
        for index in 0..tests.count() {
            let outcome = self.run_test(run, index);
            let stops = self.settings.stops_at_failure && outcome != Outcome::Passed;
            outcomes.push(outcome);
            if stops || Instant::now() >= end {
                break;
            }
        }
        outcomes.resize(tests.count(), Outcome::Skipped);
        outcomes
    }

    fn run_test(&self, run: &Run<'_>, index: usize) -> Outcome {
        let Run { driver, tests, language, secret, end } = *run;
        driver.memory.was_exceeded();
        driver.send(input(tests, language, index));
        let limit = u64::from(self.settings.limits.test_seconds).saturating_mul(2);
        let deadline = end.min(deadline(Duration::from_secs(limit).saturating_add(GRACE)));
        let received = driver
            .receive(deadline)
            .and_then(|status| driver.receive(deadline).map(|output| (status, output)));
        match received {
            Ok((status, output)) => match status.as_slice() {
                b"0" if is_expected(tests, index, secret, &output) => Outcome::Passed,
                b"0" => Outcome::Wrong,
                b"time" => Outcome::TimeLimit,
                b"output" => Outcome::OutputLimit,
                _ if driver.memory.was_exceeded() => Outcome::MemoryLimit,
                _ => Outcome::Failed,
            },
            Err(Silence::Ended) => Outcome::Failed,
            Err(Silence::Late) => Outcome::TimeLimit,
        }
    }
}

fn deadline(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or(now)
}

/// What the driver needs for a test. Statements of C++ are in the program.
fn input(tests: &Tests, language: Language, index: usize) -> Vec<u8> {
    let input = match tests {
        Tests::Asserts { .. } if language == Language::Cpp => Some(index.to_string()),
        Tests::Streams(cases) => cases.get(index).map(|(input, _)| input.clone()),
        Tests::Calls { cases, .. } => cases.get(index).map(|(arguments, _)| arguments.to_string()),
        Tests::Asserts { statements, .. } => statements.get(index).cloned(),
    };
    input.unwrap_or_default().into_bytes()
}

fn is_expected(tests: &Tests, index: usize, secret: &[u8], output: &[u8]) -> bool {
    match tests {
        Tests::Streams(cases) => cases
            .get(index)
            .is_some_and(|(_, expected)| equal_streams(&String::from_utf8_lossy(output), expected)),
        Tests::Calls { cases, .. } => {
            let result = serde_json::from_slice(output).ok();
            let expected = cases.get(index).map(|(_, expected)| expected);
            result.zip(expected).is_some_and(|(result, expected)| equal_results(&result, expected))
        }
        Tests::Asserts { .. } => output == secret,
    }
}
