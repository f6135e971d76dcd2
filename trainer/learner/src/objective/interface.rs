//! Interface between trainer and objective. The trainer runs passes for any objective; an objective
//! has no access to models or ranks.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::error::Error;
use std::fmt::Debug;

pub use rljob_crds::algorithm::Signal;
use rljob_kernels::KernelError;
use rljob_protocol::batch::SampleRow;
use rljob_protocol::checkpoint::ObjectiveState;
use tch::Tensor;

use super::advantages::StepAdvantages;
use super::deferred::Deferred;
use super::statistics::{Statistic, Statistics};
use super::streams::TokenStreams;
use crate::model::{SelectedGradient, TokenLogprobs};

/// A failed sum over ranks.
#[derive(Debug, thiserror::Error)]
#[error("failed to sum over the ranks")]
pub struct SumError(#[source] pub Box<dyn Error + Send + Sync>);

/// Streams that cannot be completed.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Sum(#[from] SumError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A checkpoint whose critic does not fit the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error(
        "the checkpoint has no statistics of returns, since its critic predicts returns in the \
         unit of rewards: remove algorithm.ppo.valueNormalization, or start from another checkpoint"
    )]
    NoReturns,
    #[error(
        "the critic of the checkpoint predicts normalized returns: set \
         algorithm.ppo.valueNormalization, or start from another checkpoint"
    )]
    Returns,
}

/// Sums the values over all ranks, entry by entry, in place.
pub type SumOverRanks<'a> = dyn Fn(&mut [f64]) -> Result<(), SumError> + 'a;

/// Loss of some tokens.
#[derive(Debug)]
pub struct TokenLoss {
    /// `[N]` derivative of the minibatch's loss with respect to the policy's log-probability of
    /// each token, to its value, or to the score of each sequence.
    pub gradient_N: Tensor,
    /// Derivatives of selected tokens, [`TokenStreams::teacher`], if the loss is one of them.
    pub selected: Option<SelectedGradient>,
    /// Sum of the tokens' weighted losses.
    pub loss: Deferred,
    /// Statistics of these tokens.
    pub statistics: Statistics,
}

impl TokenLoss {
    /// No loss, whose derivative by each of these values is 0.
    pub fn none(values_N: &Tensor) -> Self {
        let (gradient_N, statistics) = (values_N.zeros_like(), Statistics::default());
        Self { gradient_N, selected: None, loss: Deferred::default(), statistics }
    }
}

/// A training objective.
pub trait Objective: Debug {
    /// Signals that a step of `updates` updates needs, in the order of their passes. Those of the
    /// algorithms are declared in `rljob-crds`, where plans of steps use them.
    fn signals(&self, updates: u32) -> Vec<Signal>;

    /// Passes over the batch of a step.
    fn epochs(&self) -> u32 {
        1
    }

    /// Coefficient c of the policy's entropy: the loss of a token has the term −c · entropy.
    fn entropy_coefficient(&self) -> f64 {
        0.0
    }

    /// Number of samples of a prompt group that the loss compares; they are in one micro-batch.
    fn compared_samples(&self) -> Option<usize> {
        None
    }

    /// Number of first steps that update the critic only.
    fn critic_warmup_steps(&self) -> u32 {
        0
    }

    /// Advantage and weight of each sample of the step; every rank computes the same.
    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages;

    /// Completes the streams of this rank's micro-batches before the step's first update. Every
    /// rank must call `sum` the same number of times with the same number of values, and what it
    /// keeps for later steps must depend on the sums only.
    ///
    /// Returns statistics of the policy before the update; they replace those of the same name
    /// that [`Self::loss`] returns.
    ///
    /// # Errors
    /// A sum over ranks or a kernel fails.
    fn prepare(
        &mut self,
        _advantages: &StepAdvantages,
        _streams: &mut [&mut TokenStreams],
        _sum: &SumOverRanks<'_>,
    ) -> Result<Statistics, PrepareError> {
        Ok(Statistics::default())
    }

    /// Loss of the tokens of `streams`, given their log-probabilities under the current policy.
    /// Called if the trained model is a language model.
    fn loss(&self, policy: &TokenLogprobs, _streams: &TokenStreams) -> TokenLoss {
        TokenLoss::none(&policy.logprobs_N)
    }

    /// Loss of the sequences of a micro-batch, given their scores, the outputs of a scalar head
    /// after their last tokens. Its gradient is with respect to each score. Called if the trained
    /// model has a scalar head.
    fn score_loss(&self, scores_Q: &Tensor, _streams: &TokenStreams) -> TokenLoss {
        TokenLoss::none(scores_Q)
    }

    /// Loss of the critic for the tokens of a micro-batch, given their `values_N` under the current
    /// critic. Its gradient is with respect to each value; its statistics are added to those of
    /// [`Self::loss`]. Called if the algorithm trains a critic.
    fn value_loss(&self, values_N: &Tensor, _streams: &TokenStreams) -> TokenLoss {
        TokenLoss::none(values_N)
    }

    /// Ends a step that updated the policy with `samples` samples; `metric` returns its reduced
    /// statistics, the same on every rank.
    fn end_step(&mut self, _samples: usize, _metric: &dyn Fn(&str) -> f64) {}

    /// What a resumed run needs besides the models.
    fn state(&self) -> ObjectiveState {
        ObjectiveState::default()
    }

    /// Continues from the state of a checkpoint.
    ///
    /// # Errors
    /// The models of the checkpoint were trained with settings that need another state.
    fn restore(&mut self, _state: ObjectiveState) -> Result<(), StateError> {
        Ok(())
    }

    /// Statistics that are reduced over all ranks and reported; each name is that of a metric.
    fn statistics(&self) -> Vec<Statistic> {
        Vec::new()
    }

    /// Metrics that are computed from reduced statistics: name and value.
    fn derived(&self, _reduced: &dyn Fn(&str) -> f64) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}
