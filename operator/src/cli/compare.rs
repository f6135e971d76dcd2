//! `rljob compare`: evaluations of several local runs beside each other, with the settings that
//! differ and intervals of the differences.

mod run;
mod settings;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use rljob_dashboard::RunInfo;
use rljob_protocol::evaluation::PromptResult;
use rljob_protocol::metrics::EvaluationMetrics;
use serde::Serialize;

use run::{EvaluatedRun, read};
use settings::{Setting, differing, differing_contents, settings_table};

use super::status::Output;
use super::table::{table, table_without};
use crate::local::comparison::{self, Difference};
use crate::local::inspect::{self, Run};
use crate::local::lines::with_error;
use crate::local::{report_file, results};

/// Most runs of a comparison; the pairs grow with their square.
const MAX_RUNS: usize = 16;
/// Warning of a pair whose evaluations have other rewards.
const OTHER_REWARDS: &str = "the evaluations have different rewards or correctReward: `sampled`, \
    `greedy`, pass@k and maj@k are not comparable";
/// Cell without a value.
const NONE: &str = "-";

/// Compare evaluations of runs.
///
/// Shows the first and the last evaluation of each run with standard errors, the settings that
/// differ, results by category, and for each pair of runs the differences of their last evaluations
/// over the prompts that both evaluated, with 95 % intervals of the paired bootstrap.
#[derive(clap::Args, Debug)]
pub struct CompareArgs {
    /// Run directories, or folders of run directories.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Seed of the resamples.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// File for the page of the runs, with their curves in the same figures, samples and answers;
    /// an existing one is replaced.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// What is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Comparison {
    runs: Vec<EvaluatedRun>,
    /// Settings that differ.
    settings: Vec<Setting>,
    differences: Vec<Pair>,
}

/// Differences of the last evaluations of two runs, of one suite if they have suites.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pair {
    #[serde(skip_serializing_if = "Option::is_none")]
    suite: Option<String>,
    base: String,
    other: String,
    seed: u64,
    /// What makes the differences misleading.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
    /// `other` − `base`.
    metrics: Vec<Difference>,
}

/// Compares runs and writes their page; returns the text to print.
///
/// # Errors
/// As for [`compare`].
pub fn compare_all(runs: Vec<PathBuf>, report: PathBuf) -> anyhow::Result<String> {
    let path = report.display().to_string();
    let (output, seed) = (Output::Text, 0);
    let text = compare(&CompareArgs { runs, output, seed, report: Some(report) })?;
    Ok(format!("{text}\n\nreport: {path}"))
}

/// Compares the runs; returns the text to print.
///
/// # Errors
/// A run cannot be read, there are too many, or the page cannot be written.
pub fn compare(arguments: &CompareArgs) -> anyhow::Result<String> {
    let mut directories = BTreeSet::new();
    let mut runs = Vec::new();
    for path in &arguments.runs {
        for directory in inspect::find(path)? {
            if directories.insert(directory.canonicalize().unwrap_or_else(|_| directory.clone())) {
                runs.push(read(&directory)?);
            }
        }
    }
    let count = runs.len();
    ensure!(
        count <= MAX_RUNS,
        "found {count} runs; at most {MAX_RUNS} are compared: pass the directories of those to \
         compare, for example {}",
        runs.first().map_or_else(String::new, |run| run.directory.display().to_string())
    );
    name_by_directory(&mut runs);
    if let Some(path) = &arguments.report {
        write_report(&runs, path)?;
    }
    let specs: Vec<_> = runs.iter().map(|run| &run.spec).collect();
    let contents: Vec<_> = runs.iter().map(|run| &run.contents).collect();
    let mut settings = differing(&specs);
    settings.extend(differing_contents(&contents));
    let differences = pairs(&runs, arguments.seed);
    let comparison = Comparison { runs, settings, differences };
    Ok(match arguments.output {
        Output::Text => text(&comparison),
        Output::Json => serde_json::to_string_pretty(&comparison)?,
        Output::Yaml => serde_yaml::to_string(&comparison)?,
    })
}

/// Writes the page of the runs.
fn write_report(runs: &[EvaluatedRun], path: &Path) -> anyhow::Result<()> {
    let info = |own: &EvaluatedRun| {
        let info = Run::read(&own.directory)?.info()?;
        anyhow::Ok((own.directory.clone(), RunInfo { name: own.name.clone(), ..info }))
    };
    report_file::write_all(&runs.iter().map(info).collect::<anyhow::Result<Vec<_>>>()?, path)
}

/// Replaces names that several runs have.
fn name_by_directory(runs: &mut [EvaluatedRun]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for run in runs {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = run.directory.display().to_string();
        }
    }
}

/// All pairs of runs that evaluated common prompts.
fn pairs(runs: &[EvaluatedRun], seed: u64) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (index, other) in runs.iter().enumerate() {
        let suites: BTreeSet<_> =
            other.results.iter().map(|result| result.suite.as_deref()).collect();
        for (base, suite) in
            runs.iter().take(index).flat_map(|base| suites.iter().map(move |suite| (base, *suite)))
        {
            let (before, after) = (of_suite(base, suite), of_suite(other, suite));
            let metrics = comparison::differences(&before, &after, seed);
            if !metrics.is_empty() {
                let warning =
                    (base.scoring(suite) != other.scoring(suite)).then_some(OTHER_REWARDS);
                let suite = suite.map(str::to_owned);
                let (base, other) = (base.name.clone(), other.name.clone());
                pairs.push(Pair { suite, base, other, seed, warning, metrics });
            }
        }
    }
    pairs
}

fn of_suite(run: &EvaluatedRun, suite: Option<&str>) -> Vec<PromptResult> {
    run.results.iter().filter(|result| result.suite.as_deref() == suite).cloned().collect()
}

fn text(comparison: &Comparison) -> String {
    let mut tables = vec![runs_table(&comparison.runs)];
    let names: Vec<&str> = comparison.runs.iter().map(|run| run.name.as_str()).collect();
    tables.extend(settings_table(&comparison.settings, &names, NONE));
    tables.extend(changes(&comparison.runs));
    tables.extend(categories_table(&comparison.runs));
    tables.extend(differences_table(comparison));
    tables.extend(warnings(&comparison.differences));
    tables.join("\n\n")
}

/// Lines about changes that starts of the runs accepted: earlier steps had other settings.
fn changes(runs: &[EvaluatedRun]) -> Option<String> {
    let of_run = |run: &EvaluatedRun| -> Vec<String> {
        run.changes.iter().map(|own| results::changes(&run.name, own)).collect()
    };
    let lines: Vec<String> = runs.iter().flat_map(of_run).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// One row for each evaluation that is shown.
fn runs_table(runs: &[EvaluatedRun]) -> String {
    let head = [
        "RUN", "STATUS", "STEP", "SUITE", "PROMPTS", "SAMPLED", "GREEDY", "PASS@1", "K", "PASS@K",
        "MAJ@K", "LOSS", "TOKENS/S",
    ];
    let mut rows = Vec::new();
    for run in runs {
        let last = run.last.iter().flat_map(EvaluationMetrics::by_suite);
        if run.last.is_none() {
            rows.push(row(run, None, None));
        }
        for (suite, last) in last {
            let mut first = run.first.iter().flat_map(EvaluationMetrics::by_suite);
            let first = first.find(|(name, own)| *name == suite && own.step != last.step);
            rows.extend(first.map(|(_, first)| row(run, suite, Some(first))));
            rows.push(row(run, suite, Some(last)));
        }
    }
    table_without(head, &rows, NONE)
}

fn row(
    run: &EvaluatedRun,
    suite: Option<&str>,
    evaluation: Option<&EvaluationMetrics>,
) -> [String; 13] {
    let none = || NONE.to_owned();
    let number = |value: Option<u32>| value.map_or_else(none, |value| value.to_string());
    let own = evaluation.cloned().unwrap_or_default();
    let pass = |k: &u32| cell(own.pass_at.get(k), own.pass_at_standard_error.get(k));
    let majority = |k: &u32| cell(own.majority_at.get(k), own.majority_at_standard_error.get(k));
    let largest = Some(own.samples).filter(|k| *k > 1);
    [
        run.name.clone(),
        run.status.to_owned(),
        evaluation.map_or(run.step, |own| own.step).to_string(),
        suite.map_or_else(none, str::to_owned),
        number(evaluation.map(|own| own.prompts)),
        cell(own.sampled.as_ref(), own.sampled_standard_error.as_ref()),
        cell(own.greedy.as_ref(), own.greedy_standard_error.as_ref()),
        pass(&1),
        number(largest),
        largest.as_ref().map_or_else(none, pass),
        largest.as_ref().map_or_else(none, majority),
        own.loss.map_or_else(none, |loss| format!("{loss:.4}")),
        run.tokens_per_second.map_or_else(none, |speed| format!("{speed:.0}")),
    ]
}

fn cell(mean: Option<&f64>, standard_error: Option<&f64>) -> String {
    mean.map_or_else(|| NONE.to_owned(), |mean| with_error(*mean, standard_error.copied()))
}

/// Results of the last evaluations by category.
fn categories_table(runs: &[EvaluatedRun]) -> Option<String> {
    let mut rows = Vec::new();
    for run in runs {
        let suites = run.last.iter().flat_map(EvaluationMetrics::by_suite);
        let categories = suites.flat_map(|(suite, own)| {
            own.categories.iter().map(move |(category, own)| match suite {
                Some(suite) => (format!("{suite}/{category}"), own),
                None => (category.clone(), own),
            })
        });
        for (category, own) in categories {
            rows.push([
                category,
                run.name.clone(),
                own.prompts.to_string(),
                cell(own.sampled.as_ref(), own.sampled_standard_error.as_ref()),
                cell(own.greedy.as_ref(), own.greedy_standard_error.as_ref()),
            ]);
        }
    }
    rows.sort_by(|one, other| one.first().cmp(&other.first()));
    (!rows.is_empty()).then(|| table(["CATEGORY", "RUN", "PROMPTS", "SAMPLED", "GREEDY"], &rows))
}

/// One row for each metric of each pair; a sentence if there is no pair.
fn differences_table(comparison: &Comparison) -> Option<String> {
    if comparison.runs.len() < 2 {
        return None;
    }
    let rows: Vec<_> = comparison.differences.iter().flat_map(pair_rows).collect();
    let head = ["DIFFERENCE", "SUITE", "METRIC", "PROMPTS", "MEAN", "95% INTERVAL"];
    Some(if rows.is_empty() {
        "no differences: no two runs have sampled or greedy results of two or more common prompts"
            .to_owned()
    } else {
        table_without(head, &rows, NONE)
    })
}

/// One line for each pair with a warning.
fn warnings(pairs: &[Pair]) -> Option<String> {
    let line = |pair: &Pair| {
        let suite = pair.suite.as_ref().map_or_else(String::new, |suite| format!(" of {suite}"));
        let warning = pair.warning?;
        Some(format!("warning: {} - {}{suite}: {warning}", pair.other, pair.base))
    };
    let lines: Vec<String> = pairs.iter().filter_map(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn pair_rows(pair: &Pair) -> impl Iterator<Item = [String; 6]> {
    pair.metrics.iter().map(|difference| {
        let interval = &difference.interval;
        [
            format!("{} - {}", pair.other, pair.base),
            pair.suite.clone().unwrap_or_else(|| NONE.to_owned()),
            difference.metric.clone(),
            interval.prompts.to_string(),
            format!("{:+.3}", interval.mean),
            format!("{:+.3} to {:+.3}", interval.low, interval.high),
        ]
    })
}

#[cfg(test)]
mod tests;
