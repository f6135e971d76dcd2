//! `rljob checkpoints verify --cluster`: verifies checkpoints of an RLJob in the container of its
//! coordinator, where the storage of runs is mounted.

use anyhow::ensure;

use super::job;
use super::pod_files::PodProgram;
use crate::cli::connection::Connection;
use crate::cli::forward::without_coordinator;

/// Verifies the complete checkpoints, or that of a step; returns the lines to print.
///
/// # Errors
/// The job has no coordinator, a checkpoint differs from its manifest, or the request fails.
pub async fn verify(
    connection: &Connection,
    name: &str,
    step: Option<u32>,
) -> anyhow::Result<String> {
    let found = connection.job(name).await?;
    job::of_step(&found, step)?;
    let state = without_coordinator(&found);
    ensure!(
        state.is_none(),
        "RLJob {name} {} and has no coordinator that reads files: its next one verifies the newest \
         checkpoint before the run resumes",
        state.unwrap_or_default()
    );
    let mut arguments = vec!["--verify-checkpoints".to_owned()];
    arguments.extend(step.map(|step| format!("--step={step}")));
    let program = PodProgram::new(connection, name);
    program.check(connection).await?;
    let lines = program.run(&arguments).await?;
    Ok(lines.trim_end().to_owned())
}
