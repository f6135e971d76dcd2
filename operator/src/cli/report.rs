//! `rljob report`: writes the reports of local runs; with `--cluster`, that of an RLJob, which its
//! coordinator makes.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use reqwest::StatusCode;
use tokio::net::TcpListener;

use super::connection::{Connection, PlaceArgs, Subject};
use super::forward;
use crate::local::inspect::{self, Run};
use crate::local::report_file::{self, REPORT_FILE};

/// Limits of the request to a coordinator: a report has at most 600 points of a curve and samples
/// of six steps, 4 MiB each.
const TIMEOUT: Duration = Duration::from_secs(120);
const MAX_BYTES: usize = 64 << 20;

/// Write the reports of runs, and print their paths.
///
/// A report is the page of `rljob dashboard` with the data of a run in one file. With `--cluster`,
/// it is that of an RLJob with a coordinator, which is reached over a forwarded port. Needs the
/// permissions to get `rljobs`, and to get and create `pods/portforward`.
#[derive(clap::Args, Debug)]
pub struct ReportArgs {
    /// Run directory, or folder of run directories (default: `runs`); with `--cluster`, the name of
    /// an RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: Option<String>,
    /// File to write, for one run; an existing one is replaced. Default: `report.html` in each run
    /// directory, or `report-NAME.html` of an RLJob.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Writes the reports; returns their paths.
///
/// # Errors
/// There is no run, files of a run cannot be read or written, or the coordinator cannot be reached.
/// Reports of other local runs are written.
pub async fn report(arguments: &ReportArgs) -> anyhow::Result<String> {
    let ReportArgs { target, output, place } = arguments;
    let dir = match place.subject(target.as_deref()).await? {
        Subject::RLJob(connection, name) => {
            let page = page(&connection, name).await?;
            let path = output.clone().unwrap_or_else(|| format!("report-{name}.html").into());
            report_file::write_whole(&path, &page)?;
            return Ok(path.display().to_string());
        }
        Subject::Runs(dir) => dir,
    };
    let Some(path) = output else { return all(dir) };
    let directory = inspect::find_one(dir)?;
    report_file::write(&directory, &Run::read(&directory)?.info()?, path)?;
    Ok(path.display().to_string())
}

/// Writes the reports of all runs into their folders.
fn all(dir: &Path) -> anyhow::Result<String> {
    let write = |directory: &PathBuf| {
        let (run, path) = (Run::read(directory)?, directory.join(REPORT_FILE));
        report_file::write(directory, &run.info()?, &path)?;
        anyhow::Ok(path.display().to_string())
    };
    let (mut paths, mut failures) = (Vec::new(), Vec::new());
    for directory in inspect::find(dir)? {
        match write(&directory) {
            Ok(path) => paths.push(path),
            Err(error) => {
                failures.push(format!("failed to report on {}: {error:#}", directory.display()));
            }
        }
    }
    if failures.is_empty() {
        return Ok(paths.join("\n"));
    }
    failures.extend(paths.iter().map(|path| format!("written: {path}")));
    bail!(failures.join("\n"))
}

/// The report of an RLJob, from its coordinator.
async fn page(connection: &Connection, name: &str) -> anyhow::Result<String> {
    let forward = forward::open(connection, name).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .context("failed to listen on a port of 127.0.0.1")?;
    let url = format!("http://{}/v1/runs/0/report", listener.local_addr()?);
    tokio::select! {
        page = fetch(&url) => page.with_context(|| {
            format!("failed to get the report of RLJob {name} from its coordinator")
        }),
        () = forward.serve(listener) => bail!("the port is no longer forwarded"),
    }
}

/// Gets a page from the server of a dashboard, without a proxy: it is on this machine.
async fn fetch(url: &str) -> anyhow::Result<String> {
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
    let response = client.get(url).send().await?;
    let status = response.status();
    let body = rljob_http::read(response, MAX_BYTES).await?;
    ensure!(
        status != StatusCode::NOT_FOUND,
        "it is of a release without this route: `rljob dashboard --cluster` shows the page"
    );
    let text = String::from_utf8(body).context("the response is not UTF-8")?;
    ensure!(status.is_success(), "{status}: {}", text.trim());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use rljob_dashboard::{RunInfo, Source};
    use rljob_http::Limits;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::local::inspect::test_support::{cluster_run_directory, run_directory};

    fn arguments(target: &Path, output: Option<&Path>) -> ReportArgs {
        ReportArgs {
            target: Some(target.display().to_string()),
            output: output.map(Path::to_owned),
            place: PlaceArgs::default(),
        }
    }

    #[tokio::test]
    async fn an_unfinished_run_has_a_report() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let path = report(&arguments(runs.path(), None)).await.unwrap();
        assert_eq!(path, directory.path().join("report.html").display().to_string());
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"step\":7,\"totalSteps\":10"));
        let other = runs.path().join("page");
        let written = report(&arguments(runs.path(), Some(&other))).await.unwrap();
        assert_eq!(written, other.display().to_string());
        assert_eq!(std::fs::read(&other).unwrap(), std::fs::read(&path).unwrap());
        std::fs::remove_file(&path).unwrap();

        let damaged = runs.path().join("lab/damaged");
        std::fs::create_dir_all(&damaged).unwrap();
        std::fs::write(damaged.join("run.json"), "{").unwrap();
        let error = report(&arguments(runs.path(), None)).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("failed to report on {}: ", damaged.display())),
            "{error}"
        );
        assert!(error.ends_with(&format!("\nwritten: {path}")), "{error}");
        assert!(Path::new(&path).exists(), "the other report is written");
    }

    #[tokio::test]
    async fn a_run_of_a_cluster_has_a_report() {
        let runs = tempfile::tempdir().unwrap();
        let directory = cluster_run_directory(runs.path());
        let path = report(&arguments(runs.path(), None)).await.unwrap();
        assert_eq!(path, directory.join("report.html").display().to_string());
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains("\"step\":7,\"totalSteps\":10"));
    }

    /// Serves a run's dashboard, as a coordinator does; returns its address.
    async fn served(directory: &Path, info: Result<RunInfo, String>) -> String {
        let info = move || {
            let info = info.clone();
            Box::pin(async { info }) as futures::future::BoxFuture<'static, _>
        };
        let source = Source { directory: directory.to_owned(), info: Box::new(info) };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (router, stop) = (rljob_dashboard::router(vec![source]), CancellationToken::new());
        tokio::spawn(rljob_http::serve(listener, router, Limits::default(), stop));
        format!("http://{address}")
    }

    #[tokio::test]
    async fn the_report_of_a_server_equals_that_of_the_folder() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let info = Run::read(directory.path()).unwrap().info().unwrap();
        let server = served(directory.path(), Ok(info)).await;
        let path = report(&arguments(runs.path(), None)).await.unwrap();
        let page = fetch(&format!("{server}/v1/runs/0/report")).await.unwrap();
        assert_eq!(page, std::fs::read_to_string(path).unwrap());
        let missing = fetch(&format!("{server}/v2")).await.unwrap_err().to_string();
        assert!(missing.contains("of a release without this route"), "{missing}");
        let failing = served(directory.path(), Err("no status".to_owned())).await;
        let error = fetch(&format!("{failing}/v1/runs/0/report")).await.unwrap_err().to_string();
        assert_eq!(error, "500 Internal Server Error: {\"error\":\"no status\"}");
    }
}
