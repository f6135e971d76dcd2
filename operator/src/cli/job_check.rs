//! Programs of a run that do one thing and exit: `rljob-coordinator` reads the data of a job or
//! restores a stopped run, `rljob-learner` reads the shape of a model.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rljob_crds::RunConfig;

use crate::validate::ValidatedJob;

/// [`ask`] with the run configuration of a job, whose model is in a local folder.
///
/// # Errors
/// The last line of its errors, or it cannot be started.
pub fn check(
    job: &ValidatedJob,
    model: &str,
    program: &str,
    arguments: &[&str],
) -> anyhow::Result<String> {
    let config = RunConfig {
        protocol: rljob_crds::run_config::protocol(&job.spec),
        namespace: job.namespace.clone(),
        name: job.name.clone(),
        uid: job.uid.clone(),
        run_directory: PathBuf::new(),
        bucket: None,
        model_directory: PathBuf::from(model),
        model_identity: None,
        spec: job.spec.clone(),
    };
    ask(&config, program, arguments)
}

/// Runs a program beside this one with a run configuration on standard input; returns its output.
///
/// # Errors
/// Its last error, or it cannot be started.
pub fn ask(config: &RunConfig, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let own = std::env::current_exe().context("failed to find the path of this program")?;
    let program = own.with_file_name(program);
    let mut child = Command::new(&program)
        .args(arguments)
        .args(["--config", "/dev/stdin"])
        .env("RUST_LOG", "error")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {}", program.display()))?;
    // Dropped, and thereby closed, after the write. A program that does not read says why below.
    let written = child.stdin.take().map(|mut stdin| {
        serde_json::to_vec(config)
            .map_err(std::io::Error::from)
            .and_then(|json| stdin.write_all(&json))
    });
    let output = child.wait_with_output().context("failed to read the output of the program")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        // Programs of rewards, which write to the same pipe, may end after the program.
        let own = error.lines().rev().find_map(|line| line.strip_prefix("error: "));
        bail!("{}", own.or(error.lines().last()).unwrap_or("it failed without a message"));
    }
    written.transpose().context("failed to pass the job to the program")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
