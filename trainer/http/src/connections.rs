//! The open connections of a server. When there are too many, the one that has been idle for
//! longest is closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Connections by number, in the order in which they were accepted.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    open: Mutex<(u64, BTreeMap<u64, Entry>)>,
}

#[derive(Clone, Debug)]
struct Entry {
    requests: Arc<AtomicUsize>,
    close: CancellationToken,
}

/// An open connection; dropping it makes room.
#[derive(Debug)]
pub struct Connection {
    connections: Arc<Connections>,
    number: u64,
    requests: Arc<AtomicUsize>,
    /// Cancelled when the connection must make room.
    pub close: CancellationToken,
}

/// A request in progress, until its response is sent.
#[derive(Debug)]
pub struct Request(Arc<AtomicUsize>);

impl Connections {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default() })
    }

    /// Admits a connection, closing the oldest one without a request if there are too many. `None`
    /// if all are busy.
    pub fn admit(self: &Arc<Self>) -> Option<Connection> {
        let mut open = self.open.lock();
        let (next, entries) = &mut *open;
        if entries.len() >= self.limit {
            let is_idle = |entry: &Entry| entry.requests.load(Ordering::Acquire) == 0;
            let oldest = entries.iter().find(|(_, entry)| is_idle(entry)).map(|(key, _)| *key)?;
            if let Some(entry) = entries.remove(&oldest) {
                entry.close.cancel();
            }
        }
        let number = *next;
        *next = next.wrapping_add(1);
        let entry = Entry { requests: Arc::default(), close: CancellationToken::new() };
        entries.insert(number, entry.clone());
        let Entry { requests, close } = entry;
        Some(Connection { connections: Arc::clone(self), number, requests, close })
    }

    fn remove(&self, number: u64) {
        self.open.lock().1.remove(&number);
    }
}

impl Connection {
    pub fn counter(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.requests)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.remove(self.number);
    }
}

impl Request {
    pub fn start(requests: &Arc<AtomicUsize>) -> Self {
        requests.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(requests))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_idle_connection_makes_room_and_busy_ones_stay() {
        let connections = Connections::new(2);
        let busy = connections.admit().unwrap();
        let request = Request::start(&busy.counter());
        let idle = connections.admit().unwrap();
        let new = connections.admit().unwrap();
        assert_eq!(
            [&busy, &idle, &new].map(|connection| connection.close.is_cancelled()),
            [false, true, false]
        );
        let _second = Request::start(&new.counter());
        assert!(connections.admit().is_none(), "all are busy");
        drop(request);
        assert!(connections.admit().is_some());
        drop((idle, new, busy));
        assert!(connections.admit().is_some());
    }
}
