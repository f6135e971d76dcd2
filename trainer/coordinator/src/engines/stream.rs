//! Parser of cumulative server-sent events: keeps the newest complete event, also after the
//! connection is lost.
//!
//! ```text
//!  data: {…1 token}␤␤ data: {…2 tokens}␤␤ data: {…3 to│ connection lost      newest: {…2 tokens}
//! ```
//!
//! Does not parse JSON: only the last event is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;

const PREFIX: &[u8] = b"data:";
const END: &[u8] = b"\n\n";
/// Last event of a stream.
const DONE: &[u8] = b"[DONE]";

/// The newest complete event of a stream.
#[derive(Debug)]
pub struct Events {
    /// Incomplete event.
    rest: Vec<u8>,
    newest: Vec<u8>,
    max_bytes: usize,
    chunks: Arc<AtomicU64>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("an event has more than {0} bytes")]
pub struct TooLong(usize);

impl Events {
    /// Limits events to `max_bytes` bytes; `chunks` counts calls of `push`.
    pub fn new(max_bytes: usize, chunks: Arc<AtomicU64>) -> Self {
        Self { rest: Vec::new(), newest: Vec::new(), max_bytes, chunks }
    }

    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        if self.rest.is_empty() {
            let complete = self.take_complete(bytes);
            self.rest.extend_from_slice(&bytes[complete..]);
        } else {
            let mut rest = std::mem::take(&mut self.rest);
            rest.extend_from_slice(bytes);
            let complete = self.take_complete(&rest);
            rest.drain(..complete);
            self.rest = rest;
        }
        if self.rest.len() > self.max_bytes { Err(TooLong(self.max_bytes)) } else { Ok(()) }
    }

    /// Keeps the newest complete event of `bytes`. Returns the length of all complete events.
    fn take_complete(&mut self, bytes: &[u8]) -> usize {
        let (mut complete, mut newest) = (0, None);
        for end in memmem::find_iter(bytes, END) {
            let content = bytes[complete..end].strip_prefix(PREFIX).map(<[u8]>::trim_ascii);
            newest = content.filter(|content| *content != DONE).or(newest);
            complete = end + END.len();
        }
        if let Some(newest) = newest {
            self.newest.clear();
            self.newest.extend_from_slice(newest);
        }
        complete
    }

    /// Content of the newest complete event.
    pub fn newest(&self) -> Option<&[u8]> {
        Some(self.newest.as_slice()).filter(|newest| !newest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{Arc, Events, TooLong};

    const STREAM: &[u8] = b"data: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\n";

    #[test]
    fn the_newest_complete_event_survives_an_incomplete_one() {
        let mut events = Events::new(100, Arc::default());
        events.push(b"data: {\"n\":1}\n").unwrap();
        assert_eq!(events.newest(), None);
        events.push(b"\ndata: {\"n\":").unwrap();
        assert_eq!(events.newest(), Some(&b"{\"n\":1}"[..]));
    }

    #[test]
    fn events_above_the_limit_are_errors() {
        let mut events = Events::new(8, Arc::default());
        assert_eq!(events.push(b"data: 0123456789"), Err(TooLong(8)));
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_result(
            cuts in proptest::collection::vec(0..STREAM.len(), 0..6),
        ) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut events = Events::new(100, Arc::default());
            for pair in cuts.windows(2) {
                events.push(&STREAM[pair[0]..pair[1]]).unwrap();
            }
            prop_assert_eq!(events.newest(), Some(&b"{\"n\":2}"[..]));
        }
    }
}
