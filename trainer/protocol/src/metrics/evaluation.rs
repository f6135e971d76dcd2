//! Numbers of an evaluation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::scalars::Scalars;
use crate::evaluation::CategoryMetrics;

/// One evaluation's numbers: accuracy, the loss of `sft` or of pairs, or both. A line of
/// `evaluations.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationMetrics {
    /// Steps done when it was made.
    pub step: u32,
    /// Prompts.
    pub prompts: u32,
    /// Completions of each prompt beside the greedy one; 0 where accuracy is not measured.
    #[serde(default)]
    pub samples: u32,
    /// Mean over prompts of the mean reward of a prompt's sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Mean reward of the greedy completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<f64>,
    /// Standard error of `sampled`, clustered by prompt: s ÷ √n of the n prompts' means, with
    /// s² = Σ (xᵢ − x̄)² ÷ (n − 1) (Miller, arXiv 2411.00640). Absent for fewer than two prompts,
    /// like the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_standard_error: Option<f64>,
    /// Standard error of `greedy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy_standard_error: Option<f64>,
    /// Standard errors of `passAt`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_at_standard_error: BTreeMap<u32, f64>,
    /// Standard errors of `majorityAt`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub majority_at_standard_error: BTreeMap<u32, f64>,
    /// By category of `dataset.evaluation.category`: means and standard errors over its prompts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub categories: BTreeMap<String, CategoryMetrics>,
    /// Completions that no estimate contains because their verifier failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<u32>,
    /// Share of completion tokens that were sampled with newer weights than those of `step`; only
    /// of evaluations beside training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_tokens: Option<f64>,
    /// By k: probability that one of k samples is correct, the unbiased estimate of Chen et al.
    /// (arXiv 2107.03374), as the mean over prompts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_at: BTreeMap<u32, f64>,
    /// By k: share of prompts for which the most frequent answer of the first k samples is correct;
    /// empty where answers cannot be compared (`http`, `command`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub majority_at: BTreeMap<u32, f64>,
    /// Mean negative log-likelihood of the completions' tokens, in nats, with
    /// `dataset.evaluation.completion`; mean loss of pairs with `dataset.evaluation.chosen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Tokens of the completions that `loss` is computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_tokens: Option<u64>,
    /// By suite of `dataset.evaluation.suites`: its numbers. Accuracy is then absent above.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub suites: BTreeMap<String, EvaluationMetrics>,
    /// Seconds that it took.
    pub seconds: f64,
    /// Everything else by name: [`SAMPLED_FIRST_TURN`](super::SAMPLED_FIRST_TURN) and
    /// [`GREEDY_FIRST_TURN`](super::GREEDY_FIRST_TURN) with a workflow of several turns,
    /// [`PERPLEXITY`](super::PERPLEXITY) of `sft`, [`PAIR_ACCURACY`](super::PAIR_ACCURACY) and
    /// [`PAIR_MARGIN`](super::PAIR_MARGIN) of pairs.
    #[serde(flatten)]
    pub scalars: Scalars,
}

impl EvaluationMetrics {
    /// The numbers of each suite with its name; without suites, these numbers without a name.
    pub fn by_suite(&self) -> Vec<(Option<&str>, &Self)> {
        if self.suites.is_empty() {
            return vec![(None, self)];
        }
        self.suites.iter().map(|(name, own)| (Some(name.as_str()), own)).collect()
    }

    /// Adds the suites that only an earlier evaluation has: those that were not due.
    #[must_use]
    pub fn after(mut self, earlier: Option<&Self>) -> Self {
        if !self.suites.is_empty() {
            for (name, own) in earlier.iter().flat_map(|earlier| &earlier.suites) {
                self.suites.entry(name.clone()).or_insert_with(|| own.clone());
            }
        }
        self
    }

    /// Adds the loss that the learners measured, over this number of tokens in `seconds`.
    #[must_use]
    pub fn with_loss(self, loss: f64, tokens: u64, seconds: f64) -> Self {
        Self {
            loss: Some(loss),
            loss_tokens: Some(tokens),
            seconds: self.seconds + seconds,
            ..self
        }
    }

    /// The part that a peer of this protocol version can read.
    #[must_use]
    pub fn for_peer(mut self, protocol: u32) -> Self {
        if protocol < 2 {
            self.scalars = Scalars::default();
            self.sampled_standard_error = None;
            self.greedy_standard_error = None;
            self.pass_at_standard_error.clear();
            self.majority_at_standard_error.clear();
            self.rejected = None;
            self.newer_tokens = None;
        }
        if protocol < 3 {
            self.categories.clear();
            self.suites.clear();
        }
        self
    }
}
