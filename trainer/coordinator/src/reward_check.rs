//! Check of rewards without a run (`rljob validate --local`): what the reference answer of the
//! first row of each source scores. Calls no server and no command, and writes nothing.

use std::fmt::Write;

use rljob_crds::RunConfig;
use rljob_crds::reward::RewardSpec;

use crate::data::{DataError, FirstRow, RowLocation, first_rows};
use crate::reward::{
    FailedCall, Question, RewardError, Rewards, Runner, StatedAnswer, VerifierError,
};

/// Start of a line about a right answer whose score is not the best.
const WARNING: &str = "warning: ";
/// Most characters of a completion in a line.
const EXCERPT: usize = 80;

/// A reward, or data, that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RewardCheckError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Unusable(#[from] RewardError),
    #[error("{reward} does not score {location} with {completion} as completion")]
    Row { reward: String, location: RowLocation, completion: &'static str, source: VerifierError },
}

/// Checks that the functions of `python` rewards can be called on this machine, and scores the
/// first rows of the data on this machine with all rewards that need neither a server, a command
/// nor tests. The completion is the answer of the row. Returns a line for each score.
///
/// # Errors
/// What would fail a run at its start, or its first completions.
pub async fn check_rewards(
    config: &RunConfig,
    runner: &Runner,
) -> Result<String, RewardCheckError> {
    let rows = first_rows(config)?;
    let mut text = String::new();
    for (index, spec) in config.spec.rewards.iter().enumerate() {
        if !spec.scores_alone() {
            continue;
        }
        let rewards = Rewards::new(std::slice::from_ref(spec), runner, None)?;
        rewards.check().await?;
        let is_scored = |row: &&FirstRow| {
            (row.rewards.is_empty() || row.rewards.contains(&spec.name))
                && (row.answer.is_some() || !rewards.needs_answers())
        };
        for row in rows.iter().filter(is_scored) {
            let best = score(&rewards, row).await?;
            let _ = writeln!(text, "{}", line(&format!("rewards[{index}]"), spec, row, &best));
        }
    }
    Ok(text)
}

async fn score(rewards: &Rewards, row: &FirstRow) -> Result<StatedAnswer, RewardCheckError> {
    let question = Question {
        prompt: &row.prompt,
        completion: row.answer.as_deref().unwrap_or_default(),
        answer: row.answer.as_deref(),
        fields: row.reward_fields.as_deref(),
    };
    let scored = rewards.score_statements(question, row.has_structured_answer).await;
    scored.map_err(|FailedCall { service, source }| RewardCheckError::Row {
        reward: service,
        location: row.location.clone(),
        completion: if row.answer.is_some() { "its answer" } else { "an empty text" },
        source,
    })
}

fn line(field: &str, spec: &RewardSpec, row: &FirstRow, best: &StatedAnswer) -> String {
    let (kind, location, value) = (spec.kind(), &row.location, best.value);
    let what = if row.answer.is_some() { "the reference answer" } else { "an empty completion" };
    let is_plain = row.answer.as_ref().is_none_or(|answer| *answer == best.completion);
    let stated = if is_plain { String::new() } else { format!(" as `{}`", excerpt(best)) };
    let scored = format!("{field} ({kind}): {what} of {location} scores {value:?}{stated}");
    let answer = format!("{}.answer", row.field);
    match (spec, &best.unusable) {
        (_, Some(cause)) => format!("{WARNING}{scored}: {cause}; check {answer}"),
        _ if value >= 1.0 => scored,
        (RewardSpec { math: Some(_), .. }, _) => {
            format!("{WARNING}{scored}: check {answer}, and the places in {field}.math.extract")
        }
        (RewardSpec { python: Some(_), .. }, _) => {
            let condition = "if no completion should score higher, check";
            format!("{scored}; {condition} the function and {answer}")
        }
        _ => scored,
    }
}

fn excerpt(best: &StatedAnswer) -> String {
    let text: String = best.completion.chars().take(EXCERPT).collect();
    text.replace(char::is_control, " ")
}
