//! Streams of completions as server-sent events. Comments keep the connection of a client with
//! a read timeout open while nothing is new.
//!
//! ```text
//!  something new within 5 s ─▶ status, events …       later ─▶ 200, comments, events … or error
//! ```
//!
//! A stream reads the completions when its client can take events: a slow client gets fewer and
//! larger ones.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt as _};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use super::answer::Completed;
use super::error::ProxyError;

/// Time between two comments.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Text of a comment, which clients ignore.
const COMMENT: &str = "keep-alive";

/// Completions in progress.
pub type Pending = Pin<Box<dyn Future<Output = Result<Completed, ProxyError>> + Send>>;

/// Events of a stream in the shape of an API.
pub trait Encoder: Send {
    /// Events with what is new in the completions, which are whole at last.
    fn events(&mut self, completed: &Completed) -> Vec<Event>;
}

/// Completions while they are sampled, and their result.
pub struct Progress {
    pub partial: watch::Receiver<Completed>,
    /// `None` when the stream has it.
    pub completed: Option<Pending>,
    pub encoder: Box<dyn Encoder>,
}

/// Streams completions, with comments at an interval. An error within the first interval, before
/// the first event, has its status.
pub async fn respond(mut progress: Progress, interval: Duration) -> Result<Response, ProxyError> {
    let first = match timeout(interval, progress.next()).await {
        Ok(Some(events)) => events?,
        Ok(None) => Vec::new(),
        Err(_) => vec![Event::default().comment(COMMENT)],
    };
    let later = stream::unfold(progress, async |mut progress| {
        let events = match progress.next().await? {
            Ok(events) => events,
            Err(error) => vec![Event::default().data(error.object().to_string())],
        };
        Some((events, progress))
    });
    let events = stream::once(ready(first)).chain(later).flat_map(stream::iter);
    let comments = KeepAlive::new().interval(interval).text(COMMENT);
    Ok(Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(comments).into_response())
}

impl Progress {
    /// The next events; `None` after the result.
    async fn next(&mut self) -> Option<Result<Vec<Event>, ProxyError>> {
        let Self { partial, completed, encoder } = self;
        loop {
            tokio::select! {
                biased;
                result = completed.as_mut()? => {
                    *completed = None;
                    return Some(result.map(|completed| encoder.events(&completed)));
                }
                Ok(()) = partial.changed() => {
                    let events = encoder.events(&partial.borrow_and_update());
                    if !events.is_empty() {
                        return Some(Ok(events));
                    }
                }
            }
        }
    }
}

/// Events of the API of responses, whose names are their types.
pub fn named(events: &[Value]) -> Vec<Event> {
    let event = |event: &Value| {
        let name = event["type"].as_str().unwrap_or_default();
        Event::default().event(name).data(event.to_string())
    };
    events.iter().map(event).collect()
}

/// Events of chunks, and the end of the stream after the last.
pub fn chunks(chunks: &[Value], is_end: bool) -> Vec<Event> {
    let end = is_end.then(|| "[DONE]".to_owned());
    let texts = chunks.iter().map(Value::to_string).chain(end);
    texts.map(|text| Event::default().data(text)).collect()
}

#[cfg(test)]
mod tests;
