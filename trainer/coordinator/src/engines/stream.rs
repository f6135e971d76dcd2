//! Server-sent events whose content is cumulative: of a stream only the newest whole event matters,
//! and it outlives the connection.
//!
//! ```text
//!  data: {…1 token}␤␤ data: {…2 tokens}␤␤ data: {…3 to│ connection lost      newest: {…2 tokens}
//! ```
//!
//! It parses no JSON: but for the last one, events are bytes that pass by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;

const PREFIX: &[u8] = b"data:";
const END: &[u8] = b"\n\n";
/// The event that closes a stream.
const DONE: &[u8] = b"[DONE]";

/// The newest whole event of a stream.
#[derive(Debug)]
pub struct Events {
    /// What is no whole event yet.
    rest: Vec<u8>,
    newest: Vec<u8>,
    longest: usize,
    /// Counts chunks.
    chunks: Arc<AtomicU64>,
}

/// An event longer than any answer to the request could be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("an event of more than {0} bytes")]
pub struct TooLong(usize);

impl Events {
    /// A stream whose events have at most `longest` bytes; `chunks` counts what comes.
    pub fn new(longest: usize, chunks: Arc<AtomicU64>) -> Self {
        Self { rest: Vec::new(), newest: Vec::new(), longest, chunks }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        if self.rest.is_empty() {
            let whole = self.take_whole(bytes);
            self.rest.extend_from_slice(&bytes[whole..]);
        } else {
            let mut rest = std::mem::take(&mut self.rest);
            rest.extend_from_slice(bytes);
            let whole = self.take_whole(&rest);
            rest.drain(..whole);
            self.rest = rest;
        }
        if self.rest.len() > self.longest { Err(TooLong(self.longest)) } else { Ok(()) }
    }

    /// Keeps the newest whole event of `bytes`; answers how many bytes are in whole events.
    fn take_whole(&mut self, bytes: &[u8]) -> usize {
        let (mut whole, mut newest) = (0, None);
        for end in memmem::find_iter(bytes, END) {
            let content = bytes[whole..end].strip_prefix(PREFIX).map(<[u8]>::trim_ascii);
            newest = content.filter(|content| *content != DONE).or(newest);
            whole = end + END.len();
        }
        if let Some(newest) = newest {
            self.newest.clear();
            self.newest.extend_from_slice(newest);
        }
        whole
    }

    /// What the newest whole event says.
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
    fn an_event_counts_when_it_is_whole_and_survives_what_follows() {
        let mut events = Events::new(100, Arc::default());
        events.push(b"data: {\"n\":1}\n").unwrap();
        assert_eq!(events.newest(), None);
        events.push(b"\ndata: {\"n\":").unwrap();
        assert_eq!(events.newest(), Some(&b"{\"n\":1}"[..]));
    }

    #[test]
    fn an_event_without_end_is_refused_when_it_is_longer_than_any_answer() {
        let mut events = Events::new(8, Arc::default());
        assert_eq!(events.push(b"data: 0123456789"), Err(TooLong(8)));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_where_the_network_cuts(cuts in proptest::collection::vec(0..STREAM.len(), 0..6)) {
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
