//! Check of the data without a run (`rljob validate --data`): numbers of rows, and the rows that a
//! run would drop. Reads the tokenizer and the data as a run does. Writes nothing.

use std::fmt::Write;
use std::path::PathBuf;

use rljob_crds::RunConfig;

use crate::core::record::StepsOfEpochs;
use crate::data::{Dataset, FilterReason, Part};
use crate::engines::FixedFleets;
use crate::input::{Input, InputError, check_epochs, steps_of_epochs};
use crate::reward::Runner;

/// Dropped rows that are shown of each dataset.
const SHOWN: usize = 10;

/// Counts and dropped rows as lines.
///
/// # Errors
/// What would fail a run at its start.
pub fn check(config: &RunConfig) -> Result<String, InputError> {
    // Nothing is scored.
    let input = Input::open(config, &Runner::Program(PathBuf::new()), &FixedFleets::default())?;
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
            dropped(|kind| matches!(kind, FilterReason::LongTogether { .. })),
            "longer than maxTokens",
        ),
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
