//! Types and labels of Prometheus metrics: those of a scrape, and those that a table of
//! docs/operations.md describes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::files::{self, workspace};
use crate::process::run_with_input;

const PAGE: &str = "docs/operations.md";

/// Type and names of labels, by name of the metric.
pub type MetricTypes = BTreeMap<String, (String, BTreeSet<String>)>;

/// Rows `| names with labels | type | meaning |` of the table whose first column has a heading.
pub fn documented(heading: &str) -> Result<MetricTypes> {
    let page = fs::read_to_string(workspace().join(PAGE))?;
    let head = format!("| {heading} | Type | Meaning |\n|---|---|---|\n");
    let (_, rest) = page.split_once(&head).with_context(|| format!("{PAGE} has no {head}"))?;
    let mut found = MetricTypes::new();
    for row in rest.lines().take_while(|line| line.starts_with('|')) {
        let mut cells = row.trim_matches('|').split(" | ").map(str::trim);
        let names = cells.next().with_context(|| format!("no metric in {row}"))?;
        let type_ = cells.next().with_context(|| format!("no type in {row}"))?;
        for code in names.split('`').skip(1).step_by(2) {
            let (name, labels) = code.split_once('{').unwrap_or((code, ""));
            let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
            let labels = labels.map(str::to_owned).collect();
            found.insert(name.to_owned(), (type_.to_owned(), labels));
        }
    }
    Ok(found)
}

/// Metrics in the text of a scrape. Those without samples have no labels.
pub fn scraped(text: &str) -> MetricTypes {
    let mut found = MetricTypes::new();
    for line in text.lines() {
        if let Some((name, type_)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            found.insert(name.to_owned(), (type_.to_owned(), BTreeSet::new()));
        } else if let Some((sample, labels)) = line.split_once('{') {
            // `name{a="x",b="y"} 1`
            let family = ["_bucket", "_sum", "_count"];
            let family = family.iter().find_map(|suffix| sample.strip_suffix(suffix));
            let known = family.filter(|name| found.contains_key(*name)).unwrap_or(sample);
            let Some((_, own)) = found.get_mut(known) else { continue };
            let labels = labels.split("\",").filter_map(|label| label.split_once("=\""));
            let names = labels.map(|(name, _)| name).filter(|name| *name != "le");
            own.extend(names.map(str::to_owned));
        }
    }
    found
}

/// `promtool check metrics`: names, units in them, and help texts of a scrape.
pub fn check(text: &str) -> Result<String> {
    let mut command = Command::new(files::prometheus("promtool")?);
    run_with_input(command.args(["check", "metrics"]), text)
}
