//! `rljob pass-rates`: joins the pass rates that an evaluation of training rows has measured with
//! these rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rljob_crds::names::EVALUATION_PROMPTS_FILE;
use rljob_dashboard::records::Tail;
use rljob_protocol::evaluation::{PromptResult, row_digest};
use serde_json::{Map, Value};

use crate::local::inspect::find_one;

/// Longest row in bytes.
const MAX_ROW: u64 = 64 << 20;

/// Write the rows of a data set with the pass rates that a run has measured, for `passRate`.
///
/// The run has evaluated these rows (`rljob evaluate -f job.yaml --data FILE`, with `samples`). Its
/// newest evaluation counts: the pass rate of a row is the share of its samples that were correct.
/// Rows without one, since the evaluation has a `limit` or no sample got a reward, are omitted and
/// counted. Rows whose fields differ from those that were evaluated are an error.
#[derive(clap::Args, Debug)]
pub struct PassRatesArgs {
    /// Run directory, or a folder with one run (default: `runs`).
    #[arg(value_name = "DIR", default_value = "runs", hide_default_value = true)]
    pub target: PathBuf,
    /// JSONL file that was evaluated. Repeatable, in the order of the evaluation.
    #[arg(long, value_name = "FILE", required = true)]
    pub data: Vec<PathBuf>,
    /// File to write; it must not exist.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Field of the pass rate, which the rows must not have.
    #[arg(long, value_name = "NAME", default_value = "passRate")]
    pub field: String,
    /// Suite of the evaluation, if it has suites.
    #[arg(long, value_name = "NAME")]
    pub suite: Option<String>,
}

/// Writes the file; returns the line to print.
///
/// # Errors
/// The run has no results, or they are not of these rows.
pub fn pass_rates(arguments: &PassRatesArgs) -> anyhow::Result<String> {
    let directory = find_one(&arguments.target)?;
    let results = measured(&directory, arguments.suite.as_deref())?;
    let mut rows = Rows::default();
    for path in &arguments.data {
        let failed = || format!("failed to read {}", path.display());
        ensure!(
            path.extension().is_none_or(|extension| extension != "parquet"),
            "{} is not JSONL: convert it before its evaluation",
            path.display()
        );
        rows.read(path, &results, &arguments.field).with_context(failed)?;
    }
    if let Some((last, _)) = results.last_key_value().filter(|(last, _)| **last >= rows.count) {
        bail!(
            "the evaluation has row {last}, from 0, but the data {} rows: name the files that were \
             evaluated",
            rows.count
        );
    }
    let failed = || format!("failed to write {}", arguments.output.display());
    write(&arguments.output, &rows.lines).with_context(failed)?;
    let (written, count) = (rows.lines.len() as u64, rows.count);
    let omitted = match count.saturating_sub(written) {
        0 => String::new(),
        omitted => format!("; {omitted} rows that were not measured are omitted"),
    };
    let unchecked = match results.values().filter(|result| result.digest.is_none()).count() {
        0 => "",
        _ => "; their contents were not compared, since the evaluation is of an earlier release",
    };
    let output = arguments.output.display();
    Ok(format!("{written} rows with pass rates in {output}{omitted}{unchecked}"))
}

/// Result of a row.
struct Measured {
    rate: f64,
    /// Of the row that was evaluated.
    digest: Option<String>,
}

/// Results by row in the newest evaluation.
fn measured(directory: &Path, suite: Option<&str>) -> anyhow::Result<BTreeMap<u64, Measured>> {
    let path = directory.join(EVALUATION_PROMPTS_FILE);
    let (mut results, mut newest, mut suites) = (BTreeMap::new(), None, BTreeSet::new());
    let read = Tail::new(path.clone()).each(|result: PromptResult| {
        suites.insert(result.suite.clone());
        if result.suite.as_deref() != suite || newest.is_some_and(|newest| result.step < newest) {
            return Ok(());
        }
        if newest != Some(result.step) {
            (newest, results) = (Some(result.step), BTreeMap::new());
        }
        if result.samples > 0 {
            let rate = f64::from(result.correct) / f64::from(result.samples);
            results.insert(result.row, Measured { rate, digest: result.row_digest });
        }
        Ok(())
    });
    read.with_context(|| format!("failed to read {}", path.display()))?;
    if !results.is_empty() {
        return Ok(results);
    }
    let names: Vec<String> = suites.into_iter().flatten().collect();
    match (suite, names.is_empty()) {
        (None, false) => bail!("the evaluation has suites ({}): set --suite", names.join(", ")),
        (Some(suite), _) => bail!("{}: no sampled results of suite {suite}", path.display()),
        (None, true) => bail!(
            "{}: no sampled results: evaluate the rows with dataset.evaluation.samples",
            path.display()
        ),
    }
}

/// Rows of all files.
#[derive(Default)]
struct Rows {
    /// With and without a pass rate.
    count: u64,
    /// Those with one.
    lines: Vec<String>,
}

impl Rows {
    /// Reads a file as runs do: blank lines are not rows.
    fn read(
        &mut self,
        path: &Path,
        results: &BTreeMap<u64, Measured>,
        field: &str,
    ) -> anyhow::Result<()> {
        let mut file = BufReader::new(File::open(path)?);
        let (mut line, mut number) = (String::new(), 0_u64);
        loop {
            line.clear();
            let length = (&mut file).take(MAX_ROW).read_line(&mut line)?;
            if length == 0 {
                return Ok(());
            }
            number = number.saturating_add(1);
            ensure!((length as u64) < MAX_ROW, "line {number} is longer than {MAX_ROW} bytes");
            let row = line.trim_start_matches('\u{feff}').trim();
            if row.is_empty() {
                continue;
            }
            if let Some(result) = results.get(&self.count) {
                let with_rate = with_rate(row, field, result);
                self.lines.push(with_rate.with_context(|| format!("line {number}"))?);
            }
            self.count = self.count.saturating_add(1);
        }
    }
}

/// The row with a further field at its end. The others keep their text.
///
/// # Errors
/// It is not the row that was evaluated.
fn with_rate(row: &str, field: &str, result: &Measured) -> anyhow::Result<String> {
    let fields: Map<String, Value> = serde_json::from_str(row).context("not a JSON object")?;
    ensure!(
        result.digest.as_ref().is_none_or(|digest| *digest == row_digest(&fields)),
        "the row is not the one that was evaluated: its place or its fields have changed; name the \
         files that were evaluated, or evaluate these"
    );
    let rate = result.rate;
    ensure!(!fields.contains_key(field), "the row has the field {field}: set --field");
    let body = row.strip_suffix('}').unwrap_or(row).trim_end();
    let comma = if fields.is_empty() { "" } else { ", " };
    Ok(format!("{body}{comma}{}: {rate}}}", Value::from(field)))
}

fn write(path: &Path, lines: &[String]) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    for line in lines {
        writeln!(file, "{line}")?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::local::inspect::test_support::run_directory;

    /// A run with two evaluations of rows 0, 1 and 3, the digests of `rows`, and arguments for
    /// `data`.
    fn arguments(folder: &Path, rows: &[Map<String, Value>], data: &str) -> PassRatesArgs {
        let directory = run_directory(&folder.join("runs"));
        let digests: Vec<Value> = rows.iter().map(|row| json!(row_digest(row))).collect();
        let line = |step: u32, row: u64, correct: u32, samples: u32| {
            let digest = digests.get(row as usize).cloned().unwrap_or_default();
            json!({
                "step": step, "row": row, "prompt": format!("p{row}"), "samples": samples,
                "correct": correct, "rowDigest": digest,
            })
            .to_string()
        };
        let lines = [line(0, 0, 4, 4), line(5, 0, 1, 4), line(5, 1, 0, 0), line(5, 3, 2, 3)];
        fs::write(directory.path().join(EVALUATION_PROMPTS_FILE), lines.join("\n") + "\n").unwrap();
        let path = folder.join("train.jsonl");
        fs::write(&path, data).unwrap();
        PassRatesArgs {
            target: folder.join("runs"),
            data: vec![path],
            output: folder.join("out.jsonl"),
            field: "passRate".to_owned(),
            suite: None,
        }
    }

    #[test]
    fn rows_get_the_rates_of_the_newest_evaluation_and_keep_their_text() {
        let folder = tempfile::tempdir().unwrap();
        let data = "{\"q\": \"1+1\", \"a\": 2.0}\n\n{\"q\": \"b\"}\n{\"q\": \"c\"}\n  {}  ";
        // The order of keys is not compared.
        let lines = ["{\"a\":2.0,\"q\":\"1+1\"}", "{\"q\":\"b\"}", "{\"q\":\"c\"}", "{}"];
        let rows = lines.map(|line| serde_json::from_str(line).unwrap());
        let arguments = arguments(folder.path(), &rows, data);
        let line = pass_rates(&arguments).unwrap();
        let path = arguments.output.display();
        let expected =
            format!("2 rows with pass rates in {path}; 2 rows that were not measured are omitted");
        assert_eq!(line, expected);
        let written = fs::read_to_string(&arguments.output).unwrap();
        let expected = "{\"q\": \"1+1\", \"a\": 2.0, \"passRate\": 0.25}\n\
            {\"passRate\": 0.6666666666666666}\n";
        assert_eq!(written, expected);
        let again = format!("{:#}", pass_rates(&arguments).unwrap_err());
        assert!(again.starts_with(&format!("failed to write {path}: ")), "{again}");
    }

    #[test]
    fn data_that_was_not_evaluated_is_an_error() {
        for (data, suite, expected) in [
            (
                "{}\n{}\n",
                None,
                "the evaluation has row 3, from 0, but the data 2 rows: name the files that were \
                 evaluated",
            ),
            ("{\"passRate\": 1}\n", None, "line 1: the row has the field passRate: set --field"),
            ("[1]\n", None, "line 1: not a JSON object"),
            ("{}\n", Some("hard"), "no sampled results of suite hard"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut arguments = arguments(folder.path(), &[], data);
            arguments.suite = suite.map(str::to_owned);
            let error = format!("{:#}", pass_rates(&arguments).unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert!(!arguments.output.exists());
        }
    }

    #[test]
    fn rows_that_have_changed_since_the_evaluation_are_an_error() {
        let rows = ["{\"q\": \"a\"}", "{\"q\": \"b\"}", "{\"q\": \"c\"}", "{\"q\": \"d\"}"];
        let parsed = rows.map(|line| serde_json::from_str(line).unwrap());
        let swapped = [rows[3], rows[1], rows[2], rows[0]];
        for (data, line) in [(swapped, 1), ([rows[0], rows[1], rows[2], "{\"q\": \"e\"}"], 4)] {
            let folder = tempfile::tempdir().unwrap();
            let arguments = arguments(folder.path(), &parsed, &data.join("\n"));
            let error = format!("{:#}", pass_rates(&arguments).unwrap_err());
            let expected = format!("line {line}: the row is not the one that was evaluated");
            assert!(error.contains(&expected), "{error}");
            assert!(!arguments.output.exists());
        }
        // An evaluation of an earlier release has no digests.
        let folder = tempfile::tempdir().unwrap();
        let answer = pass_rates(&arguments(folder.path(), &[], &swapped.join("\n"))).unwrap();
        assert!(answer.ends_with("since the evaluation is of an earlier release"), "{answer}");
    }
}
