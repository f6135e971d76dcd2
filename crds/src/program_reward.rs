//! Rewards that run programs in a sandbox: the program of a completion, and functions of the user.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::verifier::{max_outage_seconds, retries, timeout_seconds};

/// Settings of the `code` reward. The program is the last fenced code block of the completion; a
/// completion without one scores 0. The tests are the answer of the row (`dataset.train.answer`),
/// as JSON: `{"inputs": [text], "outputs": [text]}` compares standard output, with `"fn_name"` the
/// result of a function; a list of `assert` statements, or `{"asserts": [text], "setup": text}`,
/// runs them after the program.
///
/// On a cluster, programs run in the container `rewards` of the coordinator's pod or of verifier
/// pods, as commands do, with `python3` and `g++` of its image. A sandbox that fails is retried;
/// then the sample is rejected. The outcome of each test is kept with the sample. Components are
/// `passed` (share of tests), `program` (whether there is one), `compiled` and `timeLimit` (share
/// of tests).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CodeReward {
    /// Language of the programs. Default Python.
    #[serde(default)]
    pub language: ProgramLanguage,
    /// Reward of the outcomes. Default All.
    #[serde(default)]
    pub verdict: TestVerdict,
    /// Limits of a program.
    #[serde(default)]
    pub limits: ProgramLimits,
    /// Programs that run at a time, in each verifier pod. Default 2.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 256))]
    pub concurrency: u32,
    /// Retries after the sandbox failed, after growing waits of at most 30 s. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Seconds for which sampling waits for a sandbox that fails. Meanwhile, Ready has reason
    /// RewardUnavailable. Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

impl Default for CodeReward {
    fn default() -> Self {
        Self {
            language: ProgramLanguage::default(),
            verdict: TestVerdict::default(),
            limits: ProgramLimits::default(),
            concurrency: concurrency(),
            retries: retries(),
            max_outage_seconds: max_outage_seconds(),
        }
    }
}

/// Language of a program.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ProgramLanguage {
    /// Python 3, whatever the tag of the code block.
    #[default]
    Python,
    /// C++17, whatever the tag of the code block.
    Cpp,
    /// The language that the tag of the code block names: `python`, `python3` or `py`, and `cpp`,
    /// `c++`, `cc` or `cxx`. A block with another tag scores 0.
    FromFence,
}

/// Reward of the outcomes of tests.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TestVerdict {
    /// 1 if all tests pass, else 0. The tests after the first that fails are skipped.
    #[default]
    All,
    /// The share of the tests that pass.
    Share,
}

/// Limits of a program. A program that exceeds one fails its test.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProgramLimits {
    /// Seconds to compile. Default 10.
    #[serde(default = "compile_seconds")]
    #[schemars(range(min = 1, max = 600))]
    pub compile_seconds: u32,
    /// Processor seconds of a test. By the clock, it may take twice as many. Default 5.
    #[serde(default = "test_seconds")]
    #[schemars(range(min = 1, max = 600))]
    pub test_seconds: u32,
    /// Seconds for the compilation and all tests of a program. Further tests are skipped. Default
    /// 60.
    #[serde(default = "total_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub total_seconds: u32,
    /// Memory in MiB: address space of each process of a test, and memory of its processes
    /// together. Default 512.
    #[serde(default = "memory_mebibytes")]
    #[schemars(range(min = 64, max = 65536))]
    pub memory_mebibytes: u32,
    /// Processes and threads of a test. Where the node allows no user namespaces, a test is one
    /// process, whose threads only its memory limits. Default 16.
    #[serde(default = "processes")]
    #[schemars(range(min = 1, max = 1024))]
    pub processes: u32,
    /// Standard output of a test in KiB. Default 1024.
    #[serde(default = "output_kibibytes")]
    #[schemars(range(min = 1, max = 65536))]
    pub output_kibibytes: u32,
    /// All files of a program in MiB. They are in memory. Where the node allows no user
    /// namespaces, a test cannot write files. Default 64.
    #[serde(default = "files_mebibytes")]
    #[schemars(range(min = 1, max = 65536))]
    pub files_mebibytes: u32,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            compile_seconds: compile_seconds(),
            test_seconds: test_seconds(),
            total_seconds: total_seconds(),
            memory_mebibytes: memory_mebibytes(),
            processes: processes(),
            output_kibibytes: output_kibibytes(),
            files_mebibytes: files_mebibytes(),
        }
    }
}

/// Settings of the `python` reward: a function that is called with the keywords `prompt`,
/// `completion` and `answer` (text or None), and, if it takes it, `fields` (values by the names in
/// `rewardFields` of the data). It returns a number, or `{"reward": number, "components": {name:
/// number}, "answer": text}` as `http` does. It runs in the sandbox of `code` and reads the folder
/// of its file, which it can import from. A file that cannot be imported, or that has no function
/// with these keywords, fails the run. A sample for which the function raises or returns no number
/// is rejected without retries. If those are the first 16 completions, or later 256 in a row, the
/// run fails.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PythonReward {
    /// File of Python code. On a cluster, in a volume of `spec.volumes`. `rljob run` resolves a
    /// relative path against the job file.
    #[schemars(length(min = 1, max = 4096))]
    pub path: String,
    /// Name of the function.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub function: String,
    /// Memory in MiB: address space of each process of the function, and memory of its processes
    /// together. Default 2048.
    #[serde(default = "function_memory_mebibytes")]
    #[schemars(range(min = 64, max = 1_048_576))]
    pub memory_mebibytes: u32,
    /// Seconds per try, including the start of the process. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries after the process ended or did not respond in time, after growing waits of at most
    /// 30 s. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Processes, in each verifier pod; each scores one completion at a time. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub processes: u32,
    /// Seconds for which sampling waits for processes that end or do not respond in time for 16
    /// completions in a row. Meanwhile, Ready has reason RewardUnavailable. Then the run fails.
    /// Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

fn compile_seconds() -> u32 {
    10
}

fn test_seconds() -> u32 {
    5
}

fn total_seconds() -> u32 {
    60
}

fn memory_mebibytes() -> u32 {
    512
}

fn function_memory_mebibytes() -> u32 {
    2048
}

fn processes() -> u32 {
    16
}

fn output_kibibytes() -> u32 {
    1024
}

fn files_mebibytes() -> u32 {
    64
}

fn concurrency() -> u32 {
    2
}

fn one() -> u32 {
    1
}
