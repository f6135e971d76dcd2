//! Messages between the coordinator and the judge of programs, and the verdict.

use serde::{Deserialize, Serialize};

use crate::program::Language;

/// Limits of a program. They hold for each process unless stated otherwise.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Seconds to compile, by the clock.
    pub compile_seconds: u32,
    /// Processor seconds of a test; by the clock twice as many.
    pub test_seconds: u32,
    /// Seconds for the compilation and all tests, by the clock.
    pub total_seconds: u32,
    /// Address space in MiB, and memory of all processes together.
    pub memory_mib: u32,
    /// Processes and threads of a test.
    pub processes: u32,
    /// Standard output of a test in KiB.
    pub output_kib: u32,
    /// All files of a program in MiB.
    pub files_mib: u32,
}

/// Settings of a judge: it compares the outcomes of programs with tests.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub limits: Limits,
    /// Whether programs may be in C++.
    pub compiles: bool,
    /// Whether the tests after the first that fails are skipped.
    pub stops_at_failure: bool,
}

/// A program with its tests.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: u64,
    pub language: Language,
    pub program: String,
    /// Format of [`crate::tests_of_row`].
    pub tests: String,
}

/// What the judge found.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub id: u64,
    /// One per test.
    pub outcomes: Vec<Outcome>,
}

/// Outcome of a test.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// The output or result differs from the expected one.
    Wrong,
    /// The program failed: exception, exit code or signal.
    Failed,
    /// The program exceeded a time limit.
    TimeLimit,
    /// The processes of the program exceeded the limit of their memory together. One that exceeds
    /// it alone gets no more memory, and usually fails.
    MemoryLimit,
    /// The program exceeded the limit of its output.
    OutputLimit,
    /// The program does not compile.
    NotCompiled,
    /// The test was not run, because an earlier one failed or the total time was over.
    Skipped,
}

/// Share of the tests that passed.
pub fn share(outcomes: &[Outcome]) -> f64 {
    let passed = outcomes.iter().filter(|outcome| **outcome == Outcome::Passed).count();
    if outcomes.is_empty() { 0.0 } else { passed as f64 / outcomes.len() as f64 }
}
