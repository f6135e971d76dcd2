//! JSONL files: `metrics.jsonl`, `evaluations.jsonl`, `samples.jsonl`, `evaluation-samples.jsonl`,
//! `evaluation-prompts.jsonl`, `traces.jsonl`. Whole lines, once per step, also across restarts.
//!
//! A write failure is only logged, since the journal has the same data, except traces and the
//! samples and results by prompt of evaluations. The files are written inside journal calls, which
//! cancellation does not interrupt; lines lost by a crash between journal and file are written at
//! the next start, except traces.
//!
//! The names of the files contain the process ([`Fence::file`]), so that a superseded coordinator
//! does not write to those of its successor. Readers use symbolic links to the current ones.

mod shown;
mod tail;
mod turns;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rljob_crds::names::{
    DROPPED_ROWS_FILE, EVALUATION_PROMPTS_FILE, EVALUATION_SAMPLES_FILE, EVALUATIONS_FILE,
    JSONL_FILES, METRICS_FILE, SAMPLES_FILE, TRACES_FILE,
};
use rljob_protocol::evaluation::PromptResult;
use rljob_protocol::status::{EvaluationMetrics, StepMetrics};
use rljob_protocol::trace::StepTrace;
use serde::Serialize;

use crate::data::Dataset;
use crate::persistence::fence::{self, Fence};
use crate::persistence::journal::{Journal, JournalError};
use shown::shown;

pub use turns::ShownTurn;

/// Size of `evaluation-prompts.jsonl` in bytes beyond which the next evaluation replaces it.
const MAX_PROMPT_RESULTS: u64 = 64 << 20;
/// Size of `traces.jsonl` in bytes beyond which the next step replaces it.
const MAX_TRACES: u64 = 64 << 20;

/// A JSONL file that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("failed to open or truncate {}", path.display())]
pub struct FileError {
    path: PathBuf,
    source: io::Error,
}

/// Writes `dropped-rows.jsonl`, whose lines depend only on the data and the spec.
///
/// # Errors
/// The file cannot be written.
pub fn write_dropped_rows<T: Serialize>(
    fence: &Fence,
    lines: impl Iterator<Item = T>,
) -> io::Result<()> {
    let path = fence.file(DROPPED_ROWS_FILE);
    let mut file = io::BufWriter::new(File::create(&path)?);
    for line in lines {
        serde_json::to_writer(&mut file, &line)?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    let link = fence.directory().join(DROPPED_ROWS_FILE);
    match path.file_name().and_then(|name| name.to_str()).filter(|_| path != link) {
        Some(name) => fence::relink(&link, name),
        None => Ok(()),
    }
}

/// Removes the lines of steps after `step` from the files of a stopped run.
///
/// # Errors
/// A file cannot be read or truncated.
pub fn cut_after(fence: &Fence, step: u32) -> Result<(), FileError> {
    for name in JSONL_FILES.into_iter().filter(|name| *name != DROPPED_ROWS_FILE) {
        let path = fence.file(name);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            file => file.and_then(|mut file| tail::cut_after(&mut file, step)),
        }
        .map_err(|source| FileError { path, source })?;
    }
    Ok(())
}

/// The files of a run. Clones are the same ones.
#[derive(Clone)]
pub struct Files {
    metrics: Arc<Lines>,
    evaluations: Arc<Lines>,
    samples: Arc<Lines>,
    evaluation_samples: Arc<Lines>,
    evaluation_prompts: Arc<Lines>,
    traces: Arc<Lines>,
}

/// One file, and the newest step in it.
struct Lines {
    path: PathBuf,
    /// Symbolic link to the file, for readers.
    link: PathBuf,
    /// Size in bytes beyond which earlier lines are removed.
    max_bytes: u64,
    open: Mutex<(File, Option<u32>)>,
}

impl Files {
    /// Opens the files of a claimed run directory and removes lines that a crash left incomplete.
    pub fn open(fence: &Fence) -> Result<Self, FileError> {
        let lines = |name: &str| Lines::open(fence, name).map(Arc::new);
        Ok(Self {
            metrics: lines(METRICS_FILE)?,
            evaluations: lines(EVALUATIONS_FILE)?,
            samples: lines(SAMPLES_FILE)?,
            evaluation_samples: lines(EVALUATION_SAMPLES_FILE)?,
            evaluation_prompts: Arc::new(Lines {
                max_bytes: MAX_PROMPT_RESULTS,
                ..Lines::open(fence, EVALUATION_PROMPTS_FILE)?
            }),
            traces: Arc::new(Lines { max_bytes: MAX_TRACES, ..Lines::open(fence, TRACES_FILE)? }),
        })
    }

    /// Appends a step's numbers.
    pub fn append_metrics(&self, metrics: &StepMetrics) {
        self.metrics.append(metrics.step, &[metrics]);
    }

    /// Appends what the processes did in a step.
    pub fn append_trace(&self, trace: &StepTrace) {
        self.traces.append(trace.step, &[trace]);
    }

    /// Path of the traces of steps, for a reader in this process.
    pub fn traces(&self) -> PathBuf {
        self.traces.path.clone()
    }

    /// Appends an evaluation's numbers.
    pub fn append_evaluation(&self, metrics: &EvaluationMetrics) {
        self.evaluations.append(metrics.step, &[metrics]);
    }

    /// Appends some of an evaluation's completions.
    pub fn append_evaluation_samples<T: Serialize>(&self, step: u32, samples: &[T]) {
        self.evaluation_samples.append(step, samples);
    }

    /// Appends an evaluation's results by prompt.
    pub fn append_evaluation_prompts(&self, step: u32, results: &[PromptResult]) {
        self.evaluation_prompts.append(step, results);
    }

    /// Appends a few rollouts of every fixed step that the file lacks. Steps whose samples are
    /// pruned stay out.
    pub fn append_samples(&self, journal: &Journal, data: &Dataset) -> Result<(), JournalError> {
        let newest = self.samples.newest().unwrap_or_default();
        for step in newest.saturating_add(1)..=journal.newest_batch()?.0 {
            match journal.samples(step) {
                Ok(samples) => self.samples.append(step, &shown(step, &samples, data)),
                Err(JournalError::Pruned { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends the numbers that a crash between journal and file left out, then links the files.
    pub fn catch_up(&self, journal: &Journal) -> Result<(), JournalError> {
        let newest = self.metrics.newest().unwrap_or_default();
        for step in newest.saturating_add(1)..=journal.last_step()? {
            if let Some(metrics) = journal.metrics(step)? {
                self.append_metrics(&metrics);
            }
        }
        let newest = self.evaluations.newest();
        for step in journal.evaluated_steps()?.into_iter().filter(|step| Some(*step) > newest) {
            if let Some(evaluation) = journal.evaluation(step)? {
                self.append_evaluation(&evaluation);
            }
        }
        let evaluations = [&self.evaluations, &self.evaluation_samples, &self.evaluation_prompts];
        [&self.metrics, &self.samples, &self.traces]
            .into_iter()
            .chain(evaluations)
            .for_each(|file| file.link());
        Ok(())
    }
}

impl Lines {
    fn open(fence: &Fence, name: &str) -> Result<Self, FileError> {
        let (path, link) = (fence.file(name), fence.directory().join(name));
        let opened = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
            let newest = tail::newest_step(&mut file)?;
            Ok((file, newest))
        };
        match opened() {
            Ok(open) => Ok(Self { path, link, max_bytes: u64::MAX, open: Mutex::new(open) }),
            Err(source) => Err(FileError { path, source }),
        }
    }

    /// Links the file for readers. A superseded coordinator may have restored its own link.
    fn link(&self) {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|_| self.path != self.link) else { return };
        if let Err(error) = fence::relink(&self.link, name) {
            tracing::warn!(%error, link = %self.link.display(), "failed to link a file");
        }
    }

    fn newest(&self) -> Option<u32> {
        self.open.lock().1
    }

    /// Appends a step's lines in one write, unless the step or a later one is there.
    fn append<T: Serialize>(&self, step: u32, lines: &[T]) {
        let mut open = self.open.lock();
        if lines.is_empty() || open.1.is_some_and(|newest| newest >= step) {
            return;
        }
        self.link();
        let written = lines
            .iter()
            .map(serde_json::to_string)
            .collect::<serde_json::Result<Vec<_>>>()
            .map_err(io::Error::from);
        let appended = written.and_then(|lines| {
            if open.0.metadata()?.len() > self.max_bytes {
                open.0.set_len(0)?;
            }
            open.0.write_all(format!("{}\n", lines.join("\n")).as_bytes())
        });
        match appended {
            Ok(()) => open.1 = Some(step),
            Err(error) => tracing::warn!(%error, file = %self.path.display(), "failed to append"),
        }
    }
}

#[cfg(test)]
mod tests;
