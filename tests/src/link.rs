//! Fault-injecting TCP link to a local server: 503 responses, truncated requests and responses,
//! slow responses.
//!
//! It treats the first bytes of a connection as a request and closes every connection after its
//! fault. Dropping the value closes the link.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;

/// Response of an overloaded server.
const SLOW_DOWN: &[u8] =
    b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Fault of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Responds with 503.
    SlowDown,
    /// Closes the connection after this many bytes of the response.
    CutAnswer(usize),
    /// Closes the connection after this many bytes of the request.
    CutRequest(usize),
    /// Forwards the response in chunks of this many bytes with a delay after each.
    Dribble(usize),
}

/// A local port that forwards to another local port.
#[derive(Debug)]
pub struct Link {
    near: SocketAddr,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: u16,
    faults: Mutex<Vec<Fault>>,
    injected: AtomicUsize,
    stop: AtomicBool,
}

impl Link {
    /// Forwards a new port to the port `target`.
    pub fn to(target: u16) -> Result<Self> {
        Self::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to listen")?, target)
    }

    /// Forwards an existing listener, for example in a cluster's network, to the port `target`.
    pub fn from(listener: TcpListener, target: u16) -> Result<Self> {
        let near = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            faults: Mutex::default(),
            injected: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        Ok(Self {
            near,
            shared,
            accepts: Some(std::thread::spawn(move || accept(&listener, &accepting))),
        })
    }

    /// URL of the listening end.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.near)
    }

    /// Injects faults into the next connections, one each, in order.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.faults.lock().extend(faults);
    }

    /// Number of connections with an injected fault.
    pub fn faults_injected(&self) -> usize {
        self.shared.injected.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Unblocks the accept loop.
        let _ = TcpStream::connect(self.near);
        let _ = self.accepts.take().map(JoinHandle::join);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((near, _)) = listener.accept()
        && !shared.stop.load(Ordering::SeqCst)
    {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || serve(near, &shared));
    }
}

/// Errors only close the connection; both peers observe that.
fn serve(mut near: TcpStream, shared: &Shared) {
    let mut faults = shared.faults.lock();
    let fault = if faults.is_empty() { None } else { Some(faults.remove(0)) };
    drop(faults);
    shared.injected.fetch_add(usize::from(fault.is_some()), Ordering::SeqCst);
    if fault == Some(Fault::SlowDown) {
        let _ = near.read(&mut [0; 1 << 12]).and_then(|_| near.write_all(SLOW_DOWN));
        return;
    }
    let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.target)) else { return };
    let (Ok(near_again), Ok(far_again)) = (near.try_clone(), far.try_clone()) else { return };
    let request_limit = if let Some(Fault::CutRequest(bytes)) = fault { Some(bytes) } else { None };
    let sending = std::thread::spawn(move || forward(near_again, far_again, request_limit, None));
    let (response_limit, piece) = match fault {
        Some(Fault::CutAnswer(bytes)) => (Some(bytes), None),
        Some(Fault::Dribble(piece)) => (None, Some(piece)),
        _ => (None, None),
    };
    forward(far, near, response_limit, piece);
    let _ = sending.join();
}

/// Forwards at most `limit` bytes in chunks of `piece` bytes, then closes both ends.
fn forward(mut from: TcpStream, mut to: TcpStream, limit: Option<usize>, piece: Option<usize>) {
    let mut left = limit.unwrap_or(usize::MAX);
    let mut buffer = vec![0; piece.unwrap_or(1 << 16)];
    while left > 0 {
        let read = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(read) => read.min(left),
        };
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
        left -= read;
        if piece.is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
