//! Complete checkpoints in the status of an RLJob.

use anyhow::{Context, ensure};
use jiff::Timestamp;
use kube::ResourceExt;
use rljob_crds::RLJob;
use rljob_crds::status::CheckpointStatus;
use serde::Serialize;

use crate::cli::connection::Connection;
use crate::cli::status::Output;
use crate::cli::table::table;
use crate::cli::tree::age;

/// The complete checkpoints of an RLJob as a table, JSON or YAML.
///
/// # Errors
/// The job or a checkpoint does not exist, or the request fails.
pub async fn list(connection: &Connection, name: &str, output: Output) -> anyhow::Result<String> {
    let now = Timestamp::now();
    let found = of_job(&connection.job(name).await?)?;
    let row = |CheckpointStatus { step, path, time }: &CheckpointStatus| ListRow {
        name: name.to_owned(),
        step: *step,
        time: time.as_ref().map(|time| time.0),
        folder: path.clone(),
    };
    let rows: Vec<ListRow> = found.iter().map(row).collect();
    output.format(&rows, || {
        let cells = |row: &ListRow| {
            let at = row.time.map_or_else(|| "-".to_owned(), |time| age(time, now));
            [row.name.clone(), row.step.to_string(), at, row.folder.clone()]
        };
        let cells: Vec<_> = rows.iter().map(cells).collect();
        table(["NAME", "STEP", "AGE", "FOLDER"], &cells)
    })
}

/// A checkpoint in the output of `list`.
#[derive(Serialize)]
struct ListRow {
    name: String,
    step: u32,
    time: Option<Timestamp>,
    folder: String,
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
