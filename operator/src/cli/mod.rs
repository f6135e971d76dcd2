//! The `rljob` command but for `run`: what needs no cluster.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rljob_crds::RLJob;

use crate::validate::parse_jobs;

mod render;

pub use render::{RenderArgs, render};

/// Checks job files; reports every problem of every file.
#[derive(clap::Args, Debug)]
pub struct ValidateArgs {
    /// Job file; may be given several times.
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Checks every file; gives a line for each job that can run.
///
/// # Errors
/// Every problem, a line each.
pub fn validate(arguments: &ValidateArgs) -> anyhow::Result<String> {
    let (mut valid, mut problems) = (Vec::new(), Vec::new());
    for file in &arguments.files {
        let text = read(file)?;
        match parse_jobs(&text) {
            Ok(jobs) => valid.extend(jobs.iter().map(|job| format!("{}: rljob {} is valid", file.display(), job.metadata.name.as_deref().unwrap_or_default()))),
            Err(invalid) => problems.extend(invalid.problems.iter().map(|problem| format!("{}: {problem}", file.display()))),
        }
    }
    if problems.is_empty() { Ok(valid.join("\n")) } else { Err(anyhow::anyhow!(problems.join("\n"))) }
}

/// The CRD as YAML.
///
/// # Errors
/// If it cannot be written as YAML.
pub fn crd() -> anyhow::Result<String> {
    Ok(serde_yaml::to_string(&rljob_crds::crd())?)
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

fn read_jobs(file: &Path) -> anyhow::Result<Vec<RLJob>> {
    let lines = |problems: &[crate::validate::Problem]| problems.iter().map(|problem| format!("{}: {problem}", file.display())).collect::<Vec<_>>().join("\n");
    parse_jobs(&read(file)?).map_err(|invalid| anyhow::anyhow!(lines(&invalid.problems)))
}
