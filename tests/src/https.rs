//! HTTPS server whose certificate a private authority has signed, as servers of organizations have.
//! Dropping the value stops it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use crate::pki::Authority;

/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// A running server on the loopback address.
pub struct Https {
    authority: Authority,
    address: SocketAddr,
    _folder: TempDir,
    _runtime: Runtime,
}

impl Https {
    /// Serves the routes.
    ///
    /// # Errors
    /// The certificates cannot be created, or no port is free.
    pub fn start(routes: Router) -> Result<Self> {
        let folder = tempfile::tempdir().context("failed to create a folder for certificates")?;
        let authority = Authority::create(folder.path())?;
        let identity = authority.issue("server", "/CN=server", "IP:127.0.0.1")?;
        let certificate = CertificateDer::from_pem_file(&identity.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&identity.key)?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let listener = HttpsListener { listener, acceptor };
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Ok(Self { authority, address, _folder: folder, _runtime: runtime })
    }

    /// `https://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("https://{}", self.address)
    }

    /// File with the certificate of the authority.
    pub fn authority(&self) -> PathBuf {
        self.authority.certificate()
    }
}

struct HttpsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for HttpsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, peer)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let handshake = tokio::time::timeout(HANDSHAKE, self.acceptor.accept(stream));
            if let Ok(Ok(stream)) = handshake.await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
