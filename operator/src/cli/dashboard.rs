//! `rljob dashboard`: serves the page that shows runs, on this machine; with `--cluster`, forwards
//! to that of an RLJob's coordinator.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use futures::FutureExt as _;
use rljob_dashboard::{MAX_RUNS, RunInfo, Source, router};
use rljob_http::Limits;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, PlaceArgs};
use super::forward;
use crate::local::inspect::{self, Run};

/// Serve a page with the curves, samples and evaluations of runs, until it is interrupted.
///
/// The page follows running runs and compares several. Only programs on this machine reach it. With
/// `--cluster`, it is the page of the coordinator of an RLJob that has not ended, over a forwarded
/// port. Needs the permissions to get `rljobs`, and to get and create `pods/portforward`.
#[derive(clap::Args, Debug)]
pub struct DashboardArgs {
    /// Run directories, or folders of run directories (default: `runs`); with `--cluster`, the name
    /// of an RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: Vec<String>,
    /// Port on 127.0.0.1. Default: a free one.
    #[arg(short, long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Prints the address to `out` and serves.
///
/// # Errors
/// There is no run, the port is not available, or the coordinator cannot be reached.
pub async fn dashboard(arguments: &DashboardArgs, out: &mut impl Write) -> anyhow::Result<()> {
    arguments.place.check()?;
    for target in &arguments.target {
        arguments.place.check_folder(Some(target))?;
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
    let listener =
        rljob_http::listen(address).with_context(|| format!("failed to listen on {address}"))?;
    let listener = TcpListener::from_std(listener)?;
    let mut announce = || {
        writeln!(out, "dashboard: http://{} (Ctrl-C to stop)", listener.local_addr()?)?;
        out.flush()
    };
    if arguments.place.cluster {
        let [name] = arguments.target.as_slice() else {
            bail!("--cluster needs the name of one RLJob");
        };
        let connection = Connection::open(&arguments.place.connection).await?;
        let forward = forward::open(&connection, name).await?;
        announce()?;
        forward.serve(listener).await;
        return Ok(());
    }
    let targets = match arguments.target.as_slice() {
        [] => vec!["runs".to_owned()],
        targets => targets.to_vec(),
    };
    let router = router(sources(&targets)?);
    announce()?;
    rljob_http::serve(listener, router, Limits::default(), CancellationToken::new()).await;
    Ok(())
}

/// The runs in the folders, each once.
fn sources(targets: &[String]) -> anyhow::Result<Vec<Source>> {
    let mut directories: Vec<PathBuf> = Vec::new();
    for target in targets {
        for directory in inspect::find(Path::new(target))? {
            if !directories.contains(&directory) {
                directories.push(directory);
            }
        }
    }
    ensure!(
        directories.len() <= MAX_RUNS,
        "{} runs are too many for a dashboard: name at most {MAX_RUNS} run directories",
        directories.len()
    );
    let names: Vec<Option<String>> = directories.iter().map(|path| name(path)).collect();
    let source = |(directory, name): (&PathBuf, &Option<String>)| {
        let is_unique = names.iter().filter(|other| *other == name).count() == 1;
        let read = directory.clone();
        let info = move || {
            let info = info(&read, is_unique).map_err(|error| format!("{error:#}"));
            async { info }.boxed()
        };
        Source { directory: directory.clone(), info: Box::new(info) }
    };
    Ok(directories.iter().zip(&names).map(source).collect())
}

/// Name of a job; `None` if its run cannot be read.
fn name(directory: &Path) -> Option<String> {
    Some(Run::read(directory).ok()?.info().ok()?.name)
}

/// Facts about a run. Runs of the same name are shown by their directories.
fn info(directory: &Path, is_unique: bool) -> anyhow::Result<RunInfo> {
    let info = Run::read(directory)?.info()?;
    if is_unique {
        return Ok(info);
    }
    Ok(RunInfo { name: directory.display().to_string(), ..info })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::inspect::test_support::run_directory;
    use crate::local::status_file::StatusFile;

    async fn names(sources: &[Source]) -> Vec<Result<String, String>> {
        let mut names = Vec::new();
        for source in sources {
            names.push((source.info)().await.map(|info| info.name));
        }
        names
    }

    #[tokio::test]
    async fn runs_are_named_by_their_job_or_by_their_directory() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let runs = folders.each_ref().map(|folder| run_directory(folder.path()));
        let targets = folders.each_ref().map(|folder| folder.path().display().to_string());
        let one = sources(&targets[..1]).unwrap();
        assert_eq!(names(&one).await, [Ok("lab/sums".to_owned())]);
        let path = |index: usize| Ok(runs[index].path().display().to_string());
        let twice = [targets.as_slice(), &targets].concat();
        assert_eq!(names(&sources(&twice).unwrap()).await, [path(0), path(1)]);
        let none = sources(&["/nonexistent".to_owned()]).err().unwrap().to_string();
        assert_eq!(none, "failed to read /nonexistent as a folder of runs");
    }

    #[tokio::test]
    async fn a_running_run_has_the_report_of_its_coordinator() {
        let folder = tempfile::tempdir().unwrap();
        let run = run_directory(folder.path());
        let sources = sources(&[folder.path().display().to_string()]).unwrap();
        let coordinator = async || (sources[0].info)().await.unwrap().coordinator;
        assert_eq!(coordinator().await, None);
        let status = crate::decide::test_support::report();
        StatusFile::new(run.path()).update(&status, tokio::time::Instant::now());
        assert_eq!(coordinator().await, Some(status));
        drop(run);
        assert_eq!(coordinator().await, None, "it has ended");
    }
}
