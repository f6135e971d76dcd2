//! `rljob status`: shows local runs and RLJobs as a table, and one RLJob as a tree.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::ensure;
use jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use rljob_crds::RLJob;
use rljob_crds::names::LABEL_JOB;
use serde::Serialize;

use super::connection::{Connection, PlaceArgs};
use super::job_view::{self, JobView};
use super::rows::{Row, job_row, runs, table};
use super::tree::tree;
use crate::cache::Pod;
use crate::children::objects;
use crate::terminal::printable;

/// Interval of requests with `--watch`.
const POLL: Duration = Duration::from_secs(2);
/// Moves the cursor of a terminal to the top left and clears it.
pub(super) const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show the state of runs, on this machine or in a cluster.
///
/// Several are shown as a table. One RLJob is shown as a tree: roles with pods and nodes, engines
/// with the versions of their weights, progress, the last failure and incident, and what it waits
/// for. Needs the permission to get or list `rljobs`; without that to list `pods`, pods are not
/// shown.
#[derive(clap::Args, Debug)]
pub struct StatusArgs {
    /// Run directory, or folder of run directories (default: `runs`); with `--cluster`, the name of
    /// an RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: Option<String>,
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Show the state again whenever it changes, until the run has ended. Needs the name of an
    /// RLJob or a run directory.
    #[arg(short, long, requires = "target")]
    pub watch: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Format of an output.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    #[default]
    Text,
    Json,
    Yaml,
}

impl Output {
    /// The value as JSON or YAML, or its text.
    ///
    /// # Errors
    /// The value cannot be serialized.
    pub fn format<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<String> {
        Ok(match self {
            Self::Text => text(),
            Self::Json => serde_json::to_string_pretty(value)?,
            Self::Yaml => serde_yaml::to_string(value)?,
        })
    }
}

/// What is shown.
enum View {
    Table(Vec<Row>),
    Job(Box<JobView>),
}

impl View {
    fn text(&self, output: Output, now: Timestamp) -> anyhow::Result<String> {
        match self {
            Self::Table(rows) => output.format(rows, || table(rows)),
            Self::Job(job) => output.format(job, || tree(job, now)),
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Self::Table(rows) => rows.iter().all(|row| row.has_ended),
            Self::Job(job) => job.completion_time.is_some(),
        }
    }
}

/// Prints the table or tree to `out`; with `--watch`, repeatedly.
///
/// # Errors
/// There is no run, or a request to the cluster fails.
pub async fn status(arguments: &StatusArgs, out: &mut impl Write) -> anyhow::Result<()> {
    arguments.place.check()?;
    arguments.place.check_folder(arguments.target.as_deref())?;
    ensure!(
        !arguments.watch || arguments.output == Output::Text,
        "--watch prints text: omit --output"
    );
    let connection = if arguments.place.cluster {
        Some(Connection::open(&arguments.place.connection).await?)
    } else {
        None
    };
    let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
    let mut before = String::new();
    loop {
        let view = match (&connection, &arguments.target) {
            (Some(connection), Some(name)) => View::Job(Box::new(job(connection, name).await?)),
            (Some(connection), None) => View::Table(jobs(connection).await?),
            (None, target) => View::Table(runs(target.as_deref().unwrap_or("runs").as_ref())?),
        };
        // Ages are not a change.
        let same = view.text(Output::Text, Timestamp::UNIX_EPOCH)?;
        if same != before {
            let text = view.text(arguments.output, Timestamp::now())?;
            let clear = if arguments.watch { clear } else { "" };
            writeln!(out, "{clear}{}", printable(text.trim_end()))?;
            out.flush()?;
            before = same;
        }
        if !arguments.watch || view.has_ended() {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn jobs(connection: &Connection) -> anyhow::Result<Vec<Row>> {
    let jobs = connection.api::<RLJob>().list(&ListParams::default()).await;
    let jobs = jobs.map_err(|error| connection.failed("list the RLJobs", error))?;
    Ok(jobs.items.iter().map(job_row).collect())
}

/// The state of a job. Without the permission to list pods, they are not shown.
pub(super) async fn job(connection: &Connection, name: &str) -> anyhow::Result<JobView> {
    let job = connection.job(name).await?;
    let resource = kube::core::ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
    let api: Api<Pod> = objects(&connection.client, Some(&connection.namespace), &resource);
    let own = ListParams::default().labels(&format!("{LABEL_JOB}={name}"));
    let pods = api
        .list(&own)
        .await
        .map_err(|error| format!("{:#}", connection.failed("list pods", error)));
    Ok(job_view::view(&job, pods.as_ref().map(|pods| pods.items.as_slice()).map_err(Clone::clone)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::local::inspect::test_support::{cluster_run_directory, run_directory};

    async fn shown(dir: &Path, output: Output) -> String {
        let arguments = StatusArgs {
            target: Some(dir.display().to_string()),
            output,
            watch: false,
            place: PlaceArgs::default(),
        };
        let mut out = Vec::new();
        status(&arguments, &mut out).await.unwrap();
        String::from_utf8(out).unwrap().trim_end().to_owned()
    }

    #[tokio::test]
    async fn options_of_a_cluster_need_cluster() {
        let connection = crate::cli::connection::ConnectionArgs {
            namespace: Some("lab".to_owned()),
            ..Default::default()
        };
        let place = PlaceArgs { cluster: false, connection };
        let arguments = StatusArgs { target: None, output: Output::Text, watch: false, place };
        let error = status(&arguments, &mut Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains("need --cluster"), "{error}");
    }

    #[tokio::test]
    async fn the_name_of_an_rljob_without_cluster_is_answered_with_the_option() {
        let target = Some("no-such-run".to_owned());
        let place = PlaceArgs::default();
        let arguments = StatusArgs { target, output: Output::Text, watch: false, place };
        let error = status(&arguments, &mut Vec::new()).await.unwrap_err().to_string();
        let expected = "failed to read no-such-run as a folder of runs: it does not exist; for an \
                        RLJob of a cluster: --cluster";
        assert_eq!(error, expected);
    }

    #[tokio::test]
    async fn runs_are_shown_as_a_table() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let expected = format!(
            "NAME      STATUS   STEP  REWARD  MESSAGE\nlab/sums  Running  7/10  0.500   {}",
            directory.path().display()
        );
        assert_eq!(shown(runs.path(), Output::Text).await, expected);
        assert_eq!(shown(directory.path(), Output::Text).await, expected);
        let json: serde_json::Value =
            serde_json::from_str(&shown(runs.path(), Output::Json).await).unwrap();
        let message = directory.path().display().to_string();
        let expected = serde_json::json!([{
            "name": "lab/sums", "status": "Running", "step": 7, "totalSteps": 10, "reward": 0.5,
            "message": message,
        }]);
        assert_eq!(json, expected);
    }

    #[tokio::test]
    async fn the_outcome_of_a_run_of_a_cluster_is_unknown() {
        let runs = tempfile::tempdir().unwrap();
        let directory = cluster_run_directory(runs.path());
        let expected = format!(
            "NAME      STATUS   STEP  REWARD  MESSAGE\nlab/sums  Unknown  7/10  0.500   {}",
            directory.display()
        );
        assert_eq!(shown(runs.path(), Output::Text).await, expected);
    }

    #[tokio::test]
    async fn an_unreadable_run_is_named_and_the_others_are_shown() {
        let runs = tempfile::tempdir().unwrap();
        let _directory = run_directory(runs.path());
        let damaged = runs.path().join("lab/damaged");
        std::fs::create_dir_all(&damaged).unwrap();
        std::fs::write(damaged.join("run.json"), "{").unwrap();
        let table = shown(runs.path(), Output::Text).await;
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(lines[1].starts_with("lab/damaged  Unreadable  -     -       "), "{table}");
        assert!(lines[1].contains("run configuration"), "{table}");
        assert!(lines[2].starts_with("lab/sums     Running     7/10  0.500   "), "{table}");
    }
}
