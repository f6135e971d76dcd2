//! Server of a pod: starts a session for each connection of the coordinator, and reaps as PID 1.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use rljob_http::StopSignals;
use rljob_sandbox::children::{kill_children, reap};
use rustix::process::{getpid, set_child_subreaper};
use tokio::net::{UnixListener, UnixStream};

/// Sessions at a time. A reward has at most 256 processes.
const MAX_SESSIONS: usize = 4096;
/// Time between two collections of exited processes.
const PERIOD: Duration = Duration::from_secs(1);

/// Serves until SIGTERM.
pub async fn serve(socket: &Path, network: bool) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen().context("failed to listen for SIGTERM")?;
    // As PID 1 it is one already.
    set_child_subreaper(Some(getpid())).context("failed to become a subreaper")?;
    // Of an earlier container of the pod.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)
        .with_context(|| format!("failed to listen on {}", socket.display()))?;
    let (mut sessions, mut ticks) = (BTreeSet::new(), tokio::time::interval(PERIOD));
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = ticks.tick() => {
                // Descendants of a session that was killed.
                kill_children(&sessions);
                for pid in reap() {
                    sessions.remove(&pid.as_raw_nonzero().get());
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if sessions.len() < MAX_SESSIONS => match start(stream, network) {
                    Ok(pid) => drop(sessions.insert(pid)),
                    Err(error) => tracing::error!("failed to start a session: {error:#}"),
                },
                Ok(_) => tracing::warn!("closed a connection: {MAX_SESSIONS} sessions are open"),
                Err(error) => tracing::error!("failed to accept a connection: {error}"),
            },
        }
    }
    kill_children(&BTreeSet::new());
    Ok(())
}

fn start(stream: UnixStream, network: bool) -> anyhow::Result<i32> {
    let stream = stream.into_std()?;
    let own = std::env::current_exe().context("failed to find the path of this program")?;
    let child = Command::new(own)
        .arg("session")
        .args(network.then_some("--network"))
        .stdin(Stdio::from(OwnedFd::from(stream)))
        .spawn()?;
    Ok(i32::try_from(child.id())?)
}
