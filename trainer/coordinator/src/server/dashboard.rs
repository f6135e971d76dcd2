//! Dashboard of the run, on a loopback address of the pod without TLS: users whom the API server
//! permits to forward ports of the pod reach it. Its routes only read.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use futures::FutureExt as _;
use rljob_crds::dataflow;
use rljob_dashboard::{RunInfo, Source};
use rljob_http::Limits;
use rljob_protocol::status::{CoordinatorStatus, Phase, UNKNOWN_STEPS};
use tokio::net::TcpListener;

use crate::coordinator::Coordinator;
use crate::core::Run;

/// Limits of the server: a page has a few connections.
const LIMITS: Limits = Limits { connections: 64, ..Limits::new() };

/// Parses the address to listen on.
///
/// # Errors
/// The text is no address and port, or the address can be reached from other machines.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error| format!("{error}"))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("the dashboard has no authentication: use a loopback address".to_owned())
    }
}

/// Serves until the coordinator stops. A failure is only logged: the run does not need it.
pub async fn serve(coordinator: Arc<Coordinator>, address: SocketAddr) {
    let stop = coordinator.stop.clone();
    let listen = || -> anyhow::Result<TcpListener> {
        let listener = rljob_http::listen(address)
            .with_context(|| format!("failed to listen on {address}"))?;
        Ok(TcpListener::from_std(listener)?)
    };
    let routes = source(&coordinator).map(|source| rljob_dashboard::router(vec![source]));
    match routes.and_then(|routes| Ok((listen()?, routes))) {
        Ok((listener, routes)) => rljob_http::serve(listener, routes, LIMITS, stop).await,
        Err(error) => tracing::warn!("the dashboard is not served: {error:#}"),
    }
}

fn source(coordinator: &Arc<Coordinator>) -> anyhow::Result<Source> {
    let config = &coordinator.config;
    let of_run = RunInfo {
        name: format!("{}/{}", config.namespace, config.name),
        spec: serde_yaml::to_string(&config.spec).context("failed to write the spec as YAML")?,
        plan: dataflow::plan(&config.spec).ok(),
        ..RunInfo::default()
    };
    let directory = coordinator.journal.fence().directory().to_owned();
    let coordinator = Arc::clone(coordinator);
    let info = move || {
        let (coordinator, of_run) = (Arc::clone(&coordinator), of_run.clone());
        async move {
            let desired = |run: &Run| run.desired().map(|desired| desired.incidents.clone());
            let incidents = coordinator.run.read(desired).await.unwrap_or_default();
            let of_run = RunInfo { incidents, ..of_run };
            Ok(info(of_run, coordinator.status().await))
        }
        .boxed()
    };
    Ok(Source { directory, info: Box::new(info) })
}

/// Adds the report of the coordinator to the facts about a run.
fn info(of_run: RunInfo, status: CoordinatorStatus) -> RunInfo {
    let (name, is_running) = match status.phase {
        Phase::Starting => ("Starting", true),
        Phase::Running => ("Running", true),
        Phase::Restarting => ("Restarting", true),
        Phase::Draining => ("Draining", true),
        Phase::Drained => ("Suspended", true),
        Phase::Finished => ("Completed", false),
        Phase::Failed => ("Failed", false),
    };
    let failure = status.last_failure.as_ref().filter(|_| status.phase == Phase::Failed);
    let cause = failure.map(|failure| failure.message.clone());
    let (name, memory) = (name.to_owned(), status.memory.clone());
    let total_steps = Some(status.total_steps).filter(|total| *total != UNKNOWN_STEPS);
    RunInfo {
        status: name,
        is_running,
        cause,
        total_steps: total_steps.unwrap_or_default(),
        coordinator: Some(status),
        memory,
        ..of_run
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn only_loopback_addresses_are_accepted() {
        for text in ["127.0.0.1:8082", "[::1]:8082"] {
            assert_eq!(address(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for text in ["0.0.0.0:8082", "[::]:8082", "10.0.0.1:8082"] {
            assert!(address(text).unwrap_err().contains("use a loopback address"), "{text}");
        }
        assert!(address("8082").is_err());
    }
}
