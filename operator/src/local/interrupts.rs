//! Ctrl-C and SIGTERM, as requests to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Requests to stop, in order.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// From now on neither signal ends this process by itself.
    ///
    /// # Errors
    /// The signals cannot be listened to.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next request. May be dropped while it waits.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
