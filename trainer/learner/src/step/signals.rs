//! First calls of a step: passes without gradients, then advantages and weights of tokens.

use std::time::Instant;

use rljob_crds::algorithm::ModelRole;
use rljob_crds::dataflow::LearnerCall;
use tch::{Cuda, Device};

use super::Prepared;
use super::calls::CallTimes;
use super::micro_batch::MicroBatch;
use crate::heartbeat;
use crate::memory::Phase;
use crate::model::TokenValues;
use crate::objective::{Signal, Statistics, SumError, TokenStreams};
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Computes the signals and lets the objective complete the streams: the first calls of a step.
    /// Every rank makes the same passes and sums in the same order.
    pub(super) fn prepare(
        &mut self,
        signals: &[Signal],
        prepared: &mut Prepared<'_>,
    ) -> Result<Statistics, StepError> {
        self.calls = CallTimes::default();
        let temperature = self.temperature();
        let models = &mut self.models;
        for signal in signals {
            let began = Instant::now();
            for MicroBatch { packed, streams, .. } in &mut prepared.micro_batches {
                heartbeat::advance_after(self.ranks.device())?;
                self.phase = Phase::Logprobs { tokens: packed.num_tokens() };
                match signal {
                    Signal::Reference => {
                        let tokens = models.logprobs(ModelRole::Reference, packed, temperature)?;
                        streams.reference_logprobs_N = Some(tokens.logprobs_N);
                    }
                    Signal::Proximal => {
                        let (tokens, values) = models.proximal(packed, temperature)?;
                        streams.proximal_logprobs_N = Some(tokens.logprobs_N);
                        keep_values(streams, values);
                    }
                    Signal::TopTokens(count) => {
                        let role = ModelRole::Reference;
                        let teacher = models.top_tokens(role, packed, temperature, *count)?;
                        packed.selected_NK = Some(teacher.tokens_NK.shallow_clone());
                        streams.teacher = Some(teacher);
                    }
                    Signal::Values => keep_values(streams, Some(models.values(packed)?)),
                    Signal::Policy => {}
                }
            }
            if let Some(call) = LearnerCall::of_signal(*signal) {
                wait(self.ranks.device());
                self.calls.end(call, began);
            }
        }
        let began = Instant::now();
        let mut streams: Vec<_> =
            prepared.micro_batches.iter_mut().map(|micro_batch| &mut micro_batch.streams).collect();
        let sum = |values: &mut [f64]| {
            self.ranks.sum_slice(values).map_err(|error| SumError(Box::new(error)))
        };
        let statistics = self.objective.prepare(&prepared.advantages, &mut streams, &sum)?;
        self.calls.end(LearnerCall::Advantages, began);
        Ok(statistics)
    }
}

fn keep_values(streams: &mut TokenStreams, values: Option<TokenValues>) {
    if let Some(TokenValues { values_N, end_Q }) = values {
        (streams.values_N, streams.end_values_Q) = (Some(values_N), Some(end_Q));
    }
}

/// Waits until a GPU has done what was launched.
fn wait(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}
