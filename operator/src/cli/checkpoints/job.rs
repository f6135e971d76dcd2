//! Complete checkpoints in the status of an RLJob.

use anyhow::{Context, ensure};
use jiff::Timestamp;
use kube::ResourceExt;
use rljob_crds::RLJob;
use rljob_crds::status::CheckpointStatus;

use crate::cli::connection::Connection;
use crate::cli::table::table;
use crate::cli::tree::age;

/// Table of the complete checkpoints of an RLJob.
///
/// # Errors
/// The job or a checkpoint does not exist, or the request fails.
pub async fn list(connection: &Connection, name: &str) -> anyhow::Result<String> {
    let now = Timestamp::now();
    let row = |checkpoint: CheckpointStatus| {
        let at = checkpoint.time.map_or_else(|| "-".to_owned(), |time| age(time.0, now));
        [name.to_owned(), checkpoint.step.to_string(), at, checkpoint.path]
    };
    let rows: Vec<_> = of_job(&connection.job(name).await?)?.into_iter().map(row).collect();
    Ok(table(["NAME", "STEP", "AGE", "FOLDER"], &rows))
}

/// Complete checkpoints of an RLJob, oldest first. Older operators record the newest one only.
fn of_job(job: &RLJob) -> anyhow::Result<Vec<CheckpointStatus>> {
    let status = job.status.clone().unwrap_or_default();
    let newest = status.checkpoint.filter(|_| status.checkpoints.is_empty());
    let all: Vec<_> = status.checkpoints.into_iter().chain(newest).collect();
    ensure!(!all.is_empty(), "RLJob {} has no complete checkpoint yet", job.name_any());
    Ok(all)
}

/// The newest complete checkpoint of an RLJob, or that of a step.
///
/// # Errors
/// It does not exist.
pub fn of_step(job: &RLJob, step: Option<u32>) -> anyhow::Result<CheckpointStatus> {
    let all = of_job(job)?;
    let found = all.iter().rfind(|found| step.is_none_or(|step| found.step == step)).cloned();
    found.with_context(|| {
        let steps: Vec<_> = all.iter().map(|found| found.step.to_string()).collect();
        format!(
            "RLJob {} has no complete checkpoint of step {}; complete ones: {}",
            job.name_any(),
            step.unwrap_or_default(),
            steps.join(", ")
        )
    })
}
