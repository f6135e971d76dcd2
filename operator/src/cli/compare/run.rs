//! Evaluations of a local run, from its files.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rljob_crds::RLJobSpec;
use rljob_crds::data::Suite;
use rljob_crds::names::{EVALUATION_PROMPTS_FILE, EVALUATIONS_FILE, METRICS_FILE};
use rljob_crds::reward::RewardSpec;
use rljob_dashboard::AcceptedChanges;
use rljob_dashboard::records::Tail;
use rljob_protocol::evaluation::PromptResult;
use rljob_protocol::metrics::{self, EvaluationMetrics, StepMetrics};
use serde::Serialize;
use serde_json::{Value, json};

use crate::local::inspect::{self, Run};

/// Most results by prompt of one evaluation that are read.
const MAX_PROMPTS: usize = 1 << 21;

/// A run with its evaluations.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EvaluatedRun {
    /// `namespace/name`, or the directory if several runs have this name.
    pub(super) name: String,
    pub(super) directory: PathBuf,
    pub(super) status: &'static str,
    /// Completed steps.
    pub(super) step: u32,
    /// Tokens of all steps divided by their time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens_per_second: Option<f64>,
    /// First evaluation, of each suite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first: Option<EvaluationMetrics>,
    /// Last evaluation, of each suite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<EvaluationMetrics>,
    /// Changes of the spec and of programs that later starts accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) changes: Vec<AcceptedChanges>,
    #[serde(skip)]
    pub(super) spec: Value,
    /// SHA-256 of programs, functions and other inputs, by their fields.
    #[serde(skip)]
    pub(super) contents: BTreeMap<String, String>,
    /// What rewards of evaluations are, by suite.
    #[serde(skip)]
    scoring: Vec<(Option<String>, Value)>,
    /// Results by prompt of the last evaluations.
    #[serde(skip)]
    pub(super) results: Vec<PromptResult>,
}

impl EvaluatedRun {
    /// What the rewards of a suite are.
    pub(super) fn scoring(&self, suite: Option<&str>) -> Option<&Value> {
        let mut own = self.scoring.iter().filter(|(name, _)| name.as_deref() == suite);
        own.next().map(|(_, scoring)| scoring)
    }
}

/// Reads a run directory.
pub(super) fn read(directory: &Path) -> anyhow::Result<EvaluatedRun> {
    let run = Run::read(directory)?;
    let failed = || format!("failed to read the run in {}", directory.display());
    let (mut tokens, mut seconds) = (0.0, 0.0);
    Tail::new(directory.join(METRICS_FILE))
        .each(|step: StepMetrics| {
            let speed = step.scalars.get_or_zero(metrics::TOKENS_PER_SECOND);
            if speed > 0.0 {
                tokens += step.scalars.get_or_zero(metrics::TOKENS);
                seconds += step.scalars.get_or_zero(metrics::TOKENS) / speed;
            }
            Ok(())
        })
        .with_context(failed)?;
    let (mut first, mut last) = (None::<EvaluationMetrics>, None::<EvaluationMetrics>);
    Tail::new(directory.join(EVALUATIONS_FILE))
        .each(|evaluation: EvaluationMetrics| {
            first = Some(match first.take() {
                Some(first) => EvaluationMetrics::after(first, Some(&evaluation)),
                None => evaluation.clone(),
            });
            last = Some(evaluation.after(last.as_ref()));
            Ok(())
        })
        .with_context(failed)?;
    let results = match &last {
        Some(last) => results(directory, last).with_context(failed)?,
        None => Vec::new(),
    };
    let contents = inspect::contents(directory)?;
    Ok(EvaluatedRun {
        name: format!("{}/{}", run.config.namespace, run.config.name),
        directory: directory.to_owned(),
        status: run.status(),
        step: run.metrics.as_ref().map_or(0, |metrics| metrics.step),
        tokens_per_second: (seconds > 0.0).then(|| tokens / seconds),
        first,
        last,
        changes: run.state.changes.clone(),
        spec: serde_json::to_value(&run.config.spec).with_context(failed)?,
        scoring: scoring(&run.config.spec, &contents),
        contents,
        results,
    })
}

/// The rewards that score the completions of each suite, without their names, the contents of their
/// functions and programs, and the smallest sum of a correct completion.
fn scoring(spec: &RLJobSpec, contents: &BTreeMap<String, String>) -> Vec<(Option<String>, Value)> {
    let of_reward = |index: usize| -> Vec<&String> {
        let field = format!("spec.rewards[{index}].");
        let own = contents.iter().filter(|(name, _)| name.starts_with(&field));
        own.map(|(_, sha256)| sha256).collect()
    };
    let of_suite = |suite: Suite| {
        let named = &suite.data.rewards;
        let rewards: Vec<(RewardSpec, Vec<&String>)> = spec
            .rewards
            .iter()
            .enumerate()
            .filter(|(_, reward)| reward.weight != 0.0)
            .filter(|(_, reward)| named.is_empty() || named.contains(&reward.name))
            .map(|(index, reward)| {
                (RewardSpec { name: String::new(), ..reward.clone() }, of_reward(index))
            })
            .collect();
        let correct = suite.data.correct_reward;
        (suite.name, json!({"rewards": rewards, "correctReward": correct}))
    };
    spec.dataset.suites().into_iter().map(of_suite).collect()
}

/// Results by prompt of the last evaluation of each suite.
fn results(directory: &Path, last: &EvaluationMetrics) -> io::Result<Vec<PromptResult>> {
    let steps: BTreeMap<Option<&str>, u32> =
        last.by_suite().into_iter().map(|(suite, own)| (suite, own.step)).collect();
    let mut results = Vec::new();
    Tail::new(directory.join(EVALUATION_PROMPTS_FILE)).each(|result: PromptResult| {
        if steps.get(&result.suite.as_deref()) == Some(&result.step) {
            results.push(result);
        }
        if results.len() > MAX_PROMPTS {
            let message = format!(
                "{EVALUATION_PROMPTS_FILE} has more than {MAX_PROMPTS} lines of an evaluation"
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(())
    })?;
    Ok(results)
}
