//! Server lifecycle: load, listen, serve, drain.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use rljob_http::{Routes, ServerTls};
use tokio::net::TcpListener;

use crate::arguments::Arguments;
use crate::engine::Engine;
use crate::http::{Keys, open_router, router};
use crate::loading::{load, wait_for_folder};
use crate::scheduler::Command;

/// Time for requests in flight to finish after a stop; remaining ones are aborted.
const DRAIN: Duration = Duration::from_secs(10);

/// Time to write the last responses.
const FLUSH: Duration = Duration::from_secs(2);

/// Limits of the HTTP server. Each request in progress has a connection.
const LIMITS: rljob_http::Limits = rljob_http::Limits {
    connections: 16384,
    headers: Duration::from_secs(120),
    body: Duration::from_secs(60),
};

const POLL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Server {
    engine: Engine,
    listener: TcpListener,
    keys: Keys,
    tls: Option<ServerTls>,
}

impl Server {
    pub async fn start(arguments: Arguments) -> anyhow::Result<Self> {
        let keys =
            Keys::read(arguments.api_key_file.as_deref(), arguments.admin_api_key_file.as_deref())?;
        let tls = match (&arguments.tls_file, arguments.tls_client_name.clone()) {
            (Some(file), Some(client)) => Some(ServerTls::of_file(file, &[client])?),
            _ => None,
        };
        wait_for_folder(
            &arguments.model_path,
            arguments.load_format,
            arguments.model_timeout_seconds,
        )
        .await?;
        let to_load = arguments.clone();
        let loaded = tokio::task::spawn_blocking(move || load(&to_load))
            .await
            .context("the loading task failed")?;
        let loaded = loaded.with_context(|| {
            format!("failed to load the model in {}", arguments.model_path.display())
        })?;
        let engine = Engine::start(&arguments, loaded).await?;
        let listener = listen(&arguments.host, arguments.port).await?;
        Ok(Self { engine, listener, keys, tls })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Scheme of the server's URLs.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Serves until `stop` completes, then rejects new requests and drains.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { engine, listener, keys, tls } = self;
        let closing = engine.draining.clone();
        let all = router(engine.clone(), keys);
        let app = match tls {
            Some(tls) => Routes::new(open_router(engine.clone()), all, &tls),
            None => all.into(),
        };
        let mut serving = tokio::spawn(rljob_http::serve(listener, app, LIMITS, closing));
        tokio::select! {
            ended = &mut serving => return ended.context("the HTTP server task failed"),
            () = stop => {}
        }
        drain(&engine).await;
        if let Ok(ended) = tokio::time::timeout(FLUSH, &mut serving).await {
            return ended.context("the HTTP server task failed");
        }
        tracing::warn!("closing connections that are still open after draining");
        serving.abort();
        Ok(())
    }
}

async fn listen(host: &str, port: u16) -> anyhow::Result<TcpListener> {
    let failed = || format!("failed to listen on {host}:{port}");
    let mut addresses = tokio::net::lookup_host((host, port)).await.with_context(failed)?;
    let address = addresses.next().with_context(failed)?;
    let listener = rljob_http::listen(address).with_context(failed)?;
    TcpListener::from_std(listener).with_context(failed)
}

/// Waits for requests in flight, then aborts the rest.
async fn drain(engine: &Engine) {
    engine.draining.cancel();
    tracing::info!(pending = engine.pending_requests(), seconds = DRAIN.as_secs(), "draining");
    let drained = async {
        while engine.pending_requests() > 0 {
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        let aborted = engine.call(|done| Command::Abort(None, done));
        if tokio::time::timeout(FLUSH, aborted).await.is_err() {
            tracing::warn!("the scheduler did not respond to the shutdown");
        }
    }
}
