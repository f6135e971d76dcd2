//! Bridge of a verifier pod: connects the coordinator, which proves its name by TLS, with the
//! socket of the runner in the other container of the pod, which has no key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rljob_http::{ServerTls, StopSignals};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;

use crate::limits::filter_calls;
use crate::log;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 4096;
/// Timeout of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between tries to connect to the runner, which starts at the same time, or to accept.
const RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Socket of the runner.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Certificate, authority and key of this process, as PEM.
    #[arg(long, value_name = "FILE")]
    tls_file: PathBuf,
    /// Name in the certificate of clients.
    #[arg(long, value_name = "NAME")]
    tls_client_name: String,
}

/// Opens the listening socket once the runner accepts connections.
async fn listen(arguments: &Arguments) -> anyhow::Result<TcpListener> {
    while UnixStream::connect(&arguments.socket).await.is_err() {
        tokio::time::sleep(RETRY).await;
    }
    let listener = rljob_http::listen(arguments.listen)
        .with_context(|| format!("failed to listen on {}", arguments.listen))?;
    Ok(TcpListener::from_std(listener)?)
}

/// Serves until SIGTERM. Filters the system calls of this thread once the listening socket is open:
/// the filter allows no further one.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen().context("failed to listen for SIGTERM")?;
    let listener = tokio::select! {
        listener = listen(&arguments) => listener?,
        () = signals.next() => return Ok(()),
    };
    filter_calls(false)?;
    log::start();
    let Arguments { socket, tls_file, tls_client_name, .. } = arguments;
    let tls = ServerTls::of_file(&tls_file, &[tls_client_name])?;
    let (socket, free) = (Arc::new(socket), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    loop {
        let stream = tokio::select! {
            () = signals.next() => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::error!("failed to accept a connection: {error}");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            },
        };
        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else { continue };
        let (tls, socket) = (tls.clone(), Arc::clone(&socket));
        tokio::spawn(async move {
            // Probes close their connections at once, and a coordinator that gives up too.
            let _ = connect(stream, &tls, &socket).await;
            drop(permit);
        });
    }
}

/// Copies both directions until one end closes.
async fn connect(stream: TcpStream, tls: &ServerTls, socket: &PathBuf) -> std::io::Result<()> {
    rljob_http::configure(&stream)?;
    let client = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await??;
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let runner = UnixStream::connect(socket).await?;
    let (mut from_runner, mut to_runner) = runner.into_split();
    tokio::select! {
        copied = tokio::io::copy(&mut from_client, &mut to_runner) => copied.map(drop),
        copied = tokio::io::copy(&mut from_runner, &mut to_client) => {
            copied?;
            to_client.shutdown().await
        }
    }
}
