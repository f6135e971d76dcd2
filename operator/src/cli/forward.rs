//! Forwards connections of this machine to the dashboard of an RLJob's coordinator. Each connection
//! has its own request to the API server, so that a new pod is reached after a restart.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use rljob_crds::RLJob;
use rljob_crds::names::DASHBOARD_PORT;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::connection::Connection;
use super::job_view::{is_released, outcome};
use crate::desired::Role;

/// Most connections at once. A browser opens up to six.
const CONNECTIONS: usize = 32;
/// Wait after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Pod of the coordinator of a job that has one.
///
/// # Errors
/// There is no such job, it has ended, or its coordinator cannot be reached.
pub async fn open(connection: &Connection, name: &str) -> anyhow::Result<Forward> {
    let job = connection.job(name).await?;
    if let Some(state) = without_coordinator(&job) {
        bail!(
            "RLJob {name} {state} and has no coordinator: `rljob dashboard DIR` and `rljob report \
             DIR` read its run directory, {}/{name} in its storage",
            connection.namespace
        );
    }
    let pod = format!("{name}-{}-0", Role::Coordinator.as_str());
    let forward = Forward { pods: connection.api(), pod };
    let test = forward.pods.portforward(&forward.pod, &[DASHBOARD_PORT]).await;
    let action = format!("forward a port of pod {}", forward.pod);
    test.map_err(|error| connection.failed(&action, error))?.abort();
    Ok(forward)
}

/// Why a job has no coordinator, as part of a sentence.
pub(super) fn without_coordinator(job: &RLJob) -> Option<String> {
    if let Some(outcome) = outcome(job) {
        return Some(format!("has ended ({})", outcome.reason));
    }
    is_released(job).then(|| "is suspended".to_owned())
}

/// The pod to which connections are forwarded.
pub struct Forward {
    pods: Api<Pod>,
    pod: String,
}

impl Forward {
    /// Forwards all connections of the listener.
    pub async fn serve(self, listener: TcpListener) {
        let (forward, free) = (Arc::new(self), Arc::new(Semaphore::new(CONNECTIONS)));
        // The semaphore is never closed.
        while let Ok(permit) = Arc::clone(&free).acquire_owned().await {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "failed to accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let forward = Arc::clone(&forward);
            tokio::spawn(async move {
                forward.connect(stream).await;
                drop(permit);
            });
        }
    }

    async fn connect(&self, mut stream: TcpStream) {
        if let Err(error) = self.copy(&mut stream).await {
            tracing::debug!("a connection to pod {} ended: {error:#}", self.pod);
            // The browser may have left.
            let _ = reject(&mut stream, &format!("pod {}: {error:#}", self.pod)).await;
        }
    }

    /// Fails only if the pod was not reached.
    async fn copy(&self, stream: &mut TcpStream) -> anyhow::Result<()> {
        let mut forward = self
            .pods
            .portforward(&self.pod, &[DASHBOARD_PORT])
            .await
            .context("failed to forward a port")?;
        let (error, remote) =
            (forward.take_error(DASHBOARD_PORT), forward.take_stream(DASHBOARD_PORT));
        let (Some(error), Some(mut remote)) = (error, remote) else {
            bail!("the API server forwards no port");
        };
        let copied = tokio::select! {
            biased;
            Some(error) = error => Err(anyhow::anyhow!("{error}")),
            copied = tokio::io::copy_bidirectional(stream, &mut remote) => {
                // A browser may reset a connection.
                drop(copied);
                Ok(())
            }
        };
        forward.abort();
        copied
    }
}

/// Answers a request that cannot be forwarded.
async fn reject(stream: &mut TcpStream, message: &str) -> std::io::Result<()> {
    let mut request = [0; 4096];
    let _ = tokio::time::timeout(ACCEPT_RETRY, stream.read(&mut request)).await;
    let body = serde_json::json!({"error": message}).to_string();
    let head = format!(
        "HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
