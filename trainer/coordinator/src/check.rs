//! Check of a job's data without a run (`rljob validate --data`): numbers of rows, and the rows
//! that a run would drop. Reads the tokenizer and the data as a run does, and writes nothing.

use std::fmt::Write;
use std::path::PathBuf;

use rljob_crds::RunConfig;

use crate::data::Dataset;
use crate::input::{Input, InputError};
use crate::reward::Runner;

/// Dropped rows that are shown of each dataset.
const SHOWN: usize = 10;

/// Counts and dropped rows as lines.
///
/// # Errors
/// What would fail a run at its start.
pub fn check(config: &RunConfig) -> Result<String, InputError> {
    // No command is run.
    let input = Input::open(config, &Runner::Program(PathBuf::new()))?;
    let mut text = String::new();
    let evaluation = input.evaluation.iter().map(|own| (own.name(), &own.data));
    for (name, data) in input.train.iter().map(|data| ("training", data)).chain(evaluation) {
        describe(&mut text, name, data);
    }
    Ok(text)
}

fn describe(text: &mut String, name: &str, data: &Dataset) {
    let unusable = data.unusable();
    let _ = write!(text, "{name} data: {} rows are used", data.len());
    if data.dropped() > 0 {
        let _ = write!(text, "; {} dropped: longer than maxPromptTokens", data.dropped());
    }
    if !unusable.is_empty() {
        let _ = write!(text, "; {} dropped: unusable reference answers", unusable.len());
    }
    text.push('\n');
    for row in unusable.iter().take(SHOWN) {
        let _ = writeln!(text, "  {}: {}", row.location, row.source);
    }
    if unusable.len() > SHOWN {
        let _ = writeln!(text, "  and {} more", unusable.len().saturating_sub(SHOWN));
    }
}
