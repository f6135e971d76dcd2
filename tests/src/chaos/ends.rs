//! What a run has made, to be compared with what the run made that nothing disturbed: the bits of
//! the weights, the numbers of every step, and every sample.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rljob_crds::names::{
    EVALUATIONS_FILE, EXPORT_COMPLETE_FILE, EXPORT_DIR, JOURNAL_FILE, METRICS_FILE,
};
use serde_json::Value;

use super::job::STEPS;
use crate::process::run;

/// Bound of the difference between an engine's log-probabilities and the learner's, in fp32: beyond
/// it the samples are of other weights.
const MISMATCH: f64 = 1e-3;
/// What depends on time, and on which attempt computed it.
const UNEQUAL: [&str; 6] =
    ["attempt", "seconds", "rolloutSeconds", "trainSeconds", "syncSeconds", "tokensPerSecond"];

/// Samples by step, and the versions that they were sampled with: rows of `step|versions|everything
/// else`.
const SAMPLES: &str = "import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute('''SELECT step, versions, position, sample_index, data_row, reward, finish_reason, sampling, hex(prompt_tokens),
    hex(completion_tokens), hex(sampler_logprobs) FROM samples WHERE step IS NOT NULL ORDER BY position, sample_index''')
for step, versions, *rest in rows: print(step, versions, rest, sep='|')";

/// What a run has made.
pub(super) struct Ends {
    weights: Vec<u8>,
    metrics: Vec<Value>,
    evaluations: Vec<Value>,
    /// By step. A pruned journal holds the newest.
    samples: BTreeMap<u64, Vec<String>>,
    /// Samples of another version than that of their step.
    strangers: Vec<String>,
}

impl Ends {
    pub(super) fn of(directory: &Path) -> Result<Self> {
        let export = directory.join(EXPORT_DIR);
        ensure!(
            export.join(EXPORT_COMPLETE_FILE).is_file(),
            "{} is not complete",
            export.display()
        );
        let weights =
            fs::read(export.join("model.safetensors")).context("the export has no weights")?;
        let text =
            run(Command::new("python3").args(["-c", SAMPLES]).arg(directory.join(JOURNAL_FILE)))?;
        let (mut samples, mut strangers) = (BTreeMap::<u64, Vec<String>>::new(), Vec::new());
        for row in text.lines() {
            let mut parts = row.splitn(3, '|');
            let mut part = || parts.next().unwrap_or_default();
            let (step, versions, sample) =
                (part().parse().with_context(|| format!("{row:?} is no sample"))?, part(), part());
            // Without staleness, step s is sampled with the weights of s - 1 steps.
            let wanted = format!("step-{}.", step - 1);
            let versions: Vec<Value> = serde_json::from_str(versions)?;
            if !versions.iter().all(|run| {
                run["version"].as_str().is_some_and(|version| version.starts_with(&wanted))
            }) {
                strangers.push(format!("a sample of step {step} has tokens of {versions:?}"));
            }
            samples.entry(step).or_default().push(sample.to_owned());
        }
        Ok(Self {
            weights,
            metrics: lines(&directory.join(METRICS_FILE))?,
            evaluations: lines(&directory.join(EVALUATIONS_FILE))?,
            samples,
            strangers,
        })
    }

    /// What is wrong with it by itself, a line each.
    fn faults(&self) -> Vec<String> {
        let mut found = self.strangers.clone();
        if self.metrics.len() != STEPS {
            found
                .push(format!("{METRICS_FILE} has {} lines for {STEPS} steps", self.metrics.len()));
        }
        let mismatch = |step: &Value| step["mismatchMax"].as_f64();
        let other = self
            .metrics
            .iter()
            .filter(|step| mismatch(step).is_none_or(|mismatch| mismatch > MISMATCH));
        found.extend(other.map(|step| {
            format!("the learner finds other log-probabilities than the engine: {step}")
        }));
        found
    }

    /// What must hold and does not, a line each. A run whose samples are random is compared with
    /// none.
    pub(super) fn differences(self, undisturbed: Option<&Self>) -> Vec<String> {
        let mut found = self.faults();
        let Some(undisturbed) = undisturbed else { return found };
        if self.weights != undisturbed.weights {
            found.push(
                "the final weights have other bits than those of the undisturbed run".to_owned(),
            );
        }
        for (file, seen, expected) in [
            (METRICS_FILE, &self.metrics, &undisturbed.metrics),
            (EVALUATIONS_FILE, &self.evaluations, &undisturbed.evaluations),
        ] {
            if let Some((seen, expected)) =
                seen.iter().zip(expected).find(|(seen, expected)| seen != expected)
            {
                found.push(format!("{file} differs: {seen} is not {expected}"));
            }
            if seen.len() != expected.len() {
                found.push(format!(
                    "{file} has {} lines, and {} in the undisturbed run",
                    seen.len(),
                    expected.len()
                ));
            }
        }
        let other = self
            .samples
            .iter()
            .filter(|(step, samples)| undisturbed.samples.get(step) != Some(samples))
            .map(|(step, _)| step);
        found.extend(other.map(|step| {
            format!("the batch of step {step} has other samples than in the undisturbed run")
        }));
        found
    }
}

fn lines(file: &Path) -> Result<Vec<Value>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line)?;
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| !UNEQUAL.contains(&name.as_str()));
        }
        Ok(value)
    };
    text.lines().map(line).collect()
}
