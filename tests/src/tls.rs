//! TLS server of simulated coordinators: many jobs on one listener, with the certificate of the job
//! whose pod has the requested address.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rljob_http::ServerTls;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Accepts connections and authenticates them.
pub struct TlsListener<F> {
    listener: TcpListener,
    certificate: F,
}

impl<F: Fn(IpAddr) -> Option<ServerTls> + Send + 'static> TlsListener<F> {
    /// `certificate` finds the certificate of the pod with an address.
    pub fn new(listener: TcpListener, certificate: F) -> Self {
        Self { listener, certificate }
    }
}

impl<F: Fn(IpAddr) -> Option<ServerTls> + Send + 'static> axum::serve::Listener for TlsListener<F> {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, peer)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let requested = stream.local_addr().ok();
            let Some(tls) = requested.and_then(|address| (self.certificate)(address.ip())) else {
                continue;
            };
            let handshake = TlsAcceptor::from(tls.config()).accept(stream);
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, handshake).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
