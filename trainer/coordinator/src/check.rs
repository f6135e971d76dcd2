//! Checks of a job without a run. `rljob validate --data`: numbers of rows, and the rows that a run
//! would drop; reads the tokenizer and the data as a run does. `rljob validate --local`: functions
//! of rewards, with a row of the data. They write nothing.

use std::fmt::Write;
use std::path::PathBuf;

use rljob_crds::RunConfig;
use rljob_crds::reward::RewardSpec;

use crate::core::record::StepsOfEpochs;
use crate::data::{Dataset, FilterReason, FirstRow, Part, RowLocation, first_rows};
use crate::input::{Input, InputError, check_epochs, steps_of_epochs};
use crate::reward::{FailedCall, Question, RewardError, Rewards, Runner, VerifierError};

/// Dropped rows that are shown of each dataset.
const SHOWN: usize = 10;

/// Counts and dropped rows as lines.
///
/// # Errors
/// What would fail a run at its start.
pub fn check(config: &RunConfig) -> Result<String, InputError> {
    // Nothing is scored.
    let input = Input::open(config, &Runner::Program(PathBuf::new()), None)?;
    let mut text = String::new();
    for part in input.datasets().flat_map(Dataset::parts) {
        describe(&mut text, part);
    }
    if let Some(train) = &input.train {
        check_epochs(&config.spec, train.len(), 0)?;
        if let Some(StepsOfEpochs { epochs, steps }) = steps_of_epochs(&config.spec, train.len()) {
            let _ = writeln!(text, "training.epochs: {epochs} is {steps} steps of this data");
        }
    }
    Ok(text)
}

/// A function of a `python` reward that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    #[error(transparent)]
    Unusable(#[from] RewardError),
    #[error("{reward} does not score {location} with {completion} as completion")]
    Row { reward: String, location: RowLocation, completion: &'static str, source: VerifierError },
}

/// Checks that the functions of `python` rewards can be called on this machine, and that they score
/// the first row of the data, if it is on this machine: its answer as completion.
///
/// # Errors
/// What would fail a run at its start, or its first completions.
pub async fn check_rewards(config: &RunConfig, runner: &Runner) -> Result<(), FunctionError> {
    let functions = config.spec.rewards.iter().filter(|reward| reward.python.is_some());
    let functions: Vec<RewardSpec> = functions.cloned().collect();
    let rewards = Rewards::new(&functions, runner, None)?;
    rewards.check().await?;
    for row in first_rows(config) {
        check_row(&rewards.named(&row.rewards), &row).await?;
    }
    Ok(())
}

async fn check_row(rewards: &Rewards, row: &FirstRow) -> Result<(), FunctionError> {
    let answer = row.answer.as_deref();
    let completion = answer.unwrap_or_default();
    let scored = rewards.score_once(Question { prompt: &row.prompt, completion, answer }).await;
    scored.map_err(|FailedCall { service, source }| FunctionError::Row {
        reward: service,
        location: row.location.clone(),
        completion: if answer.is_some() { "its answer" } else { "an empty text" },
        source,
    })
}

fn describe(text: &mut String, part: &Part) {
    let (filtered, unusable) = (part.filtered(), part.unusable());
    let label = match part.label().split_once('/') {
        Some(("train", name)) => format!("training/{name}"),
        None if part.label() == "train" => "training".to_owned(),
        _ => part.label().to_owned(),
    };
    let _ = write!(text, "{label} data: {} rows are used", part.len());
    let dropped = |is_kind: fn(&FilterReason) -> bool| {
        filtered.iter().filter(|row| is_kind(&row.reason)).count()
    };
    for (count, reason) in [
        (dropped(|kind| matches!(kind, FilterReason::Long { .. })), "longer than maxPromptTokens"),
        (
            dropped(|kind| matches!(kind, FilterReason::Short { .. })),
            "shorter than minPromptTokens",
        ),
        (dropped(|kind| matches!(kind, FilterReason::PassRate { .. })), "outside passRate"),
        (unusable.len(), "unusable reference answers"),
    ] {
        if count > 0 {
            let _ = write!(text, "; {count} dropped: {reason}");
        }
    }
    if let Some((count, first)) = part.equal_pairs() {
        let _ = write!(text, "; {count} have equal chosen and rejected, the first is in {first}");
    }
    text.push('\n');
    for row in unusable.iter().take(SHOWN) {
        let _ = writeln!(text, "  {}: {}", row.location, row.source);
    }
    if unusable.len() > SHOWN {
        let _ = writeln!(text, "  and {} more", unusable.len().saturating_sub(SHOWN));
    }
}
