//! Streams of completions as server-sent events. Comments keep the connection of a client with
//! a read timeout open until the completions are whole.
//!
//! ```text
//!  whole within 5 s ─▶ status, events                 later ─▶ 200, comments, then events or error
//! ```

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt as _};
use serde_json::Value;
use tokio::time::timeout;

use super::answer::Completed;
use super::error::ProxyError;

/// Time between two comments.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Text of a comment, which clients ignore.
const COMMENT: &str = "keep-alive";

/// Completions in progress.
pub type Pending = Pin<Box<dyn Future<Output = Result<Completed, ProxyError>> + Send>>;

/// Streams completions as `events`, with comments at an interval. An error within the first
/// interval has its status.
pub async fn respond(
    mut completed: Pending,
    interval: Duration,
    events: impl Fn(&Completed) -> Vec<Event> + Send + 'static,
) -> Result<Response, ProxyError> {
    let events = if let Ok(completed) = timeout(interval, &mut completed).await {
        stream::iter(events(&completed?)).boxed()
    } else {
        let later = stream::once(completed).flat_map(move |completed| {
            stream::iter(match completed {
                Ok(completed) => events(&completed),
                Err(error) => vec![Event::default().data(error.object().to_string())],
            })
        });
        stream::once(ready(Event::default().comment(COMMENT))).chain(later).boxed()
    };
    let comments = KeepAlive::new().interval(interval).text(COMMENT);
    Ok(Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(comments).into_response())
}

/// Events of the API of responses, whose names are their types.
pub fn named(events: &[Value]) -> Vec<Event> {
    let event = |event: &Value| {
        let name = event["type"].as_str().unwrap_or_default();
        Event::default().event(name).data(event.to_string())
    };
    events.iter().map(event).collect()
}

/// Events of chunks, and the end of the stream.
pub fn chunks(chunks: &[Value]) -> Vec<Event> {
    let texts = chunks.iter().map(Value::to_string).chain(["[DONE]".to_owned()]);
    texts.map(|text| Event::default().data(text)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;

    const LINE: &str = ": keep-alive\n\n";

    /// What follows two comments when the completions end after them.
    async fn sent(ended: Result<(), ProxyError>) -> String {
        let (end, result) = oneshot::channel::<Result<(), ProxyError>>();
        let id = "c".to_owned();
        let completed = Completed { id, prompt_tokens: 1, prompt_ids: None, choices: Vec::new() };
        let pending = Box::pin(async move { result.await.unwrap().map(|()| completed) });
        let events = |completed: &Completed| chunks(&[json!(completed.id)]);
        let response = respond(pending, Duration::from_millis(1), events).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let bytes = response.into_body().into_data_stream();
        let mut texts = bytes.map(|bytes| String::from_utf8(bytes.unwrap().to_vec()).unwrap());
        for _ in 0..2 {
            assert_eq!(texts.next().await.as_deref(), Some(LINE));
        }
        end.send(ended).unwrap();
        texts.filter(|text| ready(text != LINE)).collect::<Vec<_>>().await.concat()
    }

    #[tokio::test]
    async fn comments_are_sent_until_the_completions_are_whole_or_fail() {
        assert_eq!(sent(Ok(())).await, "data: \"c\"\n\ndata: [DONE]\n\n");
        let failed = sent(Err(ProxyError::Ended)).await;
        assert_eq!(failed, format!("data: {}\n\n", ProxyError::Ended.object()));
    }

    #[tokio::test]
    async fn an_error_before_the_first_comment_has_its_status() {
        let pending = Box::pin(async { Err(ProxyError::Turns(2)) });
        let error = respond(pending, INTERVAL, |_| Vec::new()).await.unwrap_err();
        assert_eq!(error, ProxyError::Turns(2));
    }
}
