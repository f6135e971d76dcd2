//! Completion tokens to text to reward, on a thread that may block, with a deadline.

use std::sync::Arc;
use std::time::Duration;

use crate::driver::WorkError;
use crate::input::Input;
use crate::reward::Reward;

/// Longest time for one score.
const DEADLINE: Duration = Duration::from_secs(60);

/// A completion as text, with its reward.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The text, special tokens skipped.
    pub text: String,
    /// Its reward.
    pub reward: Reward,
}

/// Scores one completion. A failure is an error, never a score of 0.
pub async fn score(input: &Arc<Input>, tokens: Vec<i64>, answer: String) -> Result<Scored, WorkError> {
    let input = Arc::clone(input);
    let job = tokio::task::spawn_blocking(move || {
        let verifier = input.verifier.as_ref().ok_or(WorkError::NoReward)?;
        let text = input.tokenizer.decode(&tokens).map_err(crate::input::InputError::from)?;
        let reward = verifier.score(&text, &answer);
        Ok(Scored { text, reward })
    });
    match tokio::time::timeout(DEADLINE, job).await {
        Ok(done) => done.map_err(|_| WorkError::Interrupted)?,
        Err(_) => Err(WorkError::SlowReward(DEADLINE)),
    }
}
