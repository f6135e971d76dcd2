//! Availability of a verifier: tells a completion that cannot be scored from a verifier that is
//! down, and both from a verifier that is wrong. Time is an argument.
//!
//! ```text
//!  failed try ─┬─ the verifier is unreachable, or rejected 16 completions in a row
//!              │    ─▶ outage: all completions wait with backoff; past the limit, the run fails
//!              ├─ fault: a wrong answer ─▶ the sample is rejected without retries;
//!              │    after 16 in a row (256 if it has scored a completion) the run fails at once
//!              └─ else: retries left ─▶ retry; no retries left ─▶ the sample is rejected
//! ```
//!
//! A program that ends is started again for the retries. One that has scored no completion is wrong
//! if it has ended at all of them: that is a fault, too.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::verifier::VerifierError;

/// Consecutive rejected completions after which a verifier counts as down.
const MAX_REJECTED: u32 = 16;
/// Consecutive faults after which a verifier that has scored no completion fails the run.
const MAX_FIRST_FAULTS: u32 = 16;
/// The same of a verifier that has scored one. A prompt may be the cause, whose whole group fails.
const MAX_FAULTS: u32 = 256;

/// Failures of a verifier since its last answer.
#[derive(Debug)]
pub struct Availability {
    max_outage: Duration,
    failures: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    rejected_in_a_row: u32,
    faults_in_a_row: u32,
    /// Whether a try has ever succeeded.
    has_answered: bool,
    outage: Option<Outage>,
    /// The first failed try.
    first: Option<String>,
    /// Whether a try has succeeded since the last failed one.
    answered: bool,
}

/// Time without answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    pub since: Instant,
    /// The first failure.
    pub cause: String,
}

/// What follows from a failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Retry,
    /// The sample is rejected.
    Reject,
    /// The verifier is wrong; its limit of completions that fail in a row.
    Fail(u32),
    /// The verifier cannot start, or has been down for too long.
    GiveUp,
}

impl Availability {
    pub fn new(max_outage: Duration) -> Self {
        Self { max_outage, failures: Mutex::default() }
    }

    /// The verifier scored a completion.
    pub fn answered(&self) {
        let mut failures = self.failures.lock();
        let first = failures.first.take();
        *failures = Failures { first, answered: true, has_answered: true, ..Failures::default() };
    }

    /// A try failed; `is_last` if the completion has no retries left.
    pub fn failed(&self, error: &VerifierError, is_last: bool, now: Instant) -> Next {
        if error.is_permanent() {
            return Next::GiveUp;
        }
        let mut failures = self.failures.lock();
        failures.answered = false;
        failures.first.get_or_insert_with(|| crate::error_line(error));
        if error.is_fault() {
            return failures.add_fault();
        }
        if error.is_outage() || failures.rejected_in_a_row >= MAX_REJECTED {
            let outage = failures.outage.get_or_insert_with(|| {
                let cause = crate::error_line(error);
                tracing::warn!(cause, "a service is down; completions wait for it");
                Outage { since: now, cause }
            });
            let is_over = now.duration_since(outage.since) >= self.max_outage;
            return if is_over { Next::GiveUp } else { Next::Retry };
        }
        if !is_last {
            return Next::Retry;
        }
        if error.is_exit() && !failures.has_answered {
            return failures.add_fault();
        }
        failures.rejected_in_a_row = failures.rejected_in_a_row.saturating_add(1);
        Next::Reject
    }

    pub fn outage(&self) -> Option<Outage> {
        self.failures.lock().outage.clone()
    }

    /// The first failed try, and whether a try has succeeded since the last failed one.
    pub fn first_failure(&self) -> Option<(String, bool)> {
        let failures = self.failures.lock();
        Some((failures.first.clone()?, failures.answered))
    }
}

impl Failures {
    /// The verifier was reached, and cannot score a completion.
    fn add_fault(&mut self) -> Next {
        (self.rejected_in_a_row, self.outage) = (0, None);
        self.faults_in_a_row = self.faults_in_a_row.saturating_add(1);
        let limit = if self.has_answered { MAX_FAULTS } else { MAX_FIRST_FAULTS };
        if self.faults_in_a_row < limit { Next::Reject } else { Next::Fail(limit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: VerifierError = VerifierError::Timeout(Duration::from_secs(1));

    fn unavailable() -> VerifierError {
        let status = reqwest::StatusCode::SERVICE_UNAVAILABLE;
        VerifierError::Status { status, excerpt: String::new() }
    }

    #[tokio::test]
    async fn completions_wait_for_a_verifier_that_is_down_until_the_limit() {
        let availability = Availability::new(Duration::from_secs(60));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let next = [0, 30, 59, 60].map(|now| availability.failed(&unavailable(), true, at(now)));
        assert_eq!(next, [Next::Retry, Next::Retry, Next::Retry, Next::GiveUp]);
        let cause = "the server returned 503 Service Unavailable: ".to_owned();
        assert_eq!(availability.outage(), Some(Outage { since: start, cause }));
        availability.answered();
        assert_eq!(availability.outage(), None);
        assert_eq!(availability.failed(&unavailable(), true, at(90)), Next::Retry);
    }

    #[tokio::test]
    async fn a_completion_that_cannot_be_scored_is_rejected_unless_many_in_a_row_are() {
        let availability = Availability::new(Duration::from_secs(60));
        let now = Instant::now();
        assert_eq!(availability.failed(&TIMEOUT, false, now), Next::Retry);
        for _ in 0..MAX_REJECTED {
            assert_eq!(availability.failed(&TIMEOUT, true, now), Next::Reject);
        }
        assert_eq!(availability.failed(&TIMEOUT, true, now), Next::Retry);
        assert!(availability.outage().is_some());
        let cause = crate::error_line(&TIMEOUT);
        assert_eq!(availability.first_failure(), Some((cause.clone(), false)));
        availability.answered();
        assert_eq!(availability.first_failure(), Some((cause, true)));
    }

    #[tokio::test]
    async fn wrong_answers_for_many_completions_in_a_row_are_no_outage() {
        for fault in [
            VerifierError::Function("returned None".to_owned()),
            crate::reward::external::invalid(b"ready", &"no JSON"),
        ] {
            let availability = Availability::new(Duration::from_secs(60));
            let now = Instant::now();
            let fail = |times| failures(&availability, &fault, times);
            assert_eq!(availability.failed(&unavailable(), false, now), Next::Retry);
            assert_eq!(fail(MAX_FIRST_FAULTS), rejected_until(MAX_FIRST_FAULTS));
            assert_eq!(availability.outage(), None, "the verifier was reached");
            availability.answered();
            assert_eq!(fail(MAX_FAULTS), rejected_until(MAX_FAULTS));
        }
    }

    #[tokio::test]
    async fn a_program_that_ends_at_each_completion_is_wrong_unless_it_has_scored_one() {
        let availability = Availability::new(Duration::from_secs(60));
        let (status, now) = ("signal: 9 (SIGKILL)".to_owned(), Instant::now());
        let exit = VerifierError::Exited { status, stderr: String::new() };
        let fail = |times| failures(&availability, &exit, times);
        assert_eq!(availability.failed(&exit, false, now), Next::Retry, "it was killed once");
        assert_eq!(fail(MAX_FIRST_FAULTS), rejected_until(MAX_FIRST_FAULTS));
        availability.answered();
        let mut expected = vec![Next::Reject; MAX_REJECTED as usize];
        expected.push(Next::Retry);
        assert_eq!(fail(MAX_REJECTED + 1), expected);
        assert!(availability.outage().is_some(), "it scored a completion before");
    }

    /// What follows from the last tries of so many completions.
    fn failures(availability: &Availability, error: &VerifierError, times: u32) -> Vec<Next> {
        (0..times).map(|_| availability.failed(error, true, Instant::now())).collect()
    }

    /// The run fails at the last of so many failures.
    fn rejected_until(last: u32) -> Vec<Next> {
        let mut all = vec![Next::Reject; last as usize - 1];
        all.push(Next::Fail(last));
        all
    }
}
