//! Rewards: built-in verifiers, and custom verifiers behind HTTP or a command.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model_reward::ModelReward;
use crate::program_reward::{CodeReward, PythonReward, TestVerdict};
use crate::repetition_reward::RepetitionReward;
use crate::storage::SecretKeyReference;
use crate::union::{Union, exactly_one};
use crate::verifier::{concurrency, max_outage_seconds, retries, timeout_seconds};

/// A weighted reward. Exactly one of `math`, `exactMatch`, `regex`, `repetition`, `code`, `python`,
/// `model`, `http` and `command`. A verifier that fails is retried; then its sample is rejected,
/// never scored 0.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct RewardSpec {
    /// Name of the reward, unique in the list. Metrics report its mean as `reward/<name>`.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z][-_A-Za-z0-9]*$"))]
    pub name: String,
    /// Factor of the reward in the sum. Default 1.
    #[serde(default = "weight")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub weight: f64,
    /// 1 if the completion's final answer equals the reference answer by value (`0.5` is
    /// `\frac{1}{2}`, `\{2, 1\}` is `1, 2`), else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub math: Option<MathReward>,
    /// 1 if the completion equals the answer without leading and trailing white space, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<ExactMatchReward>,
    /// 1 if the completion matches a regular expression, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<RegexReward>,
    /// Penalty on repeated n-grams of words in the completion (Yeo et al. 2025, arXiv 2502.03373),
    /// from 0 down to `maxPenalty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition: Option<RepetitionReward>,
    /// Whether the program in the completion passes the tests of the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<CodeReward>,
    /// Result of a Python function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonReward>,
    /// Score of a reward model, which a server or engines of the job compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelReward>,
    /// HTTP server that receives one POST per completion and responds with the reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpReward>,
    /// Long-lived command that reads one JSON line per completion and writes one with the reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandReward>,
}

impl Union for RewardSpec {
    const MEMBERS: &'static [&'static str] = &[
        "math",
        "exactMatch",
        "regex",
        "repetition",
        "code",
        "python",
        "model",
        "http",
        "command",
    ];
}

fn weight() -> f64 {
    1.0
}

/// Where a reward is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewardSite {
    /// In the coordinator.
    Coordinator,
    /// By a program, in the reward runner.
    Runner,
    /// By a server outside of the job.
    Server,
    /// By a reward model, on a server or on engines of the job.
    Model,
}

/// What other parts of rljob ask of a kind of reward, instead of comparing kinds.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewardKind {
    /// Name of the member.
    pub name: &'static str,
    /// Where it is computed.
    pub site: RewardSite,
    /// Whether it scores a text without a server, a command or tests.
    pub scores_alone: bool,
    /// Whether it needs a reference answer.
    pub compares: bool,
    /// Whether it is 1 or 0.
    pub is_verdict: bool,
    /// Whether it receives fields of rows.
    pub receives_fields: bool,
}

impl RewardKind {
    const fn new(name: &'static str, site: RewardSite) -> Self {
        Self {
            name,
            site,
            scores_alone: false,
            compares: false,
            is_verdict: false,
            receives_fields: false,
        }
    }
}

impl RewardSpec {
    /// The kinds that are set: one of a valid spec.
    pub fn kinds(&self) -> impl Iterator<Item = RewardKind> {
        use RewardSite::{Coordinator, Model, Runner, Server};
        // Exhaustive: a new kind is a compile error here.
        let Self {
            name: _,
            weight: _,
            math,
            exact_match,
            regex,
            repetition,
            code,
            python,
            model,
            http,
            command,
        } = self;
        let matches = |name, compares| RewardKind {
            scores_alone: true,
            compares,
            is_verdict: true,
            ..RewardKind::new(name, Coordinator)
        };
        let with_fields =
            |name, site| RewardKind { receives_fields: true, ..RewardKind::new(name, site) };
        let kinds = [
            math.as_ref().map(|_| matches("math", true)),
            exact_match.as_ref().map(|_| matches("exactMatch", true)),
            regex.as_ref().map(|_| matches("regex", false)),
            repetition.as_ref().map(|_| RewardKind {
                scores_alone: true,
                ..RewardKind::new("repetition", Coordinator)
            }),
            code.as_ref().map(|code| RewardKind {
                compares: true,
                is_verdict: code.verdict == TestVerdict::All,
                ..RewardKind::new("code", Runner)
            }),
            python
                .as_ref()
                .map(|_| RewardKind { scores_alone: true, ..with_fields("python", Runner) }),
            model.as_ref().map(|_| RewardKind::new("model", Model)),
            http.as_ref().map(|_| with_fields("http", Server)),
            command.as_ref().map(|_| with_fields("command", Runner)),
        ];
        kinds.into_iter().flatten()
    }

    /// Name of the kind that is set.
    pub fn kind(&self) -> &'static str {
        self.kinds().next().map_or("", |kind| kind.name)
    }

    /// Whether the reward scores a text without a server, a command or tests.
    pub fn scores_alone(&self) -> bool {
        self.kinds().any(|kind| kind.scores_alone)
    }

    /// Whether the reward needs a reference answer.
    pub fn compares(&self) -> bool {
        self.kinds().any(|kind| kind.compares)
    }

    /// Whether the reward is 1 or 0.
    pub fn is_verdict(&self) -> bool {
        (self.weight - 1.0).abs() < f64::EPSILON && self.kinds().any(|kind| kind.is_verdict)
    }

    /// Whether the reward receives fields of rows.
    pub fn receives_fields(&self) -> bool {
        self.kinds().any(|kind| kind.receives_fields)
    }

    /// Whether the reward runs programs, which is the task of the reward runner.
    pub fn runs_programs(&self) -> bool {
        self.kinds().any(|kind| kind.site == RewardSite::Runner)
    }
}

impl Default for RewardSpec {
    fn default() -> Self {
        Self {
            name: "reward".to_owned(),
            weight: weight(),
            math: None,
            exact_match: None,
            regex: None,
            repetition: None,
            code: None,
            python: None,
            model: None,
            http: None,
            command: None,
        }
    }
}

/// Settings of the `math` reward.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MathReward {
    /// Places of the final answer in a completion, in order of preference. The first place that the
    /// completion has decides. Default Hashes, Boxed, Phrase, Formula, LastNumber.
    #[serde(default = "extract")]
    #[schemars(length(min = 1, max = 5))]
    pub extract: Vec<AnswerPlace>,
}

fn extract() -> Vec<AnswerPlace> {
    vec![
        AnswerPlace::Hashes,
        AnswerPlace::Boxed,
        AnswerPlace::Phrase,
        AnswerPlace::Formula,
        AnswerPlace::LastNumber,
    ]
}

impl Default for MathReward {
    fn default() -> Self {
        Self { extract: extract() }
    }
}

/// Place of the final answer in a completion.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum AnswerPlace {
    /// Text after the last `####` on its line.
    Hashes,
    /// The content of the last `\boxed{}`.
    Boxed,
    /// Text after the last `answer is` or `answer:` in its sentence, in any case.
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
/// "answer": reference answer or null}`, with `"fields": {name: value}` if the data have
/// `rewardFields`. The response is `{"reward": number}`, optionally with
/// `"components": {name: number}` and with `"answer": text`, the final answer of the completion,
/// from which evaluations compute maj@k.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpReward {
    /// URL that completions are posted to.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ ]"))]
    pub url: String,
    /// Key of a Secret with a bearer token, read for every request; `rljob run` reads `NAME/KEY` in
    /// the folder `RLJOB_SECRETS`. `http://` is not encrypted. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
    /// Seconds per try. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries, after growing waits of at most 30 s. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Concurrent requests. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
    /// Seconds for which sampling waits for a verifier that is down: it cannot be reached, or fails
    /// for 16 completions in a row. Meanwhile, Ready has reason RewardUnavailable. Then the run
    /// fails. Wrong responses fail it without this wait. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

/// Settings of the `command` reward. A request is a line `{"id": number, "prompt": text,
/// "completion": text, "answer": reference answer or null}` on standard input, with `"fields":
/// {name: value}` if the data have `rewardFields`. The response is a line `{"id": the same,
/// "reward": number}` on standard output, optionally with `"components": {name: number}` and
/// `"answer": text`, as for `http`. Standard output must contain nothing else. Standard error is
/// copied to the log of the container.
///
/// On a cluster, the program runs in the container `rewards` of the coordinator's pod, without
/// network, tokens, keys and run directory. It sees `spec.volumes` read-only, except secrets, and
/// can write to `/tmp`. The image is that of the coordinator; `coordinator.template` can set image,
/// resources and mounts of the container. Environment variables are `PATH`, `HOME`, `LANG`,
/// `LC_ALL` and `TZ`. All processes that the program started are killed with it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandReward {
    /// Program and arguments. The program runs until the run ends and is restarted after a failure.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 4096)))]
    pub command: Vec<String>,
    /// Seconds per try, including the start of the program. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries, after growing waits of at most 30 s. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Processes of the program; each scores one completion at a time. Default 1.
    #[serde(default = "processes")]
    #[schemars(range(min = 1, max = 256))]
    pub processes: u32,
    /// Seconds for which sampling waits for a verifier that is down: it cannot be reached, or fails
    /// for 16 completions in a row. Meanwhile, Ready has reason RewardUnavailable. Then the run
    /// fails. Wrong responses, and a program that ends before it has scored a completion, fail it
    /// without this wait. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

fn processes() -> u32 {
    1
}
