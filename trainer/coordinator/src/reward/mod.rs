//! Rewards: the weighted sum of the spec's verifiers for one completion.
//!
//! ```text
//!  Question ─▶ Rewards ─┬─ verifier 1 ─ Score ─┐
//!                       └─ verifier n ─ Score ─┴─▶ Reward { Σ weight · value, components }
//!                           │ failed: retried with backoff
//!                           └─ retries exhausted ─▶ Rejected: the sample is dropped, not scored 0
//! ```
//!
//! While a verifier is down, completions wait for it ([`availability`]); past a limit, the run
//! fails ([`RewardError::Unavailable`]). So it does if the answers of a verifier are wrong
//! ([`RewardError::Faulty`]). Must not depend on tokens, prompt groups or steps.

mod answers;
mod availability;
pub mod call;
mod code;
mod command;
mod connection;
mod conversation;
mod engines;
mod error;
mod exact_match;
mod external;
mod http;
mod math;
mod model;
mod pool;
mod python;
mod regex_match;
mod repetition;
mod server;
mod service;
pub mod session;
mod sessions;
mod token;
mod verifier;
mod verifier_pods;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rljob_crds::reward::RewardSpec;
use rljob_protocol::status::{RewardFailure, RewardOutage};

use crate::engines::Fleet;

pub use answers::{StatedAnswer, UnusableAnswer};
pub use verifier::{Question, TokenizerMismatch, VerifierError};

pub use connection::Runner;
pub use conversation::{Conversation, Conversations};
#[cfg(test)]
pub use engines::test_support as engines_for_tests;
pub use engines::{ModelEngines, check_folder};
pub use error::{FailedCall, RewardError};
pub use external::{MAX_RESPONSE, excerpt, unexpected};
pub use pool::Pool;
pub use server::{Server, rejected, without_secrets};
pub use service::Service;
pub use sessions::{Sessions, run_agent};
pub use token::{SecretToken, Token};
pub use verifier_pods::VerifierPods;

use code::CodeVerifier;
use command::CommandVerifier;
use exact_match::ExactMatchVerifier;
use http::HttpVerifier;
use math::MathVerifier;
use model::ModelVerifier;
use python::PythonVerifier;
use regex_match::RegexVerifier;
use repetition::RepetitionVerifier;
use verifier::{Score, Verifier};

/// The reward of a completion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reward {
    /// Σ weight · value over the verifiers.
    pub value: f64,
    /// Unweighted value by reward name; components that a verifier reports as `name/component`.
    pub components: BTreeMap<String, f64>,
    /// Final answer that an external verifier reported, for majority votes.
    pub answer: Option<String>,
    /// What verifiers found, by reward name, for reading.
    pub details: BTreeMap<String, serde_json::Value>,
}

/// Verifiers of the spec with their weights. Clones share them.
#[derive(Clone, Debug)]
pub struct Rewards {
    verifiers: Vec<Arc<WeightedVerifier>>,
}

#[derive(Debug)]
struct WeightedVerifier {
    name: String,
    weight: f64,
    verifier: Box<dyn Verifier>,
    service: Service,
}

/// Creates the verifier of a spec, which has exactly one kind set.
fn verifier(
    spec: &RewardSpec,
    runner: &Runner,
    engines: Option<&Arc<Fleet>>,
) -> Result<Box<dyn Verifier>, Box<dyn std::error::Error + Send + Sync>> {
    Ok(match spec {
        RewardSpec { math: Some(math), .. } => Box::new(MathVerifier::new(math)),
        RewardSpec { regex: Some(regex), .. } => Box::new(RegexVerifier::new(regex)?),
        RewardSpec { repetition: Some(repetition), .. } => {
            Box::new(RepetitionVerifier::new(repetition))
        }
        RewardSpec { model: Some(model), .. } => Box::new(ModelVerifier::new(model, engines)?),
        RewardSpec { http: Some(http), .. } => Box::new(HttpVerifier::new(http)?),
        RewardSpec { command: Some(command), .. } => {
            Box::new(CommandVerifier::new(command, runner))
        }
        RewardSpec { code: Some(code), .. } => Box::new(CodeVerifier::new(code, runner)?),
        RewardSpec { python: Some(python), .. } => Box::new(PythonVerifier::new(python, runner)?),
        RewardSpec { exact_match: Some(_), .. } => Box::new(ExactMatchVerifier),
        _ => return Err("no kind is set".into()),
    })
}

impl Rewards {
    /// Creates the verifiers of `spec.rewards`. `runner` runs commands, and `engines` of the job
    /// serve a reward model, if it has them.
    pub fn new(
        specs: &[RewardSpec],
        runner: &Runner,
        engines: Option<&Arc<Fleet>>,
    ) -> Result<Self, RewardError> {
        let create = |spec: &RewardSpec| {
            let create_error = |source| RewardError::Create { reward: spec.name.clone(), source };
            let verifier = verifier(spec, runner, engines).map_err(create_error)?;
            // Name and verifier, for messages.
            let label = format!("reward {} ({})", spec.name, verifier.description());
            Ok(Arc::new(WeightedVerifier {
                name: spec.name.clone(),
                weight: spec.weight,
                service: Service::new(label, verifier.retries(), max_outage(spec)),
                verifier,
            }))
        };
        Ok(Self { verifiers: specs.iter().map(create).collect::<Result<_, _>>()? })
    }

    /// The rewards with these names, or all without names.
    #[must_use]
    pub fn named(&self, names: &[String]) -> Self {
        let is_named = |name: &String| names.is_empty() || names.contains(name);
        let verifiers = self.verifiers.iter().filter(|entry| is_named(&entry.name));
        Self { verifiers: verifiers.cloned().collect() }
    }

    /// Checks before the first completion that the functions of `python` rewards can be called.
    /// The error of the first that cannot be is [`RewardError::Unavailable`].
    pub async fn check(&self) -> Result<(), RewardError> {
        for entry in &self.verifiers {
            entry.verifier.check().await.map_err(|source| entry.service.unavailable(source))?;
        }
        Ok(())
    }

    /// The best score of the completions that state the answer of a question, without retries and
    /// waits. The first is the answer, which must be scored. The answer `is_structured` if it is
    /// the JSON text of a list or an object.
    pub async fn score_statements(
        &self,
        question: Question<'_>,
        is_structured: bool,
    ) -> Result<StatedAnswer, FailedCall> {
        let mut best = StatedAnswer::default();
        for entry in &self.verifiers {
            let stated = match question.answer {
                Some(answer) => entry.verifier.statements(answer),
                None => vec![question.completion.to_owned()],
            };
            for (index, completion) in stated.into_iter().enumerate() {
                let question = Question { completion: &completion, ..question };
                let Score { value, .. } = match entry.verifier.score(question).await {
                    Ok(score) => score,
                    Err(_) if index > 0 => continue,
                    Err(source) => {
                        return Err(FailedCall {
                            service: entry.service.label().to_owned(),
                            source,
                        });
                    }
                };
                if index == 0 || value > best.value {
                    best = StatedAnswer { completion, value, unusable: None };
                }
            }
        }
        let checked = question.answer.map(|answer| self.check_answer(answer, is_structured));
        best.unusable = checked.and_then(Result::err);
        Ok(best)
    }

    /// Scores a completion with all verifiers concurrently.
    pub async fn score(&self, question: Question<'_>) -> Result<Reward, RewardError> {
        let scores = self
            .verifiers
            .iter()
            .map(|entry| entry.service.call(move || entry.verifier.score(question)));
        // Wait for all: dropping the call of a command would kill its process.
        let mut scores = futures::future::join_all(scores).await;
        // An error that fails the run precedes one that rejects the sample.
        let fails = |score: &Result<_, RewardError>| {
            score.as_ref().is_err_and(|error| !matches!(error, RewardError::Rejected { .. }))
        };
        if let Some(index) = scores.iter().position(fails) {
            scores.swap(0, index);
        }
        let scores = scores.into_iter().collect::<Result<Vec<Score>, _>>()?;
        Ok(self.weighted_sum(scores))
    }

    fn weighted_sum(&self, scores: Vec<Score>) -> Reward {
        let mut reward = Reward::default();
        for (entry, score) in self.verifiers.iter().zip(scores) {
            let WeightedVerifier { name, weight, .. } = entry.as_ref();
            reward.value += weight * score.value;
            reward.components.insert(name.clone(), score.value);
            for (component, value) in score.components {
                reward.components.insert(format!("{name}/{component}"), value);
            }
            reward.answer = reward.answer.or(score.answer);
            reward.details.extend(score.details.map(|details| (name.clone(), details)));
        }
        reward
    }

    /// The outage of the first verifier that is down.
    pub fn outage(&self) -> Option<RewardOutage> {
        self.verifiers.iter().find_map(|entry| entry.service.outage())
    }

    /// The first failed try of a verifier; of one that has not answered since, if there is one.
    pub fn failure(&self) -> Option<RewardFailure> {
        let failures = self.verifiers.iter().filter_map(|entry| entry.service.failure());
        failures.min_by_key(|failure| failure.answered)
    }

    /// Whether at least one verifier needs reference answers.
    pub fn needs_answers(&self) -> bool {
        self.verifiers.iter().any(|entry| entry.verifier.needs_answers())
    }

    /// Checks that a completion can match the reference answer, which `is_structured` if it is the
    /// JSON text of a list or an object.
    pub fn check_answer(&self, answer: &str, is_structured: bool) -> Result<(), UnusableAnswer> {
        self.verifiers.iter().try_for_each(|entry| {
            let structure = if is_structured { entry.verifier.check_structure() } else { Ok(()) };
            let checked = structure.and_then(|()| entry.verifier.check_answer(answer));
            checked.map_err(|reason| UnusableAnswer::new(&entry.name, answer, reason))
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

/// Time for which completions wait for a verifier that is down. Verifiers inside the coordinator do
/// not fail.
fn max_outage(spec: &RewardSpec) -> Duration {
    let http = spec.http.as_ref().map(|http| http.max_outage_seconds);
    let model = spec.model.as_ref().map(|model| model.max_outage_seconds);
    let command = spec.command.as_ref().map(|command| command.max_outage_seconds);
    let code = spec.code.as_ref().map(|code| code.max_outage_seconds);
    let python = spec.python.as_ref().map(|python| python.max_outage_seconds);
    Duration::from_secs(http.or(model).or(command).or(code).or(python).unwrap_or_default().into())
}

#[cfg(test)]
mod tests;
