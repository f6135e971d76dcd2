//! A link to a server of this machine that fails as a test tells it: requests answered with 503,
//! answers cut off in the middle, bytes that dribble.
//!
//! It knows no more of HTTP than that a connection's first bytes are a request, so it closes each
//! connection that it has failed. Gone with the value.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

/// An overloaded server's words.
const SLOW_DOWN: &[u8] =
    b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its request is answered with 503.
    SlowDown,
    /// Its answer ends after so many bytes.
    CutAnswer(usize),
    /// Its request never arrives whole: it ends after so many bytes.
    CutRequest(usize),
    /// Its answer comes in pieces of so many bytes, with a pause after each.
    Dribble(usize),
}

/// A port of this machine behind which another one is.
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
    struck: AtomicUsize,
    stop: AtomicBool,
}

impl Link {
    /// A link to a port of this machine, without faults yet.
    pub fn to(target: u16) -> Result<Self> {
        Self::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?, target)
    }

    /// The same with a near end that listens already, as in a cluster's network.
    pub fn from(listener: TcpListener, target: u16) -> Result<Self> {
        let near = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            faults: Mutex::default(),
            struck: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        Ok(Self {
            near,
            shared,
            accepts: Some(std::thread::spawn(move || accept(&listener, &accepting))),
        })
    }

    /// The URL of the near end.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.near)
    }

    /// Faults for the next connections, one each, in this order.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// How many connections have had their fault.
    pub fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Whoever waits for a connection gets the last one.
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

/// A connection that breaks is a connection that broke; whoever is at its ends finds out.
fn serve(mut near: TcpStream, shared: &Shared) {
    let mut faults = shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
    let fault = if faults.is_empty() { None } else { Some(faults.remove(0)) };
    drop(faults);
    shared.struck.fetch_add(usize::from(fault.is_some()), Ordering::SeqCst);
    if fault == Some(Fault::SlowDown) {
        let _ = near.read(&mut [0; 1 << 12]).and_then(|_| near.write_all(SLOW_DOWN));
        return;
    }
    let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.target)) else { return };
    let (Ok(near_again), Ok(far_again)) = (near.try_clone(), far.try_clone()) else { return };
    let requests = if let Some(Fault::CutRequest(bytes)) = fault { Some(bytes) } else { None };
    let sending = std::thread::spawn(move || pass(near_again, far_again, requests, None));
    let (answers, piece) = match fault {
        Some(Fault::CutAnswer(bytes)) => (Some(bytes), None),
        Some(Fault::Dribble(piece)) => (None, Some(piece)),
        _ => (None, None),
    };
    pass(far, near, answers, piece);
    let _ = sending.join();
}

/// Passes on at most `limit` bytes, in pieces of `piece`, and then closes both ends.
fn pass(mut from: TcpStream, mut to: TcpStream, limit: Option<usize>, piece: Option<usize>) {
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
