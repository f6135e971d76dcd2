//! Gate of an engine's streams: counts the open ones, and opens none during a weight update.
//!
//! ```text
//!  open ─▶ 1 ─▶ 2 ─▶ close: 2, no further ─▶ 1 ─▶ 0: ended ─▶ reopen
//! ```

use std::sync::Arc;

use tokio::sync::watch;

/// Streams of an engine. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    state: Arc<watch::Sender<State>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    open: u32,
    closed: bool,
}

impl Streams {
    /// Counts a stream until the result is dropped; `None` while the gate is closed.
    pub fn open(&self) -> Option<OpenStream> {
        let is_open = self.state.send_if_modified(|state| {
            if !state.closed {
                state.open = state.open.saturating_add(1);
            }
            !state.closed
        });
        is_open.then(|| OpenStream { streams: self.clone() })
    }

    /// Opens no further streams until [`Self::reopen`].
    pub fn close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    pub fn reopen(&self) {
        self.state.send_modify(|state| state.closed = false);
    }

    /// Waits until no stream is open. Cancel safe.
    pub async fn ended(&self) {
        // Fails only without a sender, and `self` is one.
        let _ = self.state.subscribe().wait_for(|state| state.open == 0).await;
    }
}

/// An open stream.
#[derive(Debug)]
pub struct OpenStream {
    streams: Streams,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.state.send_modify(|state| state.open = state.open.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::Streams;

    #[tokio::test]
    async fn a_closed_gate_opens_no_stream_and_the_wait_ends_with_the_last_one() {
        let streams = Streams::default();
        let (first, second) = (streams.open().unwrap(), streams.open().unwrap());
        streams.close();
        assert!(streams.open().is_none());
        let ended = streams.ended();
        tokio::pin!(ended);
        assert_eq!(ended.as_mut().now_or_never(), None);
        drop(first);
        assert_eq!(ended.as_mut().now_or_never(), None);
        drop(second);
        ended.await;
        assert!(streams.open().is_none(), "the gate is closed until the update ends");
        streams.reopen();
        let third = streams.open().unwrap();
        assert_eq!(streams.ended().now_or_never(), None);
        drop(third);
        streams.ended().await;
    }
}
