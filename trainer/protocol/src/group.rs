//! Requests of learners of `trainer.groups` to the coordinator: their frozen models infer batches
//! before the trainer trains on them.
//!
//! ```text
//! GET  /v1/groups/{group}/instructions?attempt=A    rank 0; held up to 20 s → GroupInstruction
//! GET  /v1/groups/{group}/batches/{step}?attempt=A&rank=R&world=W    → batch.rs
//! POST /v1/groups/{group}/logprobs/{step}?attempt=A&rank=R&world=W   RankLogprobs, every rank
//! ```
//! An older attempt of the group gets 409, and the learner exits. Since protocol version 3.

use serde::{Deserialize, Serialize};

/// Next action of the learners of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum GroupInstruction {
    /// No action yet; the learner repeats the request.
    Wait,
    /// Get the batch of this step, compute its log-probabilities and post [`RankLogprobs`].
    Infer {
        /// Number of the step.
        step: u32,
    },
    /// Exit with code 0.
    Exit,
}

/// Log-probabilities of a rank's part of a batch.
///
/// Bytes: the seconds as `f64`, then the log-probabilities as `f32`, all little-endian.
#[derive(Clone, Debug, PartialEq)]
pub struct RankLogprobs {
    /// Seconds that the pass took.
    pub seconds: f64,
    /// One for each trained token, in the order of the part's tokens.
    pub logprobs: Vec<f32>,
}

impl RankLogprobs {
    /// The bytes of a request.
    pub fn to_bytes(&self) -> Vec<u8> {
        let logprobs = self.logprobs.iter().flat_map(|logprob| logprob.to_le_bytes());
        self.seconds.to_le_bytes().into_iter().chain(logprobs).collect()
    }

    /// Reads what [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    /// The bytes are no whole numbers, or one of them is not finite.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let malformed = || format!("{} bytes are not seconds and log-probabilities", bytes.len());
        let (seconds, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
        let (logprobs, []) = rest.as_chunks() else { return Err(malformed()) };
        let logprobs: Vec<f32> = logprobs.iter().copied().map(f32::from_le_bytes).collect();
        let seconds = f64::from_le_bytes(*seconds);
        if let Some(index) = logprobs.iter().position(|logprob| !logprob.is_finite()) {
            let found = logprobs.get(index).copied().unwrap_or_default();
            return Err(format!("the log-probability of trained token {index} is {found}"));
        }
        if !seconds.is_finite() || seconds < 0.0 {
            return Err(format!("a pass of {seconds} seconds"));
        }
        Ok(Self { seconds, logprobs })
    }
}

#[cfg(test)]
mod tests {
    use super::RankLogprobs;

    #[test]
    fn log_probabilities_survive_their_bytes() {
        let part = RankLogprobs { seconds: 0.25, logprobs: vec![-1.5, -0.0, -1e-30] };
        let bytes = part.to_bytes();
        assert_eq!(RankLogprobs::from_bytes(&bytes), Ok(part));
        let empty = RankLogprobs { seconds: 0.0, logprobs: Vec::new() };
        assert_eq!(RankLogprobs::from_bytes(&empty.to_bytes()), Ok(empty));
    }

    #[test]
    fn parts_of_numbers_and_numbers_that_are_not_finite_are_rejected() {
        let of = |seconds, logprobs: &[f32]| {
            let part = RankLogprobs { seconds, logprobs: logprobs.to_vec() };
            RankLogprobs::from_bytes(&part.to_bytes()).unwrap_err()
        };
        let infinite = of(0.0, &[-1.0, f32::NEG_INFINITY]);
        assert_eq!(infinite, "the log-probability of trained token 1 is -inf");
        assert_eq!(of(f64::NAN, &[]), "a pass of NaN seconds");
        let error = RankLogprobs::from_bytes(&[0; 10]).unwrap_err();
        assert_eq!(error, "10 bytes are not seconds and log-probabilities");
    }
}
