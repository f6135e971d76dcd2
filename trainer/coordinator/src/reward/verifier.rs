//! Verifier interface: one implementation per reward kind scores one completion per call.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};

use crate::engines::EngineError;
use crate::reward::token::TokenError;

/// Input of a verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// Prompt without the chat template.
    pub prompt: &'a str,
    /// Completion without special tokens.
    pub completion: &'a str,
    /// Reference answer, if the dataset has one.
    pub answer: Option<&'a str>,
    /// Fields of the row by their names in the spec, if it names some.
    pub fields: Option<&'a serde_json::Map<String, serde_json::Value>>,
}

/// Output of a verifier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Any finite number; 0 or 1 for verifiers that compare or match.
    pub value: f64,
    /// Parts of the value by name, reported by external verifiers.
    pub components: BTreeMap<String, f64>,
    /// Final answer of the completion, reported by external verifiers for majority votes.
    pub answer: Option<String>,
    /// What the verifier found, kept with the sample for reading.
    pub details: Option<serde_json::Value>,
}

impl From<bool> for Score {
    fn from(correct: bool) -> Self {
        Self { value: f64::from(u8::from(correct)), ..Self::default() }
    }
}

/// Scores completions. `rewards` retries failed calls and applies weights.
pub trait Verifier: std::fmt::Debug + Send + Sync {
    /// Kind and target for errors and logs, without secrets.
    fn description(&self) -> String;

    /// Scores a completion. An error is not a score of 0.
    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>>;

    /// Checks before the first completion that the verifier can score.
    fn check(&self) -> BoxFuture<'_, Result<(), VerifierError>> {
        std::future::ready(Ok(())).boxed()
    }

    /// Number of retries after the first failed call.
    fn retries(&self) -> u32 {
        0
    }

    /// Whether every question needs a reference answer.
    fn needs_answers(&self) -> bool {
        false
    }

    /// Checks that a completion can match the reference answer; the error is the reason.
    fn check_answer(&self, _answer: &str) -> Result<(), &'static str> {
        Ok(())
    }

    /// Checks a reference answer that is a list or an object, as JSON text, before
    /// [`Self::check_answer`].
    fn check_structure(&self) -> Result<(), &'static str> {
        Ok(())
    }

    /// Completions that state a reference answer: the answer, and forms that the verifier may need.
    fn statements(&self, answer: &str) -> Vec<String> {
        vec![answer.to_owned()]
    }

    /// For each completion the index of the first completion with an equal answer, or `None` if the
    /// completion has no answer. `None` if the verifier does not extract answers.
    fn answer_classes(&self, _completions: &[&str]) -> Option<Vec<Option<usize>>> {
        None
    }
}

/// A failed call of a verifier.
#[derive(Debug, thiserror::Error)]
pub enum VerifierError {
    #[error("failed to reach the server")]
    Unreachable(#[source] reqwest::Error),
    /// The authority of the server's certificate is unknown. Has what to do about it.
    #[error("{0}")]
    Untrusted(&'static str),
    /// No engine of the job that serves the model.
    #[error("no engine of the {model} was ready within {} s", .waited.as_secs())]
    NoEngine { model: &'static str, waited: Duration },
    /// An engine of the job failed to score a text or a sample.
    #[error("engine {engine} of the {model} failed")]
    Engine { model: &'static str, engine: String, source: Box<EngineError> },
    /// The token of a request, which was not sent.
    #[error(transparent)]
    TokenFile(#[from] TokenError),
    /// The server does not accept the token.
    #[error("the server returned {status} to the token in {secret}: {excerpt}")]
    Token { status: reqwest::StatusCode, secret: String, excerpt: String },
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the server returned {status}: {excerpt}")]
    Status { status: reqwest::StatusCode, excerpt: String },
    /// The cause, without secrets.
    #[error("failed to reach the MCP server: {0}")]
    McpUnreachable(String),
    #[error("the MCP server returned error {code}: {message}")]
    Mcp { code: i32, message: String },
    #[error("the MCP server has no tool {tool}; its tools are {tools}")]
    McpTool { tool: String, tools: String },
    /// The server of a `model` reward has no reward model.
    #[error(
        "the server generates text: serve a sequence classifier with one label (SGLang and \
         rljob-engine: --is-embedding)"
    )]
    LanguageModel,
    /// The server of a teacher has a reward model.
    #[error(
        "the server scores text and has no log-probabilities: serve the teacher as a language \
         model (SGLang and rljob-engine: without --is-embedding)"
    )]
    Classifier,
    /// The server of a teacher has another tokenizer than the policy.
    #[error(transparent)]
    Tokenizer(Box<TokenizerMismatch>),
    #[error("the classifier has {0} labels; a reward model has one")]
    Labels(usize),
    #[error("failed to render the text of the reward model")]
    Text(#[source] minijinja::Error),
    #[error("invalid response `{excerpt}`, expected {expected}: {reason}")]
    InvalidResponse { excerpt: String, expected: &'static str, reason: String },
    #[error("failed to start the command: {0}")]
    Start(String),
    /// The function of a `python` reward raised an exception, or returned no reward.
    #[error("the function {0}")]
    Function(String),
    /// The program that runs commands does not work.
    #[error("failed to reach the reward runner")]
    Runner(#[source] std::io::Error),
    /// The last failure.
    #[error("lost three verifier pods during the call")]
    LostPods(#[source] Box<VerifierError>),
    #[error("the command ended with {status}{}", stderr_suffix(.stderr))]
    Exited {
        status: String,
        /// Last line of standard error, possibly empty.
        stderr: String,
    },
    #[error("failed to write to or read from the command")]
    Pipe(#[source] std::io::Error),
}

/// A text with other tokens at a teacher than in the policy.
#[derive(Debug, thiserror::Error)]
#[error(
    "the teacher {teacher} has another tokenizer than the policy {policy}: the tokens of {text:?} \
     are {found:?} there and {expected:?} here; serve a teacher with the tokenizer of the policy"
)]
pub struct TokenizerMismatch {
    /// Its model, as its server names it, or its folder.
    pub teacher: String,
    /// Model folder of the policy.
    pub policy: String,
    pub text: &'static str,
    pub found: Vec<i64>,
    pub expected: Vec<i64>,
}

impl VerifierError {
    /// Whether no completion can be scored now, whatever its content.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::McpUnreachable(_)
            | Self::Runner(_)
            | Self::NoEngine { .. }
            | Self::TokenFile(_) => true,
            // A Secret may be rotated before or after the server.
            Self::Token { status, .. } => status.as_u16() == 401,
            Self::Status { status, .. } => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether the verifier was reached and has no usable answer for this completion. Another try
    /// would fail in the same way; other completions may be scored.
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Function(_) | Self::InvalidResponse { .. })
    }

    /// Whether the program exited or was killed.
    pub fn is_exit(&self) -> bool {
        matches!(self, Self::Exited { .. })
    }

    /// Whether no later try can succeed.
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::Start(_)
                | Self::Untrusted(_)
                | Self::LanguageModel
                | Self::Classifier
                | Self::Tokenizer(_)
                | Self::Labels(_)
                | Self::McpTool { .. }
        )
    }

    /// Value of the label `cause` of the metric of rejected samples.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable(_) | Self::McpUnreachable(_) | Self::NoEngine { .. } => "unreachable",
            Self::Engine { .. } => "engine",
            Self::Untrusted(_) => "untrusted",
            Self::Timeout(_) => "timeout",
            Self::TokenFile(_) | Self::Token { .. } => "token",
            Self::Status { .. } | Self::Mcp { .. } => "status",
            Self::InvalidResponse { .. } => "invalid_response",
            Self::LanguageModel | Self::Classifier | Self::Tokenizer(_) | Self::Labels(_) => {
                "model"
            }
            Self::Text(_) => "text",
            Self::Start(_) | Self::McpTool { .. } => "start",
            Self::Function(_) => "function",
            Self::Runner(_) => "runner",
            Self::LostPods(_) => "lost_pods",
            Self::Exited { .. } => "exited",
            Self::Pipe(_) => "pipe",
        }
    }
}

fn stderr_suffix(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; last line of stderr: `{stderr}`") }
}
