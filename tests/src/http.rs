//! HTTP server on the loopback address. Dropping the value stops it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A running server.
#[derive(Debug)]
pub struct Http {
    address: SocketAddr,
    _runtime: Runtime,
}

impl Http {
    /// Serves the routes on an unused port.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(routes: Router) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Ok(Self { address, _runtime: runtime })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}
