//! HTTP/1.1 connections to engines, kept open from one request to the next.
//!
//! ```text
//!  take: idle one that is still open, or a new one ─▶ send ─▶ head, chunks … ─▶ put, if the answer was read to its end
//!                                                      └─ dropped half-way: the connection closes, and the engine ends the request
//! ```
//! Whoever asks drives its connection: there is no task and no channel between them, so that an
//! answer costs one wake-up. It must not know what is asked.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
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
use tokio::net::TcpStream;

use super::slots::MAX_REQUESTS;

const CONNECT: Duration = Duration::from_secs(5);
const SCHEME: &str = "http://";

/// No connection, or one that failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Not `http://HOST:PORT`.
    #[error("`{0}` is no address of an engine")]
    Address(String),
    /// Nobody accepted.
    #[error("failed to connect")]
    Connect(#[source] std::io::Error),
    /// It broke, or what came over it is no HTTP.
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
    /// The key does not fit into a header.
    #[error("the engine's key has characters that no header takes")]
    Token,
    /// Out of time.
    #[error("no answer within {} s", .0.as_secs())]
    Deadline(Duration),
}

type Driver = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// A connection that one request at a time goes over.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Fuse<Driver>,
    host: HeaderValue,
}

impl Connection {
    /// A connection that nothing went over yet, to `http://HOST:PORT`.
    pub async fn open(url: &str) -> Result<Self, ConnectionError> {
        let bad = || ConnectionError::Address(url.to_owned());
        let authority = url.strip_prefix(SCHEME).ok_or_else(bad)?;
        let host = HeaderValue::from_str(authority).map_err(|_| bad())?;
        let connected = tokio::time::timeout(CONNECT, TcpStream::connect(authority))
            .await
            .map_err(|_| ConnectionError::Deadline(CONNECT))?;
        let stream = connected.map_err(ConnectionError::Connect)?;
        stream.set_nodelay(true).map_err(ConnectionError::Connect)?;
        let (sender, driver) =
            http1::handshake(TokioIo::new(stream)).await.map_err(ConnectionError::Http)?;
        Ok(Self { sender, driver: driver.fuse(), host })
    }

    /// Sends a request; the head of its answer.
    pub async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        request.headers_mut().insert(HOST, self.host.clone());
        drive(&mut self.driver, self.sender.send_request(request)).await
    }

    /// The next bytes of an answer; none at its end.
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

    /// Whether the next request can go over it.
    async fn ready(&mut self) -> bool {
        drive(&mut self.driver, self.sender.ready()).await.is_ok()
    }
}

/// Waits for `wanted` while the connection's own work is done.
async fn drive<T>(driver: &mut Fuse<Driver>, wanted: impl Future<Output = T>) -> T {
    let mut wanted = pin!(wanted);
    poll_fn(|context| {
        if !driver.is_terminated() {
            // How it ended is told to `wanted`.
            let _ended: Poll<_> = driver.poll_unpin(context);
        }
        wanted.as_mut().poll(context)
    })
    .await
}

/// Connections that wait for their next request, by the engine's URL; the last one used is the
/// first one taken.
#[derive(Default)]
pub struct Connections {
    idle: Mutex<HashMap<String, Vec<Connection>>>,
}

impl Connections {
    /// An idle connection that the engine has not closed, if there is one.
    pub async fn reuse(&self, url: &str) -> Option<Connection> {
        loop {
            let mut connection = self.idle().get_mut(url)?.pop()?;
            if connection.ready().await {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose answer was read to its end.
    pub fn put(&self, url: &str, connection: Connection) {
        let mut idle = self.idle();
        match idle.get_mut(url) {
            Some(connections) if connections.len() < MAX_REQUESTS as usize => {
                connections.push(connection)
            }
            Some(_) => {}
            None => {
                idle.insert(url.to_owned(), vec![connection]);
            }
        }
    }

    /// Closes connections to engines that are no more.
    pub fn keep(&self, wanted: impl Fn(&str) -> bool) {
        self.idle().retain(|url, _| wanted(url));
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<String, Vec<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
