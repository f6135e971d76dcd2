//! HTTP/1.1 connection pool of the engines. An engine proves its identity before it gets a key.
//!
//! ```text
//!  idle or new connection ─▶ send ─▶ head, chunks … ─▶ put, after a complete response
//!                                     └─ dropped early: closes, and the engine aborts the request
//! ```
//!
//! The caller polls its connection itself, without a task and a channel in between, so that a chunk
//! costs one wake-up. Must not depend on the content of requests.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Fuse, FusedFuture as _};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use rljob_http::ClientTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::engines::suitability::MAX_REQUESTS;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const SCHEME: &str = "https://";
/// Scheme of engines on this machine in tests and benchmarks.
const PLAIN_SCHEME: &str = "http://";

#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("invalid engine URL `{0}`, expected https://HOST:PORT")]
    Url(String),
    #[error("failed to connect")]
    Connect(#[source] std::io::Error),
    #[error("the engine did not prove its identity")]
    Tls(#[source] std::io::Error),
    /// The connection broke or the response is not HTTP.
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
    #[error("the engine's API key has characters that are invalid in a header")]
    Token,
    #[error("no response within {} s", .0.as_secs())]
    Deadline(Duration),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Driver = http1::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>;

/// A connection for one request at a time.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Fuse<Driver>,
    host: HeaderValue,
}

impl Connection {
    /// Connects to `https://HOST:PORT`, or without `tls` to `http://HOST:PORT`.
    pub async fn open(url: &str, tls: Option<&ClientTls>) -> Result<Self, ConnectionError> {
        let bad = || ConnectionError::Url(url.to_owned());
        let scheme = if tls.is_some() { SCHEME } else { PLAIN_SCHEME };
        let authority = url.strip_prefix(scheme).ok_or_else(bad)?;
        let host = HeaderValue::from_str(authority).map_err(|_| bad())?;
        let connected = async {
            let stream = TcpStream::connect(authority).await.map_err(ConnectionError::Connect)?;
            stream.set_nodelay(true).map_err(ConnectionError::Connect)?;
            Ok(match tls {
                None => Box::new(stream) as Box<dyn Stream>,
                Some(tls) => Box::new(tls.connect(stream).await.map_err(ConnectionError::Tls)?),
            })
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connected)
            .await
            .map_err(|_| ConnectionError::Deadline(CONNECT_TIMEOUT))??;
        let (sender, driver) =
            http1::handshake(TokioIo::new(stream)).await.map_err(ConnectionError::Http)?;
        Ok(Self { sender, driver: driver.fuse(), host })
    }

    /// Sends a request and returns the head of the response.
    pub async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        request.headers_mut().insert(HOST, self.host.clone());
        drive(&mut self.driver, self.sender.send_request(request)).await
    }

    /// Reads the next bytes of a response; `None` at its end.
    pub async fn chunk(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, hyper::Error> {
        loop {
            match drive(&mut self.driver, body.frame()).await.transpose()? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Whether the connection accepts a request.
    async fn is_ready(&mut self) -> bool {
        drive(&mut self.driver, self.sender.ready()).await.is_ok()
    }
}

/// Awaits `operation` while polling the connection.
async fn drive<T>(driver: &mut Fuse<Driver>, operation: impl Future<Output = T>) -> T {
    let mut operation = pin!(operation);
    poll_fn(|context| {
        if !driver.is_terminated() {
            // `operation` reports errors of the connection.
            let _ended: Poll<_> = driver.poll_unpin(context);
        }
        operation.as_mut().poll(context)
    })
    .await
}

/// Idle connections by engine URL, reused last in, first out.
#[derive(Default)]
pub struct Connections {
    idle: Mutex<HashMap<String, Vec<Connection>>>,
}

impl Connections {
    /// Takes an idle connection that is still open.
    pub async fn reuse(&self, url: &str) -> Option<Connection> {
        loop {
            let mut connection = self.idle().get_mut(url)?.pop()?;
            if connection.is_ready().await {
                return Some(connection);
            }
        }
    }

    /// Returns a connection after a complete response.
    pub fn put(&self, url: &str, connection: Connection) {
        let mut idle = self.idle();
        match idle.get_mut(url) {
            Some(connections) if connections.len() < MAX_REQUESTS as usize => {
                connections.push(connection);
            }
            Some(_) => {}
            None => {
                idle.insert(url.to_owned(), vec![connection]);
            }
        }
    }

    /// Closes connections to URLs for which `exists` is false.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.idle().retain(|url, _| exists(url));
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<String, Vec<Connection>>> {
        self.idle.lock()
    }
}
