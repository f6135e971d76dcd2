//! Rewards: the weighted sum of the spec's verifiers for one completion.
//!
//! ```text
//!  Question ─▶ Rewards ─┬─ verifier 1 ─ Score ─┐
//!                       └─ verifier n ─ Score ─┴─▶ Reward { Σ weight · value, components }
//!                           │ failed: retried with backoff
//!                           └─ retries exhausted ─▶ Rejected: the sample is dropped, not scored 0
//! ```
//!
//! A verifier that fails for many consecutive completions ends the run
//! ([`RewardError::Unavailable`]). Must not depend on tokens, prompt groups or steps.

mod command;
mod exact_match;
mod external;
mod http;
mod math;
mod regex_match;
mod verifier;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rljob_crds::reward::RewardSpec;

pub use verifier::{Question, VerifierError};

use command::CommandVerifier;
use exact_match::ExactMatchVerifier;
use http::HttpVerifier;
use math::MathVerifier;
use regex_match::RegexVerifier;
use verifier::{Score, Verifier};

/// Consecutive rejected completions after which a verifier counts as unavailable.
const MAX_REJECTED: u32 = 16;
/// Maximum wait between two calls for the same completion.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Maximum length of an answer in errors, in characters.
const ANSWER_EXCERPT: usize = 80;

/// The reward of a completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Reward {
    /// Σ weight · value over the verifiers.
    pub value: f64,
    /// Unweighted value by reward name; components that a verifier reports as `name/component`.
    pub components: BTreeMap<String, f64>,
    /// Final answer that an external verifier reported, for majority votes.
    pub answer: Option<String>,
}

/// The spec's verifiers with their weights.
#[derive(Debug)]
pub struct Rewards {
    verifiers: Vec<WeightedVerifier>,
}

#[derive(Debug)]
struct WeightedVerifier {
    name: String,
    weight: f64,
    verifier: Box<dyn Verifier>,
    rejected_in_a_row: AtomicU32,
}

/// A reference answer that no completion can match.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("reward {reward} does not support the answer `{excerpt}`: {reason}")]
pub struct UnusableAnswer {
    pub reward: String,
    /// The last characters of the answer.
    pub excerpt: String,
    pub reason: &'static str,
}

/// A completion without a reward.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// All tries failed; the sample must be dropped.
    #[error("reward {reward} failed {tries} times for a completion; last error")]
    Rejected { reward: String, tries: u32, source: VerifierError },
    /// All tries failed for this and many preceding completions; the run must end.
    #[error(
        "reward {reward} failed for {rejected} completions in a row: \
         fix the verifier and resume the job; last error"
    )]
    Unavailable { reward: String, rejected: u32, source: VerifierError },
    #[error("failed to create the verifier of reward {reward}")]
    Create { reward: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// Creates the verifier of a spec, which has exactly one kind set.
fn verifier(
    spec: &RewardSpec,
) -> Result<Box<dyn Verifier>, Box<dyn std::error::Error + Send + Sync>> {
    Ok(match spec {
        RewardSpec { math: Some(math), .. } => Box::new(MathVerifier::new(math)),
        RewardSpec { regex: Some(regex), .. } => Box::new(RegexVerifier::new(regex)?),
        RewardSpec { http: Some(http), .. } => Box::new(HttpVerifier::new(http)?),
        RewardSpec { command: Some(command), .. } => Box::new(CommandVerifier::new(command)),
        RewardSpec { exact_match: Some(_), .. } => Box::new(ExactMatchVerifier),
        _ => return Err("no kind is set".into()),
    })
}

impl Rewards {
    /// Creates the verifiers of `spec.rewards`.
    pub fn new(specs: &[RewardSpec]) -> Result<Self, RewardError> {
        let create = |spec: &RewardSpec| {
            let create_error = |source| RewardError::Create { reward: spec.name.clone(), source };
            Ok(WeightedVerifier {
                name: spec.name.clone(),
                weight: spec.weight,
                verifier: verifier(spec).map_err(create_error)?,
                rejected_in_a_row: AtomicU32::new(0),
            })
        };
        Ok(Self { verifiers: specs.iter().map(create).collect::<Result<_, _>>()? })
    }

    /// Scores a completion with all verifiers concurrently.
    pub async fn score(&self, question: Question<'_>) -> Result<Reward, RewardError> {
        let scores = self.verifiers.iter().map(|verifier| verifier.score(question));
        // Wait for all: dropping the call of a command would kill its process.
        let mut scores = futures::future::join_all(scores).await;
        let unavailable =
            |score: &Result<_, _>| matches!(score, Err(RewardError::Unavailable { .. }));
        if let Some(index) = scores.iter().position(unavailable) {
            scores.swap(0, index);
        }
        let scores = scores.into_iter().collect::<Result<Vec<Score>, _>>()?;
        Ok(self.weighted_sum(scores))
    }

    fn weighted_sum(&self, scores: Vec<Score>) -> Reward {
        let mut reward = Reward { value: 0.0, components: BTreeMap::new(), answer: None };
        for (WeightedVerifier { name, weight, .. }, score) in self.verifiers.iter().zip(scores) {
            reward.value += weight * score.value;
            reward.components.insert(name.clone(), score.value);
            for (component, value) in score.components {
                reward.components.insert(format!("{name}/{component}"), value);
            }
            reward.answer = reward.answer.or(score.answer);
        }
        reward
    }

    /// Whether at least one verifier needs reference answers.
    pub fn needs_answers(&self) -> bool {
        self.verifiers.iter().any(|entry| entry.verifier.needs_answers())
    }

    /// Checks that a completion can match the reference answer.
    pub fn check_answer(&self, answer: &str) -> Result<(), UnusableAnswer> {
        self.verifiers.iter().try_for_each(|entry| {
            entry.verifier.check_answer(answer).map_err(|reason| UnusableAnswer {
                reward: entry.name.clone(),
                excerpt: last_characters(answer, ANSWER_EXCERPT),
                reason,
            })
        })
    }

    /// For each completion the index of the first completion with an equal answer, or `None` if the
    /// completion has no answer. The first verifier that extracts answers decides. Without one, the
    /// answers that external verifiers reported (`Reward::answer`) are compared as text; `None` if
    /// there are no reported answers.
    pub fn answer_classes(
        &self,
        completions: &[&str],
        reported: &[Option<&str>],
    ) -> Option<Vec<Option<usize>>> {
        let extracted =
            self.verifiers.iter().find_map(|entry| entry.verifier.answer_classes(completions));
        let class = |answer: Option<&str>| {
            answer.and_then(|_| reported.iter().position(|other| *other == answer))
        };
        extracted.or_else(|| {
            let any = reported.iter().any(Option::is_some);
            any.then(|| reported.iter().copied().map(class).collect())
        })
    }
}

impl WeightedVerifier {
    /// Calls the verifier until it succeeds or its retries are exhausted.
    async fn score(&self, question: Question<'_>) -> Result<Score, RewardError> {
        let mut tries = 0;
        let source = loop {
            tries += 1;
            let error = match self.verifier.score(question).await {
                Ok(score) => {
                    self.rejected_in_a_row.store(0, Ordering::Relaxed);
                    return Ok(score);
                }
                Err(error) => error,
            };
            let cause = crate::error_line(&error);
            tracing::warn!(reward = self.name, tries, cause, "verifier failed for a completion");
            if tries > self.verifier.retries() {
                break error;
            }
            tokio::time::sleep(backoff(tries)).await;
        };
        let reward = format!("{} ({})", self.name, self.verifier.description());
        let rejected = self.rejected_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        if rejected >= MAX_REJECTED {
            return Err(RewardError::Unavailable { reward, rejected, source });
        }
        Err(RewardError::Rejected { reward, tries, source })
    }
}

/// Wait after the given number of tries: 1, 2, 4, … 30 seconds.
fn backoff(tries: u32) -> Duration {
    Duration::from_secs(1 << (tries.clamp(1, 6) - 1)).min(MAX_BACKOFF)
}

fn last_characters(text: &str, count: usize) -> String {
    let start =
        text.char_indices().rev().nth(count.saturating_sub(1)).map_or(0, |(start, _)| start);
    text[start..].to_owned()
}

#[cfg(test)]
mod tests;
