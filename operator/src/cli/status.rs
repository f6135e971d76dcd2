//! `rljob status`: shows the state of local runs or of the RLJobs of a cluster.

use std::path::{Path, PathBuf};

use anyhow::Context;
use kube::{Api, Client, ResourceExt};
use rljob_crds::RLJob;
use rljob_crds::names::CONDITION_SUCCEEDED;

use crate::local::inspect::{self, Run};
use crate::local::lines;

/// Shows the state of local runs, or with `--cluster` of RLJobs.
#[derive(clap::Args, Debug)]
pub struct StatusArgs {
    /// Run directory, or folder of run directories.
    #[arg(value_name = "DIR", default_value = "runs", conflicts_with = "cluster")]
    pub dir: PathBuf,
    /// Show the RLJobs of the cluster in the current kubeconfig, or the one with this name.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    pub cluster: Option<String>,
    /// Namespace of the RLJobs. Default: that of the kubeconfig.
    #[arg(short, long, requires = "cluster")]
    pub namespace: Option<String>,
}

/// Row of the table.
struct Row {
    name: String,
    status: String,
    steps: String,
    reward: Option<f64>,
    message: String,
}

/// Returns the table.
///
/// # Errors
/// There is no run, or a request to the cluster fails.
pub async fn status(arguments: &StatusArgs) -> anyhow::Result<String> {
    let rows = match &arguments.cluster {
        Some(name) => cluster_rows(name, arguments.namespace.as_deref()).await?,
        None => inspect::find(&arguments.dir)?
            .iter()
            .map(|directory| match Run::read(directory) {
                Ok(run) => run_row(&run),
                Err(error) => unreadable_row(&arguments.dir, directory, &error),
            })
            .collect(),
    };
    Ok(table(&rows))
}

fn run_row(run: &Run) -> Row {
    let step = run.metrics.as_ref().map_or(0, |metrics| metrics.step);
    let message = match &run.state.failure {
        Some(cause) if !run.running => cause.clone(),
        _ => run.directory.display().to_string(),
    };
    Row {
        name: format!("{}/{}", run.config.namespace, run.config.name),
        status: run.status().to_owned(),
        steps: format!("{step}/{}", run.config.spec.training.steps),
        reward: run
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.get(rljob_protocol::metrics::REWARD)),
        message,
    }
}

/// A run whose files cannot be read. The others are still shown.
fn unreadable_row(dir: &Path, directory: &Path, error: &anyhow::Error) -> Row {
    let name = directory.strip_prefix(dir).ok().filter(|name| name.components().next().is_some());
    Row {
        name: name.unwrap_or(directory).display().to_string(),
        status: "Unreadable".to_owned(),
        steps: "-".to_owned(),
        reward: None,
        message: format!("{error:#}"),
    }
}

async fn cluster_rows(name: &str, namespace: Option<&str>) -> anyhow::Result<Vec<Row>> {
    let client = Client::try_default().await.context(
        "failed to find a cluster: set KUBECONFIG, or omit --cluster to show local runs",
    )?;
    let api: Api<RLJob> = namespace.map_or_else(
        || Api::default_namespaced(client.clone()),
        |namespace| Api::namespaced(client.clone(), namespace),
    );
    let jobs = match name {
        "" => {
            api.list(&kube::api::ListParams::default())
                .await
                .context("failed to list the RLJobs")?
                .items
        }
        name => vec![api.get(name).await.with_context(|| format!("failed to get RLJob {name}"))?],
    };
    Ok(jobs.iter().map(job_row).collect())
}

fn job_row(job: &RLJob) -> Row {
    let status = job.status.clone().unwrap_or_default();
    let summary = status.conditions.iter().find(|condition| condition.type_ == CONDITION_SUCCEEDED);
    let progress = status.progress.as_ref();
    Row {
        name: format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any()),
        status: summary.map_or_else(|| "Unknown".to_owned(), |summary| summary.reason.clone()),
        steps: format!(
            "{}/{}",
            progress.map_or(0, |progress| progress.step),
            job.spec.training.steps
        ),
        reward: progress.and_then(|progress| progress.reward),
        message: summary.map(|summary| summary.message.clone()).unwrap_or_default(),
    }
}

fn table(rows: &[Row]) -> String {
    let head = ["NAME", "STATUS", "STEP", "REWARD", "MESSAGE"].map(ToOwned::to_owned);
    let cells = rows.iter().map(|row| {
        let reward = row.reward.map_or_else(|| "-".to_owned(), |reward| format!("{reward:.3}"));
        [
            row.name.clone(),
            row.status.clone(),
            row.steps.clone(),
            reward,
            lines::one_line(&row.message),
        ]
    });
    let all: Vec<[String; 5]> = std::iter::once(head).chain(cells).collect();
    let width = |column: usize| {
        let cells = all.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..4).map(width).collect();
    let line = |[name, status, steps, reward, message]: &[String; 5]| {
        let [a, b, c, d] = widths[..] else { return String::new() };
        format!("{name:a$}  {status:b$}  {steps:c$}  {reward:d$}  {message}").trim_end().to_owned()
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::inspect::test_support::run_directory;

    #[tokio::test]
    async fn runs_are_shown_as_a_table() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let of = |dir: PathBuf| StatusArgs { dir, cluster: None, namespace: None };
        let expected = format!(
            "NAME      STATUS   STEP  REWARD  MESSAGE\nlab/sums  Running  7/10  0.500   {}",
            directory.path().display()
        );
        assert_eq!(status(&of(runs.path().to_owned())).await.unwrap(), expected);
        assert_eq!(status(&of(directory.path().to_owned())).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn an_unreadable_run_is_named_and_the_others_are_shown() {
        let runs = tempfile::tempdir().unwrap();
        let _directory = run_directory(runs.path());
        let damaged = runs.path().join("lab/damaged");
        std::fs::create_dir_all(&damaged).unwrap();
        std::fs::write(damaged.join("run.json"), "{").unwrap();
        let dir = runs.path().to_owned();
        let table = status(&StatusArgs { dir, cluster: None, namespace: None }).await.unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(lines[1].starts_with("lab/damaged  Unreadable  -     -       "), "{table}");
        assert!(lines[1].contains("run configuration"), "{table}");
        assert!(lines[2].starts_with("lab/sums     Running     7/10  0.500   "), "{table}");
    }

    #[test]
    fn rows_of_rljobs_show_their_conditions() {
        let mut job = crate::validate::test_support::minimal();
        let condition = serde_json::json!({
            "type": "Succeeded", "status": "False", "reason": "Failed", "message": "out of\nmemory",
            "lastTransitionTime": null,
        });
        let text = serde_json::json!({
            "conditions": [condition], "progress": {"step": 3, "totalSteps": 10, "reward": 0.25},
        });
        let text = text.to_string().replace("null", "\"2026-01-01T00:00:00Z\"");
        job.status = Some(serde_json::from_str(&text).unwrap());
        assert_eq!(
            table(&[job_row(&job)]),
            "NAME      STATUS  STEP  REWARD  MESSAGE\nlab/sums  Failed  3/10  0.250   out of | \
                memory"
        );
    }
}
