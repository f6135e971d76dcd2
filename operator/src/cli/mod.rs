//! Subcommands of `rljob` except `run`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use kube::ResourceExt;
use rljob_crds::RLJob;

use crate::local;
use crate::local::set::Set;
use crate::terminal::printable;
use crate::validate::{Problem, cluster_warnings, job_text, local_warnings, warnings};

mod change;
mod checkpoints;
mod compare;
mod completion;
mod connection;
mod dashboard;
mod data;
mod events;
mod forward;
mod init;
mod job_check;
mod job_view;
mod log_lines;
mod logs;
mod memory_plan;
mod model_check;
mod pass_rates;
mod plan;
mod plugin;
mod pod_logs;
pub mod program;
mod render;
mod report;
mod reward_check;
mod rows;
mod status;
mod table;
mod top;
mod trace;
mod tree;
mod waiting;
mod with_parent;

pub use change::{ResumeArgs, ScaleArgs, SuspendArgs, resume, scale, suspend};
pub use checkpoints::{CheckpointsArgs, checkpoints};
pub use compare::{CompareArgs, compare, compare_all};
pub use completion::{CompleteArgs, CompletionArgs, complete, completion};
pub use dashboard::{DashboardArgs, dashboard};
pub use events::{EventsArgs, events};
pub use init::{InitArgs, init};
pub use logs::{LogsArgs, logs};
pub use pass_rates::{PassRatesArgs, pass_rates};
pub use render::{RenderArgs, render};
pub use report::{ReportArgs, report};
pub use status::{StatusArgs, status};
pub use top::{TopArgs, top};
pub use trace::{TraceArgs, trace};
pub use with_parent::{WithParentArgs, with_parent};

/// Checks job files and reports all problems.
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("machine").args(["local", "gpu_memory"]).multiple(true)))]
pub struct ValidateArgs {
    /// Job file, or `-` for standard input. Repeatable.
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Read the datasets as a run would: print their numbers of rows, and the first rows that no
    /// reward can compare. Model and data must be local files.
    #[arg(long)]
    pub data: bool,
    /// Plan the memory of learners on GPUs of this many GiB, from `config.json` in model.path:
    /// print its parts, warn if micro-batches may not fit, and fail if the model does not. With
    /// `--share-gpus`, of the part that engines leave.
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub gpu_memory: Option<u32>,
    /// Also check what `rljob run` needs on this machine: files, GPUs, the engine command, the run
    /// directories in RUNS, models: tokenizer, names, shapes and types of weights, and rewards:
    /// functions of `python` rewards are imported in the sandbox, and the reference answers of the
    /// first rows are scored.
    #[arg(long)]
    pub local: bool,
    /// As for `rljob run`: sets a field before the check. Repeatable.
    #[arg(long, value_name = "[NAME:]PATH=VALUE")]
    pub set: Vec<String>,
    /// With `--local`: as for `rljob run`.
    #[arg(long, value_name = "RUNS", default_value = "runs", requires = "local")]
    pub dir: PathBuf,
    /// With `--local`: as for `rljob run`.
    #[arg(long, requires = "local")]
    pub use_bucket: bool,
    /// With `--local` or `--gpu-memory`: as for `rljob run`.
    #[arg(
        long,
        value_name = "PERCENT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "50",
        value_parser = clap::value_parser!(u8).range(10..=90),
        requires = "machine"
    )]
    pub share_gpus: Option<u8>,
    /// With `--local`: as for `rljob run`.
    #[arg(long, value_name = "COMMAND", requires = "local")]
    pub engine_command: Option<String>,
}

impl ValidateArgs {
    /// Checks a file as `rljob run` does before it starts a process.
    fn check_local(&self, file: &Path) -> anyhow::Result<()> {
        anyhow::ensure!(file != Path::new("-"), "--local needs a file: relative paths start there");
        local::check(&local::RunArgs {
            file: file.to_owned(),
            set: self.set.clone(),
            dir: self.dir.clone(),
            use_bucket: self.use_bucket,
            accept_changes: false,
            compare: false,
            engine_command: self.engine_command.clone(),
            share_gpus: self.share_gpus,
            evaluation: None,
        })
    }

    /// Makes the checks of a valid file that the flags ask for; returns the lines to print.
    fn check_inputs(&self, file: &Path, sets: &[Set], problems: &mut Vec<String>) -> Vec<String> {
        let nothing = |()| Vec::new();
        let checks = [
            self.local.then(|| self.check_local(file).map(nothing)),
            self.local.then(|| model_check::check(file, sets, &self.dir).map(nothing)),
            self.local.then(|| reward_check::check(file, sets, &self.dir)),
            self.data.then(|| data::check(file, sets, self.local.then_some(self.dir.as_path()))),
            self.gpu_memory.map(|gib| memory_plan::plan(file, sets, gib, self.share_gpus)),
        ];
        let mut lines = Vec::new();
        for found in checks.into_iter().flatten() {
            match found {
                Ok(found) => lines.extend(found),
                Err(error) => {
                    // `--local` and `--data` both read the first rows.
                    let error = format!("{error:#}");
                    if !problems.contains(&error) {
                        problems.push(error);
                    }
                }
            }
        }
        lines
    }

    /// Warnings about the jobs of a file by their models on this machine.
    fn model_warnings(&self, file: &Path, sets: &[Set]) -> Vec<String> {
        // A file without valid jobs is a problem, not a warning.
        let found = self.local.then(|| local::model_warnings(file, sets, &self.dir));
        let found = found.and_then(Result::ok).unwrap_or_default().into_iter();
        found.map(|(name, warning)| warning_line(file, &name, &warning)).collect()
    }

    /// Warnings about a job, and, if it `is_valid`, the line that says so.
    fn lines_of(&self, file: &Path, job: &RLJob, is_valid: bool) -> Vec<String> {
        let name = job.name_any();
        let mut found = warnings(&job.spec);
        if self.local {
            found.extend(local_warnings(&job.spec));
        } else if !self.data {
            found.extend(cluster_warnings(job));
        }
        let mut lines: Vec<String> =
            found.iter().map(|warning| warning_line(file, &name, warning)).collect();
        lines.extend(is_valid.then(|| format!("{}: rljob {name} is valid", file.display())));
        lines
    }
}

fn warning_line(file: &Path, name: &str, warning: &Problem) -> String {
    format!("{}: warning: rljob {name}: {warning}", file.display())
}

/// Checks all files; prints the warnings about each job and a line for each valid one to `out`.
///
/// # Errors
/// All problems, one per line.
pub fn validate(arguments: &ValidateArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    let sets = arguments.set.iter().map(|text| text.parse()).collect::<Result<Vec<Set>, _>>()?;
    for file in &arguments.files {
        match read_jobs(file, &sets) {
            Ok(jobs) => {
                let before = problems.len();
                let lines = arguments.check_inputs(file, &sets, &mut problems);
                let is_valid = problems.len() == before;
                let of_job = |job| arguments.lines_of(file, job, is_valid);
                let of_models = arguments.model_warnings(file, &sets).into_iter();
                for line in of_models.chain(jobs.iter().flat_map(of_job)).chain(lines) {
                    writeln!(out, "{}", printable(&line))?;
                }
            }
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(anyhow::anyhow!(problems.join("\n"))) }
}

/// Returns the CRD as YAML.
///
/// # Errors
/// Serialization fails.
pub fn crd() -> anyhow::Result<String> {
    Ok(serde_yaml::to_string(&rljob_crds::crd())?)
}

/// Reads the jobs of a file; `-` is standard input. Errors have one line per problem.
fn read_jobs(file: &Path, sets: &[Set]) -> anyhow::Result<Vec<RLJob>> {
    let text = if file == Path::new("-") {
        job_text(std::io::stdin())
    } else {
        std::fs::File::open(file).and_then(job_text)
    };
    let text = text.with_context(|| format!("failed to read {}", file.display()))?;
    Ok(local::jobs::parse_objects(file, &text, sets)?)
}

#[cfg(test)]
mod documents;

#[cfg(test)]
mod test_support {
    use super::*;

    /// What `rljob validate` prints.
    pub fn validated(arguments: &ValidateArgs) -> Result<String, String> {
        let mut out = Vec::new();
        validate(arguments, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).unwrap().trim_end().to_owned())
    }

    pub fn arguments(files: &[&PathBuf]) -> ValidateArgs {
        ValidateArgs {
            files: files.iter().map(|&path| path.clone()).collect(),
            data: false,
            gpu_memory: None,
            local: false,
            set: Vec::new(),
            dir: "runs".into(),
            use_bucket: false,
            engine_command: None,
            share_gpus: None,
        }
    }
}

#[cfg(test)]
mod tests;
