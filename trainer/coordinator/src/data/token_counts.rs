//! Token counts of rows, in parallel and with a deadline: regular expressions of a tokenizer may
//! backtrack for hours. A thread that exceeds the deadline is left behind; the run then fails.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::data::error::DataError;
use crate::data::location::RowLocation;
use crate::data::rows::Row;
use crate::text::{PromptStyle, TextTokenizer};

/// Time for the tokens of one row.
pub const ROW_DEADLINE: Duration = Duration::from_secs(60);

/// The row that a thread works on, with its start.
type Current = Arc<Mutex<Option<(RowLocation, Instant)>>>;

/// Counted rows of a share of the batch, by the index of the share.
type Counted = (usize, Result<Vec<Row>, DataError>);

/// Counts the tokens of all rows. An error names the first row that is invalid or takes longer
/// than `deadline`.
pub fn count_tokens(
    rows: Vec<Row>,
    tokenizer: &TextTokenizer,
    style: &PromptStyle,
    deadline: Duration,
) -> Result<Vec<Row>, DataError> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = rows.len().div_ceil(threads).max(1);
    let (sender, counted) = sync_channel(threads);
    let (mut rows, mut current) = (rows.into_iter().peekable(), Vec::new());
    while rows.peek().is_some() {
        let part: Vec<Row> = rows.by_ref().take(share).collect();
        let at = Current::default();
        spawn(current.len(), part, (tokenizer.clone(), style.clone()), &sender, Arc::clone(&at))?;
        current.push(at);
    }
    drop(sender);
    collect(&counted, &current, deadline)
}

fn spawn(
    index: usize,
    mut rows: Vec<Row>,
    (tokenizer, style): (TextTokenizer, PromptStyle),
    sender: &SyncSender<Counted>,
    at: Current,
) -> Result<(), DataError> {
    let sender = sender.clone();
    let count = move || {
        let mut count_all = || {
            for row in &mut rows {
                *at.lock() = Some((row.location.clone(), Instant::now()));
                let tokens = row.tokens(&tokenizer, &style)?;
                row.prompt_tokens = tokens.prompt.len();
                row.completion_tokens = tokens.completion_len();
            }
            Ok(())
        };
        let counted = count_all().map(|()| rows);
        *at.lock() = None;
        // The receiver no longer exists after an error.
        let _ = sender.send((index, counted));
    };
    let spawned = std::thread::Builder::new().name("tokenize".to_owned()).spawn(count);
    spawned.map(drop).map_err(|_| DataError::Tokenizer)
}

fn collect(
    counted: &Receiver<Counted>,
    current: &[Current],
    deadline: Duration,
) -> Result<Vec<Row>, DataError> {
    let mut shares: Vec<Option<Result<Vec<Row>, DataError>>> = Vec::new();
    shares.resize_with(current.len(), || None);
    while shares.iter().any(Option::is_none) {
        match counted.recv_timeout(deadline.min(Duration::from_secs(1))) {
            Ok((index, result)) => {
                if let Some(share) = shares.get_mut(index) {
                    *share = Some(result);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let late = current.iter().find_map(|at| {
                    at.lock().clone().filter(|(_, since)| since.elapsed() > deadline)
                });
                if let Some((location, _)) = late {
                    return Err(DataError::SlowTokenizer { location, limit: deadline });
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Err(DataError::Tokenizer),
        }
    }
    // In order, so that the error names the first invalid row.
    shares.into_iter().try_fold(Vec::new(), |mut all, share| {
        all.append(&mut share.unwrap_or(Err(DataError::Tokenizer))?);
        Ok(all)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use serde_json::json;

    use super::count_tokens;
    use crate::data::location::RowLocation;
    use crate::data::rows::Row;
    use crate::data::templates::{KeptFields, Templates};
    use crate::text::{PromptStyle, TextTokenizer};

    /// The fixture's tokenizer, which splits texts by this pattern.
    fn tokenizer(pattern: &str) -> TextTokenizer {
        let fixture =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat");
        let folder = tempfile::tempdir().unwrap();
        let file = fs::read_to_string(fixture.join("tokenizer.json")).unwrap();
        let mut file: serde_json::Value = serde_json::from_str(&file).unwrap();
        file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
             "use_regex": false},
        ]});
        fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        TextTokenizer::open(folder.path()).unwrap()
    }

    fn counted(pattern: &str, prompt: &str, deadline: Duration) -> Result<Vec<usize>, String> {
        let location = RowLocation { path: Path::new("rows").into(), unit: "line", number: 7 };
        let fields = serde_json::Map::from_iter([("q".to_owned(), json!(prompt))]);
        let templates = Templates::new("{{q}}", None, None, None, &KeptFields::None).unwrap();
        let row: Row = templates.row(location, 0, &fields).unwrap();
        let style =
            PromptStyle { format: rljob_crds::data::PromptFormat::Text, ..PromptStyle::default() };
        count_tokens(vec![row], &tokenizer(pattern), &style, deadline)
            .map(|rows| rows.iter().map(|row| row.prompt_tokens).collect())
            .map_err(|error| crate::error_line(&error))
    }

    #[test]
    fn a_regular_expression_that_backtracks_ends_in_an_error_that_names_the_row() {
        let minute = Duration::from_secs(60);
        assert_eq!(counted(r"\d", "12", minute), Ok(vec![2]));
        let error = counted(r"(?:a|a)+c", &"a".repeat(64), minute).unwrap_err();
        assert!(error.contains("rows line 7"), "{error}");
        assert!(error.contains("its regular expressions need too many steps"), "{error}");
        // Quadratic: no match exceeds the limit of steps, but all of them take too long.
        let text = format!("{}b", "a".repeat(100_000));
        let error = counted(r"a+(?!b|a)", &text, Duration::from_millis(100)).unwrap_err();
        assert!(error.starts_with("the tokens of rows line 7 take longer than"), "{error}");
    }
}
