//! Parser of server-sent events: finds the complete events of a stream, whatever its chunks are.
//!
//! ```text
//!  data: {…}␤␤ data: {…}␤␤ data: {…│ connection lost      two events
//! ```
//!
//! Does not parse the content of events.

use memchr::memmem;

const PREFIX: &[u8] = b"data:";
const END: &[u8] = b"\n\n";
/// Last event of a stream.
const DONE: &[u8] = b"[DONE]";

/// Events of a stream of limited size.
#[derive(Debug)]
pub struct Events {
    /// Incomplete event.
    rest: Vec<u8>,
    max_bytes: usize,
    /// Bytes that may follow.
    remaining: usize,
}

/// A stream that exceeds its limit.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the stream is too large: more than {0} bytes")]
pub struct TooLarge(usize);

impl Events {
    /// Limits the stream to `max_bytes` bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self { rest: Vec::new(), max_bytes, remaining: max_bytes }
    }

    /// Appends bytes of the stream and passes the content of each complete event to `take`, until
    /// one fails.
    pub fn push<E: From<TooLarge>>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let left = self.remaining.checked_sub(bytes.len()).ok_or(TooLarge(self.max_bytes))?;
        self.remaining = left;
        if self.rest.is_empty() {
            let rest = take_complete(bytes, &mut take)?;
            self.rest.extend_from_slice(rest);
        } else {
            let mut rest = std::mem::take(&mut self.rest);
            rest.extend_from_slice(bytes);
            let incomplete = take_complete(&rest, &mut take)?.len();
            rest.drain(..rest.len().saturating_sub(incomplete));
            self.rest = rest;
        }
        Ok(())
    }
}

/// Passes on the content of complete events. Returns the bytes after them.
fn take_complete<'b, E>(
    bytes: &'b [u8],
    take: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<&'b [u8], E> {
    let mut rest = bytes;
    while let Some((event, after)) = split_event(rest) {
        let content = event.strip_prefix(PREFIX).map(<[u8]>::trim_ascii);
        if let Some(content) = content.filter(|content| *content != DONE) {
            take(content)?;
        }
        rest = after;
    }
    Ok(rest)
}

/// The first event of `bytes` and the bytes after it.
fn split_event(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (event, rest) = bytes.split_at_checked(memmem::find(bytes, END)?)?;
    Some((event, rest.strip_prefix(END)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{Events, TooLarge};

    const STREAM: &[u8] = b"data: {\"n\":1}\n\n: comment\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\n";

    /// Contents of the complete events after each chunk.
    fn contents(events: &mut Events, chunk: &[u8]) -> Result<Vec<String>, TooLarge> {
        let mut contents = Vec::new();
        events.push(chunk, |content| {
            contents.push(String::from_utf8(content.to_vec()).unwrap());
            Ok::<_, TooLarge>(())
        })?;
        Ok(contents)
    }

    #[test]
    fn an_incomplete_event_waits_for_its_end() {
        let mut events = Events::new(100);
        assert_eq!(contents(&mut events, b"data: {\"n\":1}\n"), Ok(vec![]));
        assert_eq!(contents(&mut events, b"\ndata: {\"n\":"), Ok(vec!["{\"n\":1}".to_owned()]));
    }

    #[test]
    fn a_stream_above_the_limit_is_an_error() {
        for chunk in [&b"data: 0123456789"[..], b"data: {}\n\n", b"\n\n", b": comment\n\n"] {
            let mut events = Events::new(4 * chunk.len());
            let results: Vec<_> = (0..5).map(|_| contents(&mut events, chunk).map(drop)).collect();
            assert_eq!(results[..4], vec![Ok(()); 4]);
            assert_eq!(results[4], Err(TooLarge(4 * chunk.len())));
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
            let mut events = Events::new(100);
            let mut found = Vec::new();
            for pair in cuts.windows(2) {
                found.extend(contents(&mut events, &STREAM[pair[0]..pair[1]]).unwrap());
            }
            prop_assert_eq!(found, ["{\"n\":1}", "{\"n\":2}"]);
        }
    }
}
