//! How a completion is scored: by a pure verifier here ([`math`], exact match), or by one of the
//! user's own ([`http`], [`command`]).
//!
//! ```text
//!  Question ─▶ Verifier ─┬─ math, exactMatch ───────────────────────────┬─▶ Reward
//!                        └─ http, command ─ try, wait, try again … ─────┴─▶ Rejected: the sample is left out, never scored 0
//! ```
//!
//! It must not know tokens, groups or steps. When many completions in a row are rejected it is the
//! verifier that is broken: [`RewardError::Down`].

mod answers;
mod command;
mod http;
mod math;
mod remote;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use rljob_crds::reward::{AnswerPlace, RewardSpec};

use command::Command;
use http::Http;
pub use remote::TryError;

/// So many completions rejected in a row, and the verifier is taken for broken.
const DOWN: u32 = 16;

/// What a verifier is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// The prompt before any chat template.
    pub prompt: &'a str,
    /// The completion, special tokens aside.
    pub completion: &'a str,
    /// The reference answer, if the data has one.
    pub answer: Option<&'a str>,
}

/// A score.
#[derive(Clone, Debug, PartialEq)]
pub struct Reward {
    /// From 0 to 1 by `math` and `exactMatch`; any finite number by others.
    pub value: f64,
    /// What it is made of, by name.
    pub components: BTreeMap<String, f64>,
}

/// Scores completions as the spec says.
#[derive(Debug)]
pub struct Verifier {
    kind: Kind,
    /// `reward.http http://…`, for errors.
    name: String,
    retries: u32,
    rejected_in_a_row: AtomicU32,
}

#[derive(Debug)]
enum Kind {
    Math(Vec<AnswerPlace>),
    ExactMatch,
    Http(Http),
    Command(Command),
}

/// A reference answer that no completion could match.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the answer `{excerpt}` is no number, tuple, interval or set, which reward.math compares with"
)]
pub struct UnusableAnswer {
    /// Its end, in at most 80 characters.
    pub excerpt: String,
}

/// A completion without a reward.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// Every try failed: this sample is to be left out.
    #[error("{verifier} failed {tries} times for one completion; the last time")]
    Rejected {
        /// Which verifier.
        verifier: String,
        /// Tries.
        tries: u32,
        /// The last one.
        source: TryError,
    },
    /// So did many before it: the run cannot go on.
    #[error(
        "{verifier} scored none of the last {rejected} completions: mend it and resume; the last error"
    )]
    Down {
        /// Which verifier.
        verifier: String,
        /// Completions rejected in a row.
        rejected: u32,
        /// The last error.
        source: TryError,
    },
    /// The HTTP client cannot be made.
    #[error("failed to make an HTTP client for reward.http")]
    Client(#[from] reqwest::Error),
}

impl Verifier {
    /// A verifier for the spec, of which exactly one field is set.
    pub fn new(spec: &RewardSpec) -> Result<Self, RewardError> {
        let (kind, name, retries) = if let Some(http) = &spec.http {
            (
                Kind::Http(Http::new(http)?),
                format!("reward.http {}", without_secrets(&http.url)),
                http.retries,
            )
        } else if let Some(command) = &spec.command {
            (
                Kind::Command(Command::new(command)),
                format!("reward.command {}", command.command.join(" ")),
                command.retries,
            )
        } else if let Some(math) = &spec.math {
            (Kind::Math(math.extract.clone()), "reward.math".to_owned(), 0)
        } else {
            (Kind::ExactMatch, "reward.exactMatch".to_owned(), 0)
        };
        Ok(Self { kind, name, retries, rejected_in_a_row: AtomicU32::new(0) })
    }

    /// Scores a completion. A verifier that fails is tried again; then the sample is
    /// [`RewardError::Rejected`].
    pub async fn score(&self, question: Question<'_>) -> Result<Reward, RewardError> {
        let mut tries = 0;
        let source = loop {
            tries += 1;
            let error = match self.attempt(question).await {
                Ok(reward) => {
                    self.rejected_in_a_row.store(0, Ordering::Relaxed);
                    return Ok(reward);
                }
                Err(error) => error,
            };
            tracing::warn!(verifier = self.name, tries, error = %crate::error_line(&error), "a completion was not scored");
            if tries > self.retries {
                break error;
            }
            tokio::time::sleep(remote::wait(tries)).await;
        };
        let verifier = self.name.clone();
        let rejected = self.rejected_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        if rejected >= DOWN {
            return Err(RewardError::Down { verifier, rejected, source });
        }
        Err(RewardError::Rejected { verifier, tries, source })
    }

    async fn attempt(&self, question: Question<'_>) -> Result<Reward, TryError> {
        let (name, correct) = match &self.kind {
            Kind::Http(http) => return http.score(question).await,
            Kind::Command(command) => return command.score(question).await,
            Kind::Math(places) => (
                "math",
                question
                    .answer
                    .is_some_and(|answer| math::correct(question.completion, answer, places)),
            ),
            Kind::ExactMatch => (
                "exactMatch",
                question.answer.is_some_and(|answer| question.completion.trim() == answer.trim()),
            ),
        };
        let value = f64::from(u8::from(correct));
        Ok(Reward { value, components: BTreeMap::from([(name.to_owned(), value)]) })
    }

    /// Whether nothing can be scored without a reference answer.
    pub fn needs_answers(&self) -> bool {
        matches!(self.kind, Kind::Math(_) | Kind::ExactMatch)
    }

    /// Checks that some completion could match the answer.
    pub fn check_answer(&self, answer: &str) -> Result<(), UnusableAnswer> {
        let usable = !matches!(self.kind, Kind::Math(_)) || math::is_usable(answer);
        if usable { Ok(()) } else { Err(UnusableAnswer { excerpt: end_of(answer, 80) }) }
    }
}

/// An address without the user and password, and the query, that it may hold.
fn without_secrets(url: &str) -> String {
    let Ok(mut url) = reqwest::Url::parse(url) else {
        return "with an address that is none".to_owned();
    };
    // Both fail only on addresses that have no host, which have none of these either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string()
}

fn end_of(text: &str, characters: usize) -> String {
    let start =
        text.char_indices().rev().nth(characters.saturating_sub(1)).map_or(0, |(start, _)| start);
    text[start..].to_owned()
}

#[cfg(test)]
mod tests;
