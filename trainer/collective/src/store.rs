//! Rendezvous of process groups: the key-value store c10d::TCPStore.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::CollectiveError;
use crate::ffi::StoreHandle;

/// Interval of connection attempts while no store is listening.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to a TCPStore, with its server if this process hosts it. The server stops when the
/// hosting `Store` and every process group that joined through it are dropped.
///
/// Each process group joins over a separate connection, so that threads can join several at the
/// same time, and a missing peer delays no other process group.
#[derive(Debug)]
pub struct Store {
    pub(crate) handle: StoreHandle,
    port: u16,
}

impl Store {
    /// Hosts a store on an address of this process only, and connects to it. Port 0 selects a free
    /// port, which [`Self::port`] returns.
    ///
    /// It does not wait for other members, so that one store serves any number of process groups.
    /// `timeout` applies to the connection.
    ///
    /// # Errors
    /// The address is not one of this machine, or the port is in use.
    pub fn host(address: &str, port: u16, timeout: Duration) -> Result<Self, CollectiveError> {
        let operation = "host a store";
        let listened = TcpListener::bind((address, port))
            .and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
        let (port, listener) = listened.map_err(|error| CollectiveError {
            operation: operation.to_owned(),
            place: format!("{address}:{port}"),
            message: error.to_string(),
        })?;
        Self::open(operation, address, port, Some(listener), timeout)
    }

    /// Connects to the store at `host:port`, retrying until `timeout`.
    ///
    /// # Errors
    /// No store is listening within `timeout`.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, CollectiveError> {
        // c10d waits a second after a refused connection, and members start at the same time.
        let start = Instant::now();
        while start.elapsed() < timeout && !listens(host, port) {
            std::thread::sleep(CONNECT_INTERVAL);
        }
        Self::open(
            "connect to the store",
            host,
            port,
            None,
            timeout.saturating_sub(start.elapsed()),
        )
    }

    fn open(
        operation: &str,
        host: &str,
        port: u16,
        listener: Option<TcpListener>,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let handle =
            StoreHandle::new(host, port, listener, milliseconds(timeout)).map_err(|message| {
                CollectiveError {
                    operation: operation.to_owned(),
                    place: format!("{host}:{port}"),
                    message,
                }
            })?;
        Ok(Self { handle, port })
    }

    /// Port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn listens(host: &str, port: u16) -> bool {
    (host, port).to_socket_addrs().is_ok_and(|mut addresses| {
        addresses.any(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok())
    })
}

/// Milliseconds between 1 and 30 days, so that libtorch's clock arithmetic does not overflow.
pub(crate) fn milliseconds(timeout: Duration) -> i64 {
    const DAYS_30: i64 = 30 * 24 * 3600 * 1000;
    i64::try_from(timeout.as_millis()).unwrap_or(DAYS_30).clamp(1, DAYS_30)
}
