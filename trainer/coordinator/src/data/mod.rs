//! Data loading: renders and shuffles the rows of a dataset and serves prompts by loader position.
//!
//! ```text
//!  file or folder ─ files, reader ─▶ fields ─ rows ─▶ rendered rows that fit ─┐
//!  (seed, epoch) ─ row_order ─▶ permutation ──────────────────────────────────┴─▶ prompt(position)
//! ```
//!
//! `prompt` is a pure function of (data, spec, seed, position), so a restarted run needs only the
//! position. Must not depend on steps or prompt groups.

mod bounded_parquet;
mod categories;
mod dropped;
mod error;
mod feedback;
mod files;
mod location;
mod reader;
mod row_order;
mod rows;
mod token_counts;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rljob_crds::data::{EvaluationDataset, TrainDataset};
use sha2::{Digest, Sha256};

pub use dropped::DroppedRow;
pub use error::DataError;
pub use feedback::{Feedback, FeedbackError, TurnFacts};
pub use files::{FileSelector, select_remote};
pub use location::RowLocation;
pub use reader::Fields;
pub use rows::KeptFields;

use files::SplitFiles;
use reader::{ReadLimits, RowReader};
use row_order::RowOrder;
use rows::{Row, Templates};
use token_counts::{ROW_DEADLINE, count_tokens};

use crate::reward::Rewards;
use crate::text::{PromptStyle, TextTokenizer};

/// Rows tokenized per parallel batch.
const BATCH: usize = 16384;

/// A prompt with its tokens and its reference answer or completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Loader position, from 0; continues across epochs.
    pub position: u64,
    /// Row number over all files, from 0; blank lines are not counted.
    pub row: u64,
    /// Rendered prompt without the chat template.
    pub text: String,
    /// Token ids, chat template included.
    pub tokens: Vec<i64>,
    /// Reference answer; `None` if the dataset has no answer field.
    pub answer: Option<String>,
    /// Names of the rewards that score its completions; all if there are none.
    pub rewards: Arc<[String]>,
    /// Category of an evaluation's row.
    pub category: Option<String>,
    /// Target tokens with the end-of-sequence token; `None` if the dataset has no `completion`.
    pub completion_tokens: Option<Vec<i64>>,
    /// Tokens of the chosen and the rejected completion, each with the end-of-sequence token;
    /// `None` if the dataset has no pairs.
    pub pair_tokens: Option<[Vec<i64>; 2]>,
    /// Kept fields of the row, if any are kept.
    pub fields: Option<Arc<Fields>>,
}

impl Prompt {
    /// Number of tokens of the prompt and its longest given completion.
    pub fn len_with_completion(&self) -> usize {
        let completions = self.pair_tokens.iter().flatten().chain(&self.completion_tokens);
        let longest = completions.map(Vec::len).max().unwrap_or(0);
        self.tokens.len().saturating_add(longest)
    }
}

/// Rendered rows. Tokenization happens on access.
pub struct Dataset {
    path: PathBuf,
    rows: Vec<Row>,
    dropped: u64,
    unusable: Vec<DroppedRow>,
    seed: Option<u64>,
    order: RowOrder,
    style: PromptStyle,
    tokenizer: TextTokenizer,
    /// Names of the rewards that score completions; all if there are none.
    rewards: Arc<[String]>,
}

/// Settings common to training and evaluation data.
struct Source<'a> {
    path: &'a str,
    selector: FileSelector<'a>,
    templates: Templates,
    style: PromptStyle,
    max_prompt_tokens: Option<u32>,
    rewards: &'a [String],
    /// Number of rows of a random sample, with its seed.
    sample: Option<(usize, u64)>,
}

impl Dataset {
    /// Opens training data, which is unbounded and reshuffled each epoch by (`seed`, epoch).
    pub fn open_train(
        spec: &TrainDataset,
        tokenizer: &TextTokenizer,
        seed: u64,
        kept: &KeptFields,
    ) -> Result<Self, DataError> {
        check_eos_token(spec.completion.is_some() || spec.chosen.is_some(), tokenizer)?;
        let source = Source {
            path: spec.path.as_deref().unwrap_or_default(),
            selector: FileSelector {
                split: spec.split.as_deref(),
                default_split: "train",
                subset: spec.subset.as_deref(),
            },
            templates: Templates::new(
                &spec.prompt,
                spec.system.as_deref(),
                spec.completion.as_deref(),
                spec.answer.as_deref(),
                kept,
            )?
            .with_pair(spec.chosen.as_deref(), spec.rejected.as_deref())?,
            style: PromptStyle {
                format: spec.format,
                arguments: spec.chat_template_arguments.clone(),
            },
            max_prompt_tokens: spec.max_prompt_tokens,
            rewards: &spec.rewards,
            sample: None,
        };
        source.open(tokenizer, Some(seed))
    }

    /// Opens evaluation data in file order: all rows that fit, or a random sample of `limit`.
    pub fn open_evaluation(
        spec: &EvaluationDataset,
        tokenizer: &TextTokenizer,
        kept: &KeptFields,
    ) -> Result<Self, DataError> {
        check_eos_token(spec.completion.is_some() || spec.chosen.is_some(), tokenizer)?;
        let source = Source {
            path: spec.path.as_deref().unwrap_or_default(),
            selector: FileSelector {
                split: spec.split.as_deref(),
                default_split: "test",
                subset: spec.subset.as_deref(),
            },
            templates: Templates::new(
                &spec.prompt,
                spec.system.as_deref(),
                spec.completion.as_deref(),
                spec.answer.as_deref(),
                kept,
            )?
            .with_category(spec.category.as_deref())
            .with_pair(spec.chosen.as_deref(), spec.rejected.as_deref())?,
            style: PromptStyle {
                format: spec.format,
                arguments: spec.chat_template_arguments.clone(),
            },
            max_prompt_tokens: spec.max_prompt_tokens,
            rewards: &spec.rewards,
            sample: spec.limit.map(|limit| (limit as usize, spec.sample_seed.into())),
        };
        let data = source.open(tokenizer, None)?;
        categories::check(&data.rows, &data.path)?;
        Ok(data)
    }

    /// Number of rows, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "opening data without rows is an error")]
    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// File or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 of the rendered rows in file order, as hexadecimal.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        for row in &self.rows {
            digest.update(row.number.to_le_bytes());
            let texts = [Some(&row.prompt), row.system.as_ref(), row.completion.as_ref()];
            let pair = row.pair.iter().flatten().map(Some);
            for text in texts.into_iter().chain([row.answer.as_ref()]).chain(pair) {
                // The length tells where a text ends; an absent text differs from an empty one.
                digest.update(text.map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
                digest.update(text.map_or("", String::as_str));
            }
            if let Some(fields) = &row.fields {
                // Maps of JSON are sorted by key.
                digest.update(serde_json::to_vec(fields.as_ref()).unwrap_or_default());
            }
        }
        format!("{:x}", digest.finalize())
    }

    /// Number of rows dropped because their prompts exceed `maxPromptTokens`.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the prompt of row `order(position ÷ len)[position mod len]`.
    pub fn prompt(&self, position: u64) -> Result<Prompt, DataError> {
        let index = self.order.row(position);
        let Some(row) = self.rows.get(index as usize) else {
            return Err(DataError::Empty { path: self.path.clone() });
        };
        Ok(Prompt {
            position,
            row: row.number,
            text: row.prompt.clone(),
            tokens: row.prompt(&self.tokenizer, &self.style)?,
            answer: row.answer.clone(),
            rewards: Arc::clone(&self.rewards),
            category: row.category.clone(),
            completion_tokens: row.completion(&self.tokenizer)?,
            pair_tokens: row.pair(&self.tokenizer)?,
            fields: row.fields.clone(),
        })
    }

    /// How prompts and later turns become tokens.
    pub fn style(&self) -> &PromptStyle {
        &self.style
    }

    /// Checks that every prompt fits the context with its completion, or with one token if
    /// completions are sampled.
    pub fn check_lengths(&self, context: u32) -> Result<(), DataError> {
        for row in &self.rows {
            let (location, prompt, completion) =
                (row.location.clone(), row.prompt_tokens, row.completion_tokens.max(1));
            if prompt == 0 {
                return Err(DataError::EmptyPrompt { location });
            }
            if prompt.saturating_add(completion) > context as usize {
                return Err(DataError::TooLong { location, prompt, completion, context });
            }
        }
        Ok(())
    }

    /// Rows that [`Self::drop_unusable`] dropped.
    pub fn unusable(&self) -> &[DroppedRow] {
        &self.unusable
    }

    /// Drops rows whose reference answers the rewards cannot compare. Fails if they are more than
    /// `share` of the rows.
    pub fn drop_unusable(&mut self, rewards: &Rewards, share: f64) -> Result<(), DataError> {
        let rewards = rewards.named(&self.rewards);
        let before = self.rows.len();
        let mut kept = Vec::with_capacity(before);
        for row in std::mem::take(&mut self.rows) {
            match row.answer.as_deref() {
                Some(answer) => match rewards.check_answer(answer) {
                    Ok(()) => kept.push(row),
                    Err(source) => self.unusable.push(DroppedRow {
                        location: row.location,
                        answer: answer.to_owned(),
                        source,
                    }),
                },
                None if rewards.needs_answers() => {
                    return Err(DataError::NoAnswerField { path: self.path.clone() });
                }
                None => kept.push(row),
            }
        }
        let unusable = self.unusable.len();
        if let Some(first) = self.unusable.first()
            && (kept.is_empty() || unusable as f64 > share * before as f64)
        {
            return Err(DataError::Unusable {
                path: self.path.clone(),
                unusable,
                rows: before,
                share,
                location: first.location.clone(),
                source: Box::new(first.source.clone()),
            });
        }
        self.order = RowOrder::new(self.seed, kept.len() as u64);
        self.rows = kept;
        Ok(())
    }
}

/// Completions need an end-of-sequence token.
fn check_eos_token(completes: bool, tokenizer: &TextTokenizer) -> Result<(), DataError> {
    if completes && tokenizer.eos_token_id().is_none() {
        Err(DataError::NoEosToken)
    } else {
        Ok(())
    }
}

impl Source<'_> {
    fn open(self, tokenizer: &TextTokenizer, seed: Option<u64>) -> Result<Dataset, DataError> {
        let path = PathBuf::from(self.path);
        let SplitFiles { paths, rows: expected } = files::select(&path, self.selector)?;
        let mut reader = (0..).zip(RowReader::new(paths, ReadLimits::default()));
        let (mut rows, mut dropped) = (Vec::new(), 0_u64);
        loop {
            let batch = self.batch(&mut reader)?;
            if batch.is_empty() {
                let found = dropped.saturating_add(rows.len() as u64);
                if let Some(expected) = expected.filter(|expected| *expected != found) {
                    return Err(DataError::RowCount { path, found, expected });
                }
                break;
            }
            let before = batch.len();
            // Rows of a sample are counted once drawn.
            let batch = if self.sample.is_some() { batch } else { self.fitting(batch, tokenizer)? };
            dropped = dropped.saturating_add(before.saturating_sub(batch.len()) as u64);
            rows.extend(batch);
        }
        if let Some((limit, seed)) = self.sample {
            let drawn = self.draw(rows, limit, seed, tokenizer)?;
            (rows, dropped) = drawn;
        }
        match (rows.is_empty(), self.max_prompt_tokens) {
            (true, Some(limit)) if dropped > 0 => {
                return Err(DataError::AllDropped { path, dropped, limit });
            }
            (true, _) => return Err(DataError::Empty { path }),
            (false, _) => {
                tracing::info!(path = self.path, rows = rows.len(), dropped, "opened the data");
            }
        }
        let order = RowOrder::new(seed, rows.len() as u64);
        let (unusable, style, tokenizer) = (Vec::new(), self.style, tokenizer.clone());
        let rewards = self.rewards.into();
        Ok(Dataset { path, rows, dropped, unusable, seed, order, style, tokenizer, rewards })
    }

    /// The rows whose prompts fit, with their numbers of tokens.
    fn fitting(&self, rows: Vec<Row>, tokenizer: &TextTokenizer) -> Result<Vec<Row>, DataError> {
        let mut rows = count_tokens(rows, tokenizer, &self.style, ROW_DEADLINE)?;
        rows.retain(|row| {
            self.max_prompt_tokens.is_none_or(|limit| row.prompt_tokens <= limit as usize)
        });
        Ok(rows)
    }

    /// The first `limit` rows that fit in a random order, in file order, and the number of drawn
    /// rows that do not fit.
    fn draw(
        &self,
        rows: Vec<Row>,
        limit: usize,
        seed: u64,
        tokenizer: &TextTokenizer,
    ) -> Result<(Vec<Row>, u64), DataError> {
        let order = RowOrder::new(Some(seed), rows.len() as u64);
        let mut places: Vec<u64> = (0..rows.len() as u64).collect();
        for place in &mut places {
            *place = order.row(*place);
        }
        let mut rows: Vec<Option<Row>> = rows.into_iter().map(Some).collect();
        let mut drawn = places.into_iter().filter_map(|at| rows.get_mut(at as usize)?.take());
        let (mut fitting, mut dropped) = (Vec::new(), 0_u64);
        while fitting.len() < limit {
            let missing = limit.saturating_sub(fitting.len());
            let batch: Vec<Row> = drawn.by_ref().take(missing.min(BATCH)).collect();
            if batch.is_empty() {
                break;
            }
            let before = batch.len();
            let batch = self.fitting(batch, tokenizer)?;
            dropped = dropped.saturating_add(before.saturating_sub(batch.len()) as u64);
            fitting.extend(batch);
        }
        fitting.sort_by_key(|row| row.number);
        Ok((fitting, dropped))
    }

    fn batch(
        &self,
        reader: &mut impl Iterator<Item = (u64, Result<(RowLocation, Fields), DataError>)>,
    ) -> Result<Vec<Row>, DataError> {
        let rendered = |(number, row): (u64, Result<(RowLocation, Fields), DataError>)| {
            let (location, fields) = row?;
            self.templates.row(location, number, &fields)
        };
        reader.take(BATCH).map(rendered).collect()
    }
}

#[cfg(test)]
mod tests;
