//! Sums over the chunks, micro-batches and minibatches of a step on one rank.

use crate::objective::{Deferred, Statistics};

#[derive(Debug, Default)]
pub struct Sums {
    /// Weighted loss.
    pub loss: Deferred,
    /// Entropies of the policy, nats.
    pub entropy: Deferred,
    /// Statistics of the objective.
    pub statistics: Statistics,
}

impl Sums {
    pub fn plus(self, other: Self) -> Self {
        Self {
            loss: self.loss.plus(other.loss),
            entropy: self.entropy.plus(other.entropy),
            statistics: self.statistics.plus(other.statistics),
        }
    }

    /// The sums on the host; waits once for a GPU.
    pub fn read(self) -> Self {
        self.read_with([])
    }

    /// As [`Self::read`], with other numbers.
    pub fn read_with<const N: usize>(mut self, others: [&mut Deferred; N]) -> Self {
        let own = [&mut self.loss, &mut self.entropy];
        Deferred::read(own.into_iter().chain(self.statistics.numbers_mut()).chain(others));
        self
    }

    /// The mean over several passes over the batch.
    pub fn divided_by(self, epochs: u32) -> Self {
        let divisor = f64::from(epochs);
        Self {
            loss: (self.loss.value() / divisor).into(),
            entropy: (self.entropy.value() / divisor).into(),
            statistics: self.statistics.divided_by(divisor),
        }
    }
}

/// What is known after an update.
pub(super) struct Updated {
    /// This rank's sums, on the host.
    pub sums: Sums,
    /// The loss on all ranks.
    pub loss: f64,
    /// Norm of the gradient; none if the update was skipped.
    pub norm: Option<f64>,
}
