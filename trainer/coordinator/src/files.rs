//! The files that people read: `metrics.jsonl`, `evaluations.jsonl`, `samples.jsonl`, `evaluation-samples.jsonl`. Whole lines, once per step, also over restarts.
//!
//! A failure to write them is logged and stops nothing: the journal holds the same.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rljob_crds::names::{EVALUATION_SAMPLES_FILE, EVALUATIONS_FILE, METRICS_FILE, SAMPLES_FILE};
use rljob_protocol::status::{EvaluationMetrics, StepMetrics};
use serde::{Deserialize, Serialize};

use crate::data::Dataset;
use crate::journal::Sample;
use crate::store::Store;

/// Rollouts shown of each step: of so many prompts, the first sample.
const SAMPLES_SHOWN: usize = 4;

/// A JSONL file that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("failed to open {}", path.display())]
pub struct FileError {
    path: PathBuf,
    source: std::io::Error,
}

/// The files of a run.
pub struct Files {
    metrics: Arc<Lines>,
    evaluations: Arc<Lines>,
    samples: Arc<Lines>,
    evaluation_samples: Arc<Lines>,
}

/// One file, and the newest step in it.
struct Lines {
    path: PathBuf,
    open: Mutex<(File, Option<u32>)>,
}

#[derive(Deserialize)]
struct Step {
    step: u32,
}

/// A rollout to read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    step: u32,
    position: u64,
    prompt: &'a str,
    answer: Option<String>,
    completion: &'a str,
    reward: f64,
    finish_reason: &'a str,
    tokens: usize,
}

impl Files {
    /// Opens the files of a run directory and cuts off lines that a crash left torn.
    pub fn open(run_directory: &Path) -> Result<Self, FileError> {
        let lines = |name: &str| Lines::open(run_directory.join(name)).map(Arc::new);
        Ok(Self {
            metrics: lines(METRICS_FILE)?,
            evaluations: lines(EVALUATIONS_FILE)?,
            samples: lines(SAMPLES_FILE)?,
            evaluation_samples: lines(EVALUATION_SAMPLES_FILE)?,
        })
    }

    /// Appends a step's numbers.
    pub async fn append_metrics(&self, metrics: &StepMetrics) {
        append(&self.metrics, metrics.step, vec![serde_json::to_string(metrics)]).await;
    }

    /// Appends an evaluation's numbers.
    pub async fn append_evaluation(&self, metrics: &EvaluationMetrics) {
        append(&self.evaluations, metrics.step, vec![serde_json::to_string(metrics)]).await;
    }

    /// Appends some of an evaluation's completions.
    pub async fn append_evaluation_samples<T: Serialize>(&self, step: u32, samples: &[T]) {
        append(&self.evaluation_samples, step, samples.iter().map(serde_json::to_string).collect()).await;
    }

    /// Appends a few of a step's rollouts.
    pub async fn append_samples(&self, store: &Store, data: &Dataset, step: u32) {
        match store.call(move |journal| journal.samples(step)).await {
            Ok(samples) => append(&self.samples, step, shown(step, &samples, data)).await,
            Err(error) => tracing::warn!(error = %crate::error_line(&error), "failed to read rollouts to show"),
        }
    }

    /// Appends what a crash between journal and file left out.
    pub async fn catch_up(&self, store: &Store) {
        let (metrics, evaluations) = (self.metrics.newest(), self.evaluations.newest());
        let missing = store.call(move |journal| {
            let steps = metrics.map_or(1, |step| step + 1)..=journal.last_step()?;
            let missing_metrics = steps.filter_map(|step| journal.metrics(step).transpose()).collect::<Result<Vec<_>, _>>()?;
            let newest = journal.last_evaluation()?.filter(|newest| evaluations.is_none_or(|step| newest.step > step));
            Ok((missing_metrics, newest))
        });
        match missing.await {
            Ok((metrics, evaluation)) => {
                for metrics in &metrics {
                    self.append_metrics(metrics).await;
                }
                if let Some(evaluation) = evaluation {
                    self.append_evaluation(&evaluation).await;
                }
            }
            Err(error) => tracing::warn!(error = %crate::error_line(&error), "failed to read what the files lack"),
        }
    }
}

fn shown(step: u32, samples: &[Sample], data: &Dataset) -> Vec<serde_json::Result<String>> {
    let show = |sample: &Sample| {
        serde_json::to_string(&Shown {
            step,
            position: sample.position,
            prompt: &sample.prompt_text,
            answer: data.prompt(sample.position).ok().and_then(|prompt| prompt.answer),
            completion: &sample.completion_text,
            reward: sample.reward,
            finish_reason: &sample.finish_reason,
            tokens: sample.completion_tokens.len(),
        })
    };
    samples.iter().filter(|sample| sample.index == 0).take(SAMPLES_SHOWN).map(show).collect()
}

async fn append(file: &Arc<Lines>, step: u32, lines: Vec<serde_json::Result<String>>) {
    let file = Arc::clone(file);
    let path = file.path.clone();
    let written = tokio::task::spawn_blocking(move || {
        let lines = lines.into_iter().collect::<Result<Vec<_>, _>>()?;
        file.append(step, &lines)
    });
    if let Ok(Err(error)) = written.await {
        tracing::warn!(%error, file = %path.display(), "failed to append");
    }
}

impl Lines {
    fn open(path: PathBuf) -> Result<Self, FileError> {
        let opened = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::End(0))?;
            let steps = text[..whole].split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Step>(line).ok());
            let newest = steps.map(|line| line.step).max();
            Ok((file, newest))
        };
        match opened() {
            Ok(open) => Ok(Self { path, open: Mutex::new(open) }),
            Err(source) => Err(FileError { path, source }),
        }
    }

    fn newest(&self) -> Option<u32> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Appends a step's lines in one write, unless the step or a later one is there.
    fn append(&self, step: u32, lines: &[String]) -> std::io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() || open.1.is_some_and(|newest| newest >= step) {
            return Ok(());
        }
        open.0.write_all(format!("{}\n", lines.join("\n")).as_bytes())?;
        open.1 = Some(step);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::EvaluationMetrics;

    use super::{EVALUATIONS_FILE, Files};

    #[tokio::test]
    async fn a_step_is_written_once_and_a_torn_line_is_cut_off() {
        let run = tempfile::tempdir().unwrap();
        let evaluation = |step| EvaluationMetrics { step, ..EvaluationMetrics::default() };
        let files = Files::open(run.path()).unwrap();
        files.append_evaluation(&evaluation(0)).await;
        files.append_evaluation(&evaluation(0)).await;
        drop(files);
        let path = run.path().join(EVALUATIONS_FILE);
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}{{\"step\":5,")).unwrap();
        let files = Files::open(run.path()).unwrap();
        files.append_evaluation(&evaluation(0)).await;
        files.append_evaluation(&evaluation(5)).await;
        let steps: Vec<u32> =
            std::fs::read_to_string(&path).unwrap().lines().map(|line| serde_json::from_str::<EvaluationMetrics>(line).unwrap().step).collect();
        assert_eq!(steps, [0, 5]);
    }
}
