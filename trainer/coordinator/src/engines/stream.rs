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
    /// Events that may follow.
    remaining: usize,
    chunks: Arc<AtomicU64>,
}

/// A stream that exceeds its limits.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StreamError {
    #[error("an event is too large: more than {0} bytes")]
    TooLong(usize),
    #[error("the stream has more events than tokens")]
    TooMany,
}

impl Events {
    /// Limits the stream to `max_events` events of `max_bytes` bytes; `chunks` counts calls of
    /// `push`.
    pub fn new(max_events: usize, max_bytes: usize, chunks: Arc<AtomicU64>) -> Self {
        Self { rest: Vec::new(), newest: Vec::new(), max_bytes, remaining: max_events, chunks }
    }

    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        if self.rest.is_empty() {
            let rest = self.take_complete(bytes)?;
            self.rest.extend_from_slice(rest);
        } else {
            let mut rest = std::mem::take(&mut self.rest);
            rest.extend_from_slice(bytes);
            let incomplete = self.take_complete(&rest)?.len();
            rest.drain(..rest.len().saturating_sub(incomplete));
            self.rest = rest;
        }
        if self.rest.len() > self.max_bytes {
            return Err(StreamError::TooLong(self.max_bytes));
        }
        Ok(())
    }

    /// Keeps the newest complete event of `bytes`. Returns the bytes after it.
    fn take_complete<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], StreamError> {
        let (mut rest, mut newest) = (bytes, None);
        while let Some((event, after)) = split_event(rest) {
            self.remaining = self.remaining.checked_sub(1).ok_or(StreamError::TooMany)?;
            if event.len() > self.max_bytes {
                return Err(StreamError::TooLong(self.max_bytes));
            }
            let content = event.strip_prefix(PREFIX).map(<[u8]>::trim_ascii);
            newest = content.filter(|content| *content != DONE).or(newest);
            rest = after;
        }
        if let Some(newest) = newest {
            self.newest.clear();
            self.newest.extend_from_slice(newest);
        }
        Ok(rest)
    }

    /// Content of the newest complete event.
    pub fn newest(&self) -> Option<&[u8]> {
        Some(self.newest.as_slice()).filter(|newest| !newest.is_empty())
    }
}

/// The first event of `bytes` and the bytes after it.
fn split_event(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (event, rest) = bytes.split_at_checked(memmem::find(bytes, END)?)?;
    Some((event, rest.strip_prefix(END)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{Arc, Events, StreamError};

    const STREAM: &[u8] = b"data: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\n";

    #[test]
    fn the_newest_complete_event_survives_an_incomplete_one() {
        let mut events = Events::new(10, 100, Arc::default());
        events.push(b"data: {\"n\":1}\n").unwrap();
        assert_eq!(events.newest(), None);
        events.push(b"\ndata: {\"n\":").unwrap();
        assert_eq!(events.newest(), Some(&b"{\"n\":1}"[..]));
    }

    #[test]
    fn events_above_the_limit_are_errors() {
        let mut events = Events::new(10, 8, Arc::default());
        assert_eq!(events.push(b"data: 0123456789"), Err(StreamError::TooLong(8)));
        let mut events = Events::new(10, 8, Arc::default());
        assert_eq!(events.push(b"data: 0123456789\n\n"), Err(StreamError::TooLong(8)));
    }

    #[test]
    fn a_stream_that_does_not_end_is_an_error() {
        for event in [&b"data: {}\n\n"[..], b"\n\n", b": comment\n\n"] {
            let mut events = Events::new(5, 100, Arc::default());
            let results: Vec<_> = (0..6).map(|_| events.push(event)).collect();
            assert_eq!(results[..5], vec![Ok(()); 5]);
            assert_eq!(results[5], Err(StreamError::TooMany));
        }
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_result(
            cuts in proptest::collection::vec(0..STREAM.len(), 0..6),
        ) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut events = Events::new(10, 100, Arc::default());
            for pair in cuts.windows(2) {
                events.push(&STREAM[pair[0]..pair[1]]).unwrap();
            }
            prop_assert_eq!(events.newest(), Some(&b"{\"n\":2}"[..]));
        }
    }
}
