//! Results of a finished run and their comparison with a baseline run without faults: weights bit
//! by bit, metrics of every step, and all samples.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rljob_crds::dataflow::LearnerCall;
use rljob_crds::names::{
    EVALUATIONS_FILE, EXPORT_COMPLETE_FILE, EXPORT_DIR, JOURNAL_FILE, METRICS_FILE,
};
use serde_json::Value;

use super::testbed::STEPS;
use crate::process::run;

/// Bound on the difference between the engine's and the learner's log-probabilities in fp32. A
/// larger difference means that the sample came from other weights.
const MISMATCH: f64 = 1e-3;
/// Fields that depend on time or on the attempt.
const NONDETERMINISTIC_FIELDS: [&str; 12] = [
    "attempt",
    "seconds",
    "rolloutSeconds",
    "syncStageSeconds",
    "syncJoinSeconds",
    "syncPauseSeconds",
    "syncTransferSeconds",
    "syncResumeSeconds",
    "trainSeconds",
    "syncSeconds",
    "tokensPerSecond",
    "waitSeconds",
];

/// Prints samples as `step|versions|everything else`.
const SAMPLES: &str = "import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute('''
    SELECT step, json_extract(segments, '$[1].versions'), position, sample_index, data_row, reward,
    finish_reason, sampling, hex(tokens), hex(sampler_logprobs)
    FROM samples WHERE step IS NOT NULL ORDER BY position, sample_index''')
for step, versions, *rest in rows: print(step, versions, rest, sep='|')";

/// Results of a run.
pub(super) struct RunResults {
    weights: Vec<u8>,
    metrics: Vec<Value>,
    evaluations: Vec<Value>,
    /// By step. A pruned journal contains only the newest steps.
    samples: BTreeMap<u64, Vec<String>>,
    /// Samples whose weight version is not that of their step.
    wrong_versions: Vec<String>,
}

impl RunResults {
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
        let (mut samples, mut wrong_versions) = (BTreeMap::<u64, Vec<String>>::new(), Vec::new());
        for row in text.lines() {
            let mut columns = row.splitn(3, '|');
            let mut column = || columns.next().unwrap_or_default();
            let (step, versions, sample) = (
                column().parse().with_context(|| format!("{row:?} is not a sample"))?,
                column(),
                column(),
            );
            // Without staleness, step s is sampled with the weights after step s - 1.
            let wanted = format!("step-{}.", step - 1);
            let versions: Vec<Value> = serde_json::from_str(versions)?;
            if !versions.iter().all(|run| {
                run["version"].as_str().is_some_and(|version| version.starts_with(&wanted))
            }) {
                wrong_versions.push(format!("a sample of step {step} has tokens of {versions:?}"));
            }
            samples.entry(step).or_default().push(sample.to_owned());
        }
        Ok(Self {
            weights,
            metrics: lines(&directory.join(METRICS_FILE))?,
            evaluations: lines(&directory.join(EVALUATIONS_FILE))?,
            samples,
            wrong_versions,
        })
    }

    /// Violations that need no comparison, one line each.
    fn violations(&self) -> Vec<String> {
        let mut found = self.wrong_versions.clone();
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
            format!("the learner's log-probabilities differ from the engine's: {step}")
        }));
        found
    }

    /// All violations, one line each. Batches are compared if both journals have them. Without a
    /// baseline (engines that do not sample deterministically) the results are not compared.
    pub(super) fn differences(self, baseline: Option<&Self>) -> Vec<String> {
        let mut found = self.violations();
        let Some(baseline) = baseline else { return found };
        if self.weights != baseline.weights {
            found.push("the final weights differ from those of the baseline run".to_owned());
        }
        for (file, seen, expected) in [
            (METRICS_FILE, &self.metrics, &baseline.metrics),
            (EVALUATIONS_FILE, &self.evaluations, &baseline.evaluations),
        ] {
            if let Some((seen, expected)) =
                seen.iter().zip(expected).find(|(seen, expected)| seen != expected)
            {
                found.push(format!("{file} differs: {seen} instead of {expected}"));
            }
            if seen.len() != expected.len() {
                found.push(format!(
                    "{file} has {} lines, {} in the baseline run",
                    seen.len(),
                    expected.len()
                ));
            }
        }
        // A run with an additional checkpoint has batches that are pruned in the baseline run.
        let differs = |step: &u64, samples: &Vec<String>| {
            baseline.samples.get(step).is_some_and(|expected| expected != samples)
        };
        let other = self
            .samples
            .iter()
            .filter(|(step, samples)| differs(step, samples))
            .map(|(step, _)| step);
        found.extend(
            other.map(|step| {
                format!("the batch of step {step} differs from that of the baseline run")
            }),
        );
        found
    }
}

fn lines(file: &Path) -> Result<Vec<Value>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line)?;
        if let Some(fields) = value.as_object_mut() {
            let calls = LearnerCall::ALL.map(LearnerCall::seconds);
            let timed = NONDETERMINISTIC_FIELDS.into_iter().chain(calls);
            timed.for_each(|name| drop(fields.remove(name)));
        }
        Ok(value)
    };
    text.lines().map(line).collect()
}
