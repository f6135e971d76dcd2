//! Check of the data of jobs: `rljob-coordinator --check-data` reads it as a run would.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rljob_crds::RunConfig;

use crate::local::jobs;
use crate::local::set::Set;
use crate::validate::ValidatedJob;

/// Checks the data of all jobs of a file; returns the lines to print. Jobs whose sources appear
/// when they start are skipped.
///
/// # Errors
/// What would fail a run at its start, or no job could be checked.
pub fn check(file: &Path, sets: &[Set]) -> anyhow::Result<Vec<String>> {
    if file == Path::new("-") {
        bail!("--data needs a file: relative paths of data start at its folder");
    }
    let program = std::env::current_exe().context("failed to find the path of this program")?;
    let coordinator = program.with_file_name("rljob-coordinator");
    let (mut lines, mut problems, mut is_checked) = (Vec::new(), Vec::new(), false);
    for job in jobs::read(file, sets, None)? {
        let at = format!("{}: rljob {}", file.display(), job.name);
        let Some(model) = local_model(&job) else {
            lines.push(format!("{at}: its model or data do not exist yet: data not checked"));
            continue;
        };
        is_checked = true;
        match check_job(&job, model, &coordinator).with_context(|| at.clone()) {
            Ok(found) => lines.extend(found.lines().map(|line| format!("{at}: {line}"))),
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    if !is_checked {
        bail!("--data reads local files: set model.path and the paths of the datasets");
    }
    if problems.is_empty() { Ok(lines) } else { bail!("{}", problems.join("\n")) }
}

/// The model's folder, if that and the data are local files.
fn local_model(job: &ValidatedJob) -> Option<&str> {
    let sources = job.spec.dataset.sources();
    let downloaded = sources.iter().any(|source| source.hugging_face.is_some());
    job.spec.model.path.as_deref().filter(|_| !downloaded)
}

fn check_job(job: &ValidatedJob, model: &str, coordinator: &Path) -> anyhow::Result<String> {
    let config = RunConfig {
        protocol: rljob_crds::run_config::protocol(&job.spec),
        namespace: job.namespace.clone(),
        name: job.name.clone(),
        uid: job.uid.clone(),
        run_directory: PathBuf::new(),
        bucket: None,
        model_directory: PathBuf::from(model),
        spec: job.spec.clone(),
    };
    let mut child = Command::new(coordinator)
        .args(["--check-data", "--config", "/dev/stdin"])
        .env("RUST_LOG", "error")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {}", coordinator.display()))?;
    // Dropped, and thereby closed, after the write. A program that does not read says why below.
    let written = child.stdin.take().map(|mut stdin| {
        serde_json::to_vec(&config)
            .map_err(std::io::Error::from)
            .and_then(|json| stdin.write_all(&json))
    });
    let output = child.wait_with_output().context("failed to read the output of the check")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let last = error.lines().last().unwrap_or("the check failed without a message");
        bail!("{}", last.trim_start_matches("error: "));
    }
    written.transpose().context("failed to pass the job to the check")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
