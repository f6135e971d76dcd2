//! Problems of a job, and the policy that some of them depend on.

use std::fmt;

use crate::gang::GangSchedulers;

/// A problem of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The field, for example `spec.rollout.batchSize`; empty for the whole document.
    pub path: String,
    /// The cause and its fix.
    pub message: String,
    /// Line in the file, from 1, if a file was read.
    pub line: Option<usize>,
}

impl Problem {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), line: None }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// A job that cannot run, with every problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct InvalidSpec {
    /// Every problem, in the order of the spec's fields.
    pub problems: Vec<Problem>,
}

/// What the operator permits beyond the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether pods may mount folders of their nodes.
    pub allow_host_path: bool,
    /// Whether paths may be relative to the folder of the job file.
    pub allow_relative_paths: bool,
    /// Whether the processes of the run share the run directory although `storage.s3` stores it, as
    /// in a local run.
    pub shared_run_directory: bool,
    /// Schedulers whose gangs the operator creates.
    pub gang_schedulers: GangSchedulers,
}

impl Policy {
    /// Policy of local runs and of `rljob validate`, which knows no operator.
    pub const LOCAL: Self = Self {
        allow_host_path: true,
        allow_relative_paths: true,
        shared_run_directory: true,
        gang_schedulers: GangSchedulers::ALL,
    };

    /// Policy of an operator without gang schedulers.
    pub fn of_operator(allow_host_path: bool) -> Self {
        Self {
            allow_host_path,
            allow_relative_paths: false,
            shared_run_directory: false,
            gang_schedulers: GangSchedulers::default(),
        }
    }

    /// The same with these gang schedulers.
    #[must_use]
    pub fn with_gangs(self, gang_schedulers: GangSchedulers) -> Self {
        Self { gang_schedulers, ..self }
    }
}
