//! Arguments of `rljob run`, and the command line that resumes a run.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::evaluate::{EvaluateArgs, quoted};

/// Runs the RLJobs of a file on this machine, in order. The same command resumes an unfinished
/// run.
#[derive(clap::Args, Clone, Debug)]
pub struct RunArgs {
    /// The job file. Relative paths in it start at its folder.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Sets a field of every job, or of the named one, before validation, for example
    /// `spec.training.steps=3`; `null` as VALUE removes the field. Repeatable.
    #[arg(long, value_name = "[NAME:]PATH=VALUE")]
    pub set: Vec<String>,
    /// Folder of run directories, one per job: `<namespace>/<name>`.
    #[arg(long, value_name = "RUNS", default_value = "runs")]
    pub dir: PathBuf,
    /// Store checkpoints, exports, journal and JSONL files in each job's `spec.storage.s3`, as in a
    /// cluster. DIR then holds scratch files only, and a run can resume in another DIR. Credentials
    /// come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, …).
    #[arg(long)]
    pub use_bucket: bool,
    /// Resume a run although its spec has changed in fields that a cluster would not accept, or
    /// programs and reward functions were edited. They are listed without this flag.
    #[arg(long)]
    pub accept_changes: bool,
    /// Command of an SGLang server, for jobs with `spec.inference.sglang`. The flags of the run
    /// (model, host, port, keys …) are appended.
    #[arg(long, value_name = "COMMAND")]
    pub engine_command: Option<String>,
    /// Run engines and learners of a job on the same GPUs. The engines use PERCENT of their memory
    /// (50 without a value), learners the rest. Needs `spec.weightSync.method: Disk`.
    #[arg(
        long,
        value_name = "PERCENT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "50",
        value_parser = clap::value_parser!(u8).range(10..=90)
    )]
    pub share_gpus: Option<u8>,
    /// Compare the runs of all jobs once they have succeeded, as `rljob compare` does, and write
    /// their page to `comparison.html` in RUNS.
    #[arg(long)]
    pub compare: bool,
    /// Arguments of `rljob evaluate`, which evaluates the job instead of running it.
    #[arg(skip)]
    pub evaluation: Option<EvaluateArgs>,
}

impl RunArgs {
    /// The command with these arguments, quoted for a shell.
    pub fn command_line(&self) -> String {
        let command = if self.evaluation.is_some() { "evaluate" } else { "run" };
        let mut line = format!("rljob {command} -f {}", quoted(&self.file.to_string_lossy()));
        line.extend(self.evaluation.as_ref().map(EvaluateArgs::options));
        for set in &self.set {
            let _ = write!(line, " --set {}", quoted(set));
        }
        let _ = write!(line, " --dir {}", quoted(&self.dir.to_string_lossy()));
        if self.use_bucket {
            line.push_str(" --use-bucket");
        }
        if self.accept_changes {
            line.push_str(" --accept-changes");
        }
        if self.compare {
            line.push_str(" --compare");
        }
        if let Some(percent) = self.share_gpus {
            let _ = write!(line, " --share-gpus={percent}");
        }
        if let Some(command) = &self.engine_command {
            let _ = write!(line, " --engine-command {}", quoted(command));
        }
        line
    }
}

impl From<EvaluateArgs> for RunArgs {
    fn from(arguments: EvaluateArgs) -> Self {
        Self {
            file: arguments.file.clone(),
            set: arguments.set.clone(),
            dir: arguments.dir.clone(),
            use_bucket: false,
            accept_changes: false,
            compare: false,
            engine_command: arguments.engine_command.clone(),
            share_gpus: None,
            evaluation: Some(arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_quoted_for_a_shell() {
        let set = vec![
            "spec.training.steps=3".to_owned(),
            "a:spec.dataset.train.prompt={{x}} it's".to_owned(),
        ];
        let args = RunArgs {
            file: "job.yaml".into(),
            set,
            dir: "runs".into(),
            use_bucket: true,
            accept_changes: false,
            compare: true,
            engine_command: Some("python3 -m sglang.launch_server".to_owned()),
            share_gpus: Some(40),
            evaluation: None,
        };
        let expected = concat!(
            "rljob run -f job.yaml --set spec.training.steps=3 ",
            r"--set 'a:spec.dataset.train.prompt={{x}} it'\''s' --dir runs --use-bucket ",
            "--compare --share-gpus=40 --engine-command 'python3 -m sglang.launch_server'"
        );
        assert_eq!(args.command_line(), expected);
    }
}
