//! Sums over the chunks, micro-batches and minibatches of a step on one rank.

use crate::objective::Statistics;

#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Weighted loss.
    pub loss: f64,
    /// Entropies of the policy, nats.
    pub entropy: f64,
    /// Statistics of the objective.
    pub statistics: Statistics,
}

impl Sums {
    pub fn plus(self, other: Self) -> Self {
        Self {
            loss: self.loss + other.loss,
            entropy: self.entropy + other.entropy,
            statistics: self.statistics.plus(other.statistics),
        }
    }

    /// The mean over several passes over the batch.
    pub fn divided_by(self, epochs: u32) -> Self {
        let divisor = f64::from(epochs);
        Self {
            loss: self.loss / divisor,
            entropy: self.entropy / divisor,
            statistics: self.statistics.divided_by(divisor),
        }
    }
}
