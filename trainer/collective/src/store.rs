//! The key-value store through which a group's members find each other: c10d's TCPStore.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::CollectiveError;
use crate::ffi::StoreHandle;

/// Between two looks at a port where no store listens yet.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Of one look.
const LOOK: Duration = Duration::from_secs(1);

/// A connection to a TCPStore, and its server if this process hosts it. The server ends when the
/// hosting `Store` and every group joined through it are dropped.
///
/// Groups join over connections of their own, so threads may join several side by side, and a
/// missing peer holds up its own group only.
#[derive(Debug)]
pub struct Store {
    pub(crate) handle: StoreHandle,
    port: u16,
}

impl Store {
    /// Hosts a store on every interface and connects to it. Port 0 lets the system choose;
    /// [`Self::port`] says which.
    ///
    /// It waits for nobody, so one store serves any number of groups. `timeout` bounds the
    /// connecting.
    pub fn host(port: u16, timeout: Duration) -> Result<Self, CollectiveError> {
        Self::open("host a store", "localhost", port, true, timeout)
    }

    /// Connects to the store at `host:port`, retrying until `timeout`.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, CollectiveError> {
        // c10d waits a second after each refusal, and members start side by side.
        let start = Instant::now();
        while start.elapsed() < timeout && !listens(host, port) {
            std::thread::sleep(LOOK_EVERY);
        }
        Self::open(
            "connect to the store",
            host,
            port,
            false,
            timeout.saturating_sub(start.elapsed()),
        )
    }

    fn open(
        operation: &str,
        host: &str,
        port: u16,
        server: bool,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let (handle, port) =
            StoreHandle::new(host, port, server, milliseconds(timeout)).map_err(|message| {
                CollectiveError {
                    operation: operation.to_owned(),
                    place: format!("{host}:{port}"),
                    message,
                }
            })?;
        Ok(Self { handle, port })
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn listens(host: &str, port: u16) -> bool {
    (host, port).to_socket_addrs().is_ok_and(|mut addresses| {
        addresses.any(|address| TcpStream::connect_timeout(&address, LOOK).is_ok())
    })
}

/// At least 1, at most what libtorch's clock arithmetic can add without overflow.
pub(crate) fn milliseconds(timeout: Duration) -> i64 {
    const DAYS_30: i64 = 30 * 24 * 3600 * 1000;
    i64::try_from(timeout.as_millis()).unwrap_or(DAYS_30).clamp(1, DAYS_30)
}
