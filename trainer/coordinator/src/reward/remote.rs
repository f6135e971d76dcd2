//! What verifiers outside this process share: the question, the answer, what can go wrong, and how
//! long one goes on trying.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Question, Reward};

/// Longest answer in bytes.
pub const MAX_ANSWER: usize = 1 << 20;
/// Characters of an answer that an error shows.
const EXCERPT: usize = 200;
/// Longest wait between two tries.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// One try that failed.
#[derive(Debug, thiserror::Error)]
pub enum TryError {
    /// No connection, or it broke.
    #[error("it cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// No answer in time.
    #[error("it did not answer within {} s", .0.as_secs())]
    Slow(Duration),
    /// An HTTP error.
    #[error("it answered {status}: {excerpt}")]
    Status {
        /// The status.
        status: reqwest::StatusCode,
        /// Beginning of the body.
        excerpt: String,
    },
    /// An answer that is none.
    #[error("it answered nonsense, `{excerpt}`, instead of {{\"reward\": number}}: {why}")]
    Nonsense {
        /// Beginning of the answer.
        excerpt: String,
        /// What is wrong with it.
        why: String,
    },
    /// The command cannot be started.
    #[error("it cannot be started")]
    Start(#[source] std::io::Error),
    /// The command ended.
    #[error("it ended with {status}{}", last_words(.stderr))]
    Exited {
        /// Its exit status.
        status: String,
        /// Last line of its standard error.
        stderr: String,
    },
    /// Its pipes failed.
    #[error("its pipes failed")]
    Pipe(#[source] std::io::Error),
}

fn last_words(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!(" and the last words `{stderr}`") }
}

impl TryError {
    /// Nonsense, with its beginning.
    pub fn nonsense(answer: &[u8], why: &dyn std::fmt::Display) -> Self {
        Self::Nonsense { excerpt: excerpt(answer), why: why.to_string() }
    }
}

/// The beginning of bytes as one line of text.
pub fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim()
        .chars()
        .take(EXCERPT)
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect()
}

/// A question as verifiers get it.
#[derive(Debug, Serialize)]
pub struct Request<'a> {
    /// For commands: what the answer repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The prompt before any chat template.
    pub prompt: &'a str,
    /// The completion.
    pub completion: &'a str,
    /// The reference answer.
    pub answer: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// The request for a question.
    pub fn new(id: Option<u64>, question: Question<'a>) -> Self {
        Self {
            id,
            prompt: question.prompt,
            completion: question.completion,
            answer: question.answer,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    id: Option<u64>,
    reward: f64,
    #[serde(default)]
    components: BTreeMap<String, f64>,
}

/// A verifier's answer to the question of that id.
pub fn parse(answer: &[u8], id: Option<u64>) -> Result<Reward, TryError> {
    let parsed: Answer =
        serde_json::from_slice(answer).map_err(|error| TryError::nonsense(answer, &error))?;
    if parsed.id != id {
        let found = parsed.id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let expected = id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        return Err(TryError::nonsense(answer, &format!("expected id {expected}, found {found}")));
    }
    Ok(Reward { value: parsed.reward, components: parsed.components })
}

/// The wait before try `try_number` + 1, the first being 1: 1, 2, 4, … 30 seconds.
pub fn wait(try_number: u32) -> Duration {
    Duration::from_secs(1 << (try_number.clamp(1, 6) - 1)).min(MAX_WAIT)
}
