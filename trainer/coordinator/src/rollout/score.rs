//! Scoring: completion tokens → text → reward. A verifier failure rejects the sample; an unusable
//! verifier fails the work.

use std::sync::Arc;

use crate::data::Prompt;
use crate::input::{Input, InputError};
use crate::reward::{Question, Reward, RewardError};
use crate::work_error::WorkError;

/// A completion as text, with its reward.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The text, special tokens skipped.
    pub text: String,
    pub reward: Reward,
}

/// Result of scoring a completion.
#[derive(Debug)]
pub enum Verdict {
    /// The reward.
    Scored(Scored),
    /// No reward after all retries; the sample is rejected.
    Rejected(RewardError),
}

/// A completion that is not scored.
pub async fn unscored(input: &Arc<Input>, tokens: Vec<i64>) -> Result<Scored, WorkError> {
    Ok(Scored { text: text(input, tokens).await?, reward: Reward::default() })
}

/// Scores one completion of a prompt; without rewards, the score is 0. The verifier's own deadlines
/// bound the time.
pub async fn score(
    input: &Arc<Input>,
    prompt: &Prompt,
    tokens: Vec<i64>,
) -> Result<Verdict, WorkError> {
    let text = text(input, tokens).await?;
    let Some(rewards) = &input.rewards else {
        return Ok(Verdict::Scored(Scored { text, reward: Reward::default() }));
    };
    let question = Question {
        prompt: &prompt.text,
        completion: &text,
        answer: prompt.answer.as_deref(),
        fields: prompt.reward_fields.as_deref(),
    };
    match rewards.named(&prompt.rewards).score(question).await {
        Ok(reward) => Ok(Verdict::Scored(Scored { text, reward })),
        Err(rejected @ RewardError::Rejected { .. }) => Ok(Verdict::Rejected(rejected)),
        Err(error) => Err(WorkError::Verifier(error.of_row(prompt.row))),
    }
}

async fn text(input: &Arc<Input>, tokens: Vec<i64>) -> Result<String, WorkError> {
    let decoding = Arc::clone(input);
    let decoded = tokio::task::spawn_blocking(move || decoding.tokenizer.decode(&tokens)).await?;
    Ok(decoded.map_err(InputError::from)?)
}
