//! Service outside the coordinator that completions need: retries of its calls, and its outages.

use std::time::Duration;

use rljob_protocol::status::{RewardFailure, RewardOutage};
use tokio::time::Instant;

use super::availability::{Availability, Next};
use super::error::RewardError;
use super::verifier::VerifierError;

/// Maximum wait between two calls for the same completion.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// A verifier, an environment or a tool.
#[derive(Debug)]
pub struct Service {
    /// Kind, name and target for messages, without secrets.
    label: String,
    retries: u32,
    max_outage: Duration,
    availability: Availability,
}

impl Service {
    /// `retries` follow the first try; calls wait up to `max_outage` for a service that is down.
    pub fn new(label: String, retries: u32, max_outage: Duration) -> Self {
        Self { label, retries, max_outage, availability: Availability::new(max_outage) }
    }

    /// Kind, name and target for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Calls the service until it succeeds, its retries are exhausted, or it was down too long.
    pub async fn call<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, RewardError>
    where
        F: Future<Output = Result<T, VerifierError>>,
    {
        // Tries, and those that failed for another reason than an outage.
        let (mut tries, mut failed) = (0_u32, 0_u32);
        loop {
            tries = tries.saturating_add(1);
            let source = match attempt().await {
                Ok(answer) => {
                    self.availability.answered();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let cause = crate::error_line(&source);
            tracing::debug!(service = self.label, tries, cause, "a call for a completion failed");
            let service = || self.label.clone();
            failed = failed.saturating_add(u32::from(!source.is_outage()));
            match self.availability.failed(&source, failed > self.retries, Instant::now()) {
                Next::Retry => tokio::time::sleep(backoff(tries, &source)).await,
                Next::Reject => {
                    return Err(RewardError::Rejected { service: service(), tries, source });
                }
                Next::Fail(completions) => {
                    let (service, row) = (service(), None);
                    return Err(RewardError::Faulty { service, completions, row, source });
                }
                Next::GiveUp => return Err(self.unavailable(source)),
            }
        }
    }

    /// The error of a service that cannot be used, or was down for too long.
    pub fn unavailable(&self, source: VerifierError) -> RewardError {
        let seconds = self.outage().map_or(0, |outage| outage.seconds);
        RewardError::Unavailable { service: self.label.clone(), seconds, source }
    }

    /// The first failed try, if there was one.
    pub fn failure(&self) -> Option<RewardFailure> {
        let (cause, answered) = self.availability.first_failure()?;
        let cause = cause.trim_end_matches([':', ' ']).to_owned();
        Some(RewardFailure { reward: self.label.clone(), cause, answered })
    }

    /// The outage, if the service is down.
    pub fn outage(&self) -> Option<RewardOutage> {
        let outage = self.availability.outage()?;
        let seconds = outage.since.elapsed().as_secs();
        let limit = self.max_outage.as_secs();
        let cause = outage.cause.trim_end_matches([':', ' ']);
        let cause = format!("{cause}; the run fails if this lasts {limit} s");
        Some(RewardOutage { reward: self.label.clone(), seconds, cause })
    }
}

/// Wait after the given number of tries: 1, 2, 4, … 30 seconds, and a tenth of it after a program
/// that ended, which is no sign of load.
fn backoff(tries: u32, error: &VerifierError) -> Duration {
    let first = if error.is_exit() { Duration::from_millis(100) } else { Duration::from_secs(1) };
    first.saturating_mul(2_u32.saturating_pow(tries.saturating_sub(1))).min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_are_short_after_a_program_that_ended() {
        let waits =
            |error: &VerifierError| [1, 2, 5, 9, 40].map(|tries| backoff(tries, error).as_millis());
        let ended =
            VerifierError::Exited { status: "exit code 1".to_owned(), stderr: String::new() };
        assert_eq!(waits(&ended), [100, 200, 1600, 25_600, 30_000]);
        let other = VerifierError::Labels(2);
        assert_eq!(waits(&other), [1000, 2000, 16_000, 30_000, 30_000]);
    }
}
