//! SIGTERM and SIGINT as requests to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Stream of requests to stop.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Installs the handlers: the signals no longer terminate this process. A program calls it
    /// before it reads or waits for anything: the first process of a container does not get a
    /// signal without a handler, and would run until the grace period of its pod is over. Needs the
    /// context of a runtime.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next request. Cancel safe.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
