//! Opening of data: reads, renders and filters the rows of each source.

use std::path::PathBuf;

use rljob_crds::data::{Suite, TrainDataset, TrainPart};

use super::conversation::Use;
use super::files::{self, FileSelector, SplitFiles};
use super::filters::Limits;
use super::location::RowLocation;
use super::mixture::Mixture;
use super::part::Part;
use super::reader::{Fields, ReadLimits, RowReader};
use super::row_order::RowOrder;
use super::rows::Row;
use super::templates::{KeptFields, Templates};
use super::token_counts::{ROW_DEADLINE, count_tokens};
use super::{DataError, Dataset, categories};
use crate::data::dropped::FilteredRow;
use crate::text::{PromptStyle, TextTokenizer};

/// Rows tokenized per parallel batch.
const BATCH: usize = 16384;

/// Settings common to training and evaluation data.
struct Source<'a> {
    label: String,
    path: &'a str,
    selector: FileSelector<'a>,
    templates: Templates,
    style: PromptStyle,
    limits: Limits<'a>,
    rewards: &'a [String],
    /// Number of rows of a random sample, with its seed.
    sample: Option<(usize, u64)>,
}

impl Dataset {
    /// Opens training data, which is unbounded and reshuffled each epoch by (`seed`, epoch).
    /// Conversations are prompts.
    pub fn open_train(
        spec: &TrainDataset,
        tokenizer: &TextTokenizer,
        seed: u64,
        kept: &KeptFields,
    ) -> Result<Self, DataError> {
        Self::open_parts(spec, tokenizer, (seed, kept, Use::Prompt))
    }

    /// Opens training data as [`Self::open_train`]. Conversations are demonstrations.
    pub fn open_demonstrations(
        spec: &TrainDataset,
        tokenizer: &TextTokenizer,
        seed: u64,
        kept: &KeptFields,
    ) -> Result<Self, DataError> {
        Self::open_parts(spec, tokenizer, (seed, kept, Use::Demonstration))
    }

    fn open_parts(
        spec: &TrainDataset,
        tokenizer: &TextTokenizer,
        (seed, kept, used): (u64, &KeptFields, Use),
    ) -> Result<Self, DataError> {
        let (sources, style) = (spec.parts(), style(spec));
        let open = |part: &TrainPart| train_part(part, &style, tokenizer, (seed, kept, used));
        let parts = sources.iter().map(open).collect::<Result<_, _>>()?;
        let weights: Vec<f64> = sources.iter().map(|part| part.weight).collect();
        let mixture = (!spec.mixture.is_empty()).then(|| Mixture::new(seed, &weights));
        Ok(Self { parts, mixture, style, tokenizer: tokenizer.clone() })
    }

    /// Opens a suite of evaluation data in file order: all rows that fit, or a random sample of
    /// `limit`.
    pub fn open_evaluation(
        suite: &Suite,
        tokenizer: &TextTokenizer,
        kept: &KeptFields,
    ) -> Result<Self, DataError> {
        let spec = &suite.data;
        let used = if spec.measures_loss() && spec.chosen.is_none() {
            Use::Demonstration
        } else {
            Use::Prompt
        };
        check_tokenizer(spec.measures_loss(), spec.tools_field(), tokenizer)?;
        let source = Source {
            label: label("evaluation", suite.name.as_deref()),
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
            .with_conversation(spec.conversation.as_ref(), used)
            .with_tools(spec.tools_field(), tokenizer.tools())
            .with_reward_fields(&spec.reward_fields)
            .with_category(spec.category.as_deref())
            .with_digest()
            .with_pair(spec.chosen.as_deref(), spec.rejected.as_deref())?,
            style: PromptStyle {
                format: spec.format,
                arguments: spec.chat_template_arguments.clone(),
            },
            limits: Limits {
                max_prompt_tokens: spec.max_prompt_tokens,
                max_tokens: spec.max_tokens,
                ..Limits::default()
            },
            rewards: &spec.rewards,
            sample: spec.limit.map(|limit| (limit as usize, spec.sample_seed.into())),
        };
        let style = source.style.clone();
        let part = source.open(tokenizer, None)?;
        categories::check(&part.rows, &part.path)?;
        Ok(Self { parts: vec![part], mixture: None, style, tokenizer: tokenizer.clone() })
    }
}

fn style(spec: &TrainDataset) -> PromptStyle {
    PromptStyle { format: spec.format, arguments: spec.chat_template_arguments.clone() }
}

fn label(dataset: &str, name: Option<&str>) -> String {
    name.map_or(dataset.to_owned(), |name| format!("{dataset}/{name}"))
}

fn train_part(
    part: &TrainPart,
    style: &PromptStyle,
    tokenizer: &TextTokenizer,
    (seed, kept, used): (u64, &KeptFields, Use),
) -> Result<Part, DataError> {
    let spec = &part.data;
    let learned = spec.completion.is_some() || used == Use::Demonstration;
    check_tokenizer(learned || spec.chosen.is_some(), spec.tools_field(), tokenizer)?;
    let source = Source {
        label: label("train", part.name.as_deref()),
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
        .with_conversation(spec.conversation.as_ref(), used)
        .with_tools(spec.tools_field(), tokenizer.tools())
        .with_reward_fields(&spec.reward_fields)
        .with_pass_rate(spec.pass_rate.as_ref().map(|filter| filter.field.as_str()))
        .with_pair(spec.chosen.as_deref(), spec.rejected.as_deref())?,
        style: style.clone(),
        limits: Limits {
            min_prompt_tokens: spec.min_prompt_tokens,
            max_prompt_tokens: spec.max_prompt_tokens,
            max_tokens: spec.max_tokens,
            pass_rate: spec.pass_rate.as_ref(),
        },
        rewards: &spec.rewards,
        sample: None,
    };
    source.open(tokenizer, Some(seed))
}

/// Given completions need an end-of-sequence token, and tools a chat template that describes them.
fn check_tokenizer(
    completes: bool,
    tools_field: Option<&str>,
    tokenizer: &TextTokenizer,
) -> Result<(), DataError> {
    if completes && tokenizer.eos_token_id().is_none() {
        return Err(DataError::NoEosToken);
    }
    let Some(field) = tools_field else { return Ok(()) };
    let needed = |source| DataError::Tools { field: field.to_owned(), source };
    tokenizer.check_tools().map_err(needed)
}

impl Source<'_> {
    fn open(self, tokenizer: &TextTokenizer, seed: Option<u64>) -> Result<Part, DataError> {
        let path = PathBuf::from(self.path);
        let SplitFiles { paths, rows: expected } = files::select(&path, self.selector)?;
        let mut reader = (0..).zip(RowReader::new(paths, ReadLimits::default())).peekable();
        let first = reader.peek().and_then(|(_, row)| row.as_ref().ok());
        let names = first.map(|(_, fields)| fields.keys().cloned().collect()).unwrap_or_default();
        let (mut rows, mut filtered, mut found) = (Vec::new(), Vec::new(), 0_u64);
        loop {
            let batch = self.batch(&mut reader)?;
            if batch.is_empty() {
                break;
            }
            found = found.saturating_add(batch.len() as u64);
            // Rows of a sample are counted once drawn.
            rows.extend(match self.sample {
                Some(_) => batch,
                None => self.fitting(batch, tokenizer, &mut filtered)?,
            });
        }
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(DataError::RowCount { path, found, expected });
        }
        if let Some((limit, seed)) = self.sample {
            rows = self.draw(rows, limit, seed, tokenizer, &mut filtered)?;
        }
        match (rows.is_empty(), filtered.first()) {
            (true, Some(first)) => {
                let (dropped, reason) = (filtered.len(), first.reason.clone());
                return Err(DataError::AllDropped { path, dropped, reason });
            }
            (true, None) => return Err(DataError::Empty { path }),
            (false, _) => {
                let (data, rows, dropped) = (&self.label, rows.len(), filtered.len());
                tracing::info!(data, path = self.path, rows, dropped, "opened the data");
            }
        }
        let order = RowOrder::new(seed, rows.len() as u64);
        let (label, rewards, unusable) = (self.label, self.rewards.into(), Vec::new());
        let part = Part { label, path, names, rows, filtered, unusable, seed, order, rewards };
        part.check_pairs()?;
        Ok(part)
    }

    /// The rows that pass the filters, with their numbers of tokens.
    fn fitting(
        &self,
        rows: Vec<Row>,
        tokenizer: &TextTokenizer,
        filtered: &mut Vec<FilteredRow>,
    ) -> Result<Vec<Row>, DataError> {
        let mut rows = count_tokens(rows, tokenizer, &self.style, ROW_DEADLINE)?;
        rows.retain(|row| {
            let Some(reason) = self.limits.reason(row) else { return true };
            filtered.push(FilteredRow { location: row.location.clone(), reason });
            false
        });
        Ok(rows)
    }

    /// The first `limit` rows that fit in a random order, in file order.
    fn draw(
        &self,
        rows: Vec<Row>,
        limit: usize,
        seed: u64,
        tokenizer: &TextTokenizer,
        filtered: &mut Vec<FilteredRow>,
    ) -> Result<Vec<Row>, DataError> {
        let order = RowOrder::new(Some(seed), rows.len() as u64);
        let mut places: Vec<u64> = (0..rows.len() as u64).collect();
        for place in &mut places {
            *place = order.row(*place);
        }
        let mut rows: Vec<Option<Row>> = rows.into_iter().map(Some).collect();
        let mut drawn = places.into_iter().filter_map(|at| rows.get_mut(at as usize)?.take());
        let mut fitting = Vec::new();
        while fitting.len() < limit {
            let missing = limit.saturating_sub(fitting.len());
            let batch: Vec<Row> = drawn.by_ref().take(missing.min(BATCH)).collect();
            if batch.is_empty() {
                break;
            }
            fitting.extend(self.fitting(batch, tokenizer, filtered)?);
        }
        fitting.sort_by_key(|row| row.number);
        Ok(fitting)
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
