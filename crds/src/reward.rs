//! How completions are scored: by built-in verifiers, or by a user's own behind HTTP or a command.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// How a completion is scored. Exactly one of the fields. A verifier that fails is tried again,
/// then its sample is rejected: it is never scored 0.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("[has(self.math), has(self.exactMatch), has(self.regex), has(self.http), has(self.command)].filter(x, x).size() == 1").message("set exactly one of math, exactMatch, regex, http and command"))]
pub struct RewardSpec {
    /// 1 if the completion's final answer equals the reference answer by value (`0.5` is
    /// `\frac{1}{2}`, `\{2, 1\}` is `1, 2`), else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub math: Option<MathReward>,
    /// 1 if the completion equals the answer, leading and trailing white space aside, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<ExactMatchReward>,
    /// 1 if the completion matches a regular expression, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<RegexReward>,
    /// A server of the user's own: it gets one POST a completion and answers the reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpReward>,
    /// A command of the user's own, long-lived: it reads one JSON line a completion and answers
    /// with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandReward>,
}

/// Settings of the `math` reward.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MathReward {
    /// Where a completion's final answer is looked for: the first of these places that the
    /// completion has decides. Default Hashes, Boxed, Phrase, LastNumber.
    #[serde(default = "extract")]
    #[schemars(length(min = 1, max = 5))]
    pub extract: Vec<AnswerPlace>,
}

fn extract() -> Vec<AnswerPlace> {
    vec![AnswerPlace::Hashes, AnswerPlace::Boxed, AnswerPlace::Phrase, AnswerPlace::LastNumber]
}

impl Default for MathReward {
    fn default() -> Self {
        Self { extract: extract() }
    }
}

/// A place of a completion's final answer.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum AnswerPlace {
    /// What follows the last `####` on its line.
    Hashes,
    /// The content of the last `\boxed{}`.
    Boxed,
    /// What follows the last `answer is` or `answer:` in its sentence, capitals aside.
    Phrase,
    /// The last formula between `$`, `\(` and `\)` or `\[` and `\]`.
    Formula,
    /// The last number of the text.
    LastNumber,
}

/// Settings of the `exactMatch` reward.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExactMatchReward {}

/// Settings of the `regex` reward.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegexReward {
    /// Regular expression in the syntax of Rust's `regex` crate. A match anywhere in the completion
    /// counts; `^` and `$` anchor it.
    #[schemars(length(min = 1, max = 4096))]
    pub pattern: String,
}

/// Settings of the `http` reward. The request is a POST of `{"prompt": text, "completion": text,
/// "answer": text or null}`; the answer is `{"reward": number}`, optionally with
/// `"components": {name: number}`, and with `"answer": text`, the final answer of the completion,
/// from which evaluations compute maj@k.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpReward {
    /// Where completions are posted.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ ]"))]
    pub url: String,
    /// Seconds that one try may take. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Tries after the first one fails, 1, 2, 4, … at most 30 seconds after each other. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Requests at once. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
}

/// Settings of the `command` reward. A request is a line `{"id": number, "prompt": text,
/// "completion": text, "answer": text or null}` on standard input; the answer is a line `{"id": the
/// same, "reward": number}` on standard output, optionally with `"components": {name: number}` and
/// `"answer": text`, as for `http`. Nothing else may stand there; standard error goes to the coordinator's log.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandReward {
    /// Program and arguments. It runs beside the coordinator, in its working directory, until the
    /// run ends; it is started again after a failure.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 4096)))]
    pub command: Vec<String>,
    /// Seconds that one try may take, the start of the program included. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Tries after the first one fails, 1, 2, 4, … at most 30 seconds after each other. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Copies of the program; each scores one completion at a time. Default 1.
    #[serde(default = "processes")]
    #[schemars(range(min = 1, max = 256))]
    pub processes: u32,
}

fn timeout_seconds() -> u32 {
    15
}

fn retries() -> u32 {
    5
}

fn concurrency() -> u32 {
    64
}

fn processes() -> u32 {
    1
}
