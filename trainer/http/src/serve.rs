//! HTTP/1 server with limits of connections and time, for plain and TLS connections on one port.
//!
//! ```text
//!  first byte ── 0x16, a TLS handshake ─▶ client's certificate ─▶ all routes
//!              └ otherwise ─────────────────────────────────────▶ plain routes: probes, metrics
//! ```
//!
//! Kubelets and metrics scrapers have no certificate of the job.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request as HttpRequest;
use http_body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::connections::{Connection, Connections, Request};
use crate::tls::ServerTls;

/// Wait after a failed accept, for example without file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time without an acknowledgement after which a dead peer is probed, and between probes.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// First byte of a TLS record with a handshake message.
const TLS_HANDSHAKE: u8 = 0x16;
/// Length of the queue of connections that are not accepted yet.
const BACKLOG: i32 = 1024;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections. Beyond it, idle ones are closed for new ones.
    pub connections: usize,
    /// Time for the headers of a request, and for which a connection may be idle. Clients close
    /// idle connections earlier.
    pub headers: Duration,
    /// Time without a byte of a request's body.
    pub body: Duration,
}

impl Limits {
    /// The default limits.
    pub const fn new() -> Self {
        Self { connections: 1024, headers: Duration::from_secs(120), body: Duration::from_secs(30) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

/// Routes of a server by the kind of connection.
#[derive(Clone)]
pub struct Routes {
    /// Connections without TLS.
    plain: Router,
    /// Connections of clients that have proved their role.
    authenticated: Option<(TlsAcceptor, Router)>,
}

impl Routes {
    /// Serves `plain` without TLS, and `authenticated` to clients that `tls` accepts.
    pub fn new(plain: Router, authenticated: Router, tls: &ServerTls) -> Self {
        let acceptor = TlsAcceptor::from(tls.config());
        Self { plain, authenticated: Some((acceptor, authenticated)) }
    }

    fn limited(self, limits: Limits) -> Self {
        let layer = |router: Router| router.layer(RequestBodyTimeoutLayer::new(limits.body));
        Self {
            plain: layer(self.plain),
            authenticated: self.authenticated.map(|(tls, router)| (tls, layer(router))),
        }
    }
}

impl From<Router> for Routes {
    /// Serves without TLS only.
    fn from(plain: Router) -> Self {
        Self { plain, authenticated: None }
    }
}

/// Listens on an address. `[::]` also accepts IPv4, and is `0.0.0.0` on a host without IPv6.
///
/// # Errors
/// The address or port is not available.
pub fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    if !(address.is_ipv6() && address.ip().is_unspecified()) {
        return open(address);
    }
    open(address).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
        _ => open((Ipv4Addr::UNSPECIFIED, address.port()).into()),
    })
}

fn open(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Serves until `stop`, then completes the requests in progress.
pub async fn serve(
    listener: TcpListener,
    routes: impl Into<Routes>,
    limits: Limits,
    stop: CancellationToken,
) {
    let routes = routes.into().limited(limits);
    let (connections, tasks) = (Connections::new(limits.connections), TaskTracker::new());
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "failed to accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        let Some(connection) = connections.admit() else { continue };
        if let Err(error) = configure(&stream) {
            tracing::debug!(%error, "failed to configure a connection");
            continue;
        }
        tasks.spawn(accept(stream, connection, routes.clone(), limits, stop.clone()));
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// Sends without delay, and finds out when the peer is gone.
///
/// # Errors
/// The connection is closed.
pub fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Finds out the kind of a connection, and serves its routes.
async fn accept(
    stream: TcpStream,
    connection: Connection,
    routes: Routes,
    limits: Limits,
    stop: CancellationToken,
) {
    let Routes { plain, authenticated } = routes;
    let Some((tls, router)) = authenticated else {
        return handle(stream, connection, plain, limits, stop).await;
    };
    let opened = async {
        let mut first = [0];
        if stream.peek(&mut first).await? != 1 || first != [TLS_HANDSHAKE] {
            return Ok(Opened::Plain(stream));
        }
        io::Result::Ok(Opened::Tls(Box::new(tls.accept(stream).await?)))
    };
    let opened = tokio::select! {
        () = connection.close.cancelled() => return,
        () = stop.cancelled() => return,
        opened = tokio::time::timeout(limits.headers, opened) => opened,
    };
    match opened {
        Ok(Ok(Opened::Plain(stream))) => handle(stream, connection, plain, limits, stop).await,
        Ok(Ok(Opened::Tls(stream))) => handle(stream, connection, router, limits, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "rejected a connection"),
        Err(_) => tracing::debug!("a client did not complete its handshake"),
    }
}

enum Opened {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

async fn handle(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    connection: Connection,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let requests = connection.counter();
    let service = TowerToHyperService::new(router);
    let counted = service_fn(move |request: HttpRequest<hyper::body::Incoming>| {
        let in_progress = Request::start(&requests);
        let response = hyper::service::Service::call(&service, request);
        async move {
            let response = response.await?;
            Ok::<_, std::convert::Infallible>(
                response.map(|body| Body::new(Counted { body, _request: in_progress })),
            )
        }
    });
    let mut serving = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.headers)
            .serve_connection(TokioIo::new(stream), counted)
    );
    let mut stopping = false;
    loop {
        tokio::select! {
            result = &mut serving => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection ended with an error");
                }
                return;
            }
            () = connection.close.cancelled() => return,
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A response body that keeps its request in progress until it is sent.
struct Counted {
    body: Body,
    _request: Request,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
