//! Streams of chat completions as server-sent events. Comments keep the connection of a client with
//! a read timeout open until the completions are whole.
//!
//! ```text
//!  whole within 5 s ─▶ status, events                 later ─▶ 200, comments, then events or error
//! ```

use std::convert::Infallible;
use std::fmt::Display;
use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream, StreamExt as _};
use serde_json::Value;
use tokio::time::timeout;

use super::answer::Completed;
use super::error::ProxyError;

/// Time between two comments.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// A comment, which clients ignore.
const COMMENT: &str = ": keep-alive\n\n";

/// Completions in progress.
pub type Pending = Pin<Box<dyn Future<Output = Result<Completed, ProxyError>> + Send>>;

/// Streams completions as `chunks`, with comments at an interval. An error within the first
/// interval has its status.
pub async fn respond(
    mut completed: Pending,
    interval: Duration,
    chunks: impl Fn(&Completed) -> Vec<Value> + Send + 'static,
) -> Result<Response, ProxyError> {
    let body = match timeout(interval, &mut completed).await {
        Ok(completed) => Body::from(events(&chunks(&completed?))),
        Err(_) => Body::from_stream(with_comments(completed, interval, chunks)),
    };
    Ok(([(CONTENT_TYPE, "text/event-stream")], body).into_response())
}

fn with_comments(
    completed: Pending,
    interval: Duration,
    chunks: impl Fn(&Completed) -> Vec<Value> + Send + 'static,
) -> impl Stream<Item = Result<String, Infallible>> {
    let later = stream::unfold((Some(completed), chunks), move |(pending, chunks)| async move {
        let mut completed = pending?;
        let text = match timeout(interval, &mut completed).await {
            Err(_) => return Some((Ok(COMMENT.to_owned()), (Some(completed), chunks))),
            Ok(Ok(completed)) => events(&chunks(&completed)),
            Ok(Err(error)) => event(&error.object()),
        };
        Some((Ok(text), (None, chunks)))
    });
    stream::once(ready(Ok(COMMENT.to_owned()))).chain(later)
}

fn events(chunks: &[Value]) -> String {
    chunks.iter().map(|chunk| event(chunk)).chain([event(&"[DONE]")]).collect()
}

fn event(data: &dyn Display) -> String {
    format!("data: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;

    /// The stream of completions that end after two comments.
    async fn sent(ended: Result<(), ProxyError>) -> Vec<String> {
        let (end, result) = oneshot::channel::<Result<(), ProxyError>>();
        let completed = Completed { id: "c".to_owned(), prompt_tokens: 1, choices: Vec::new() };
        let pending = Box::pin(async move { result.await.unwrap().map(|()| completed) });
        let interval = Duration::from_millis(1);
        let chunks = |completed: &Completed| vec![json!(completed.id)];
        let mut stream = Box::pin(with_comments(pending, interval, chunks));
        for _ in 0..2 {
            assert_eq!(stream.next().await, Some(Ok(COMMENT.to_owned())));
        }
        end.send(ended).unwrap();
        let rest = stream.map(|text| text.unwrap()).collect::<Vec<_>>().await;
        rest.into_iter().filter(|text| text != COMMENT).collect()
    }

    #[tokio::test]
    async fn comments_are_sent_until_the_completions_are_whole_or_fail() {
        assert_eq!(sent(Ok(())).await, ["data: \"c\"\n\ndata: [DONE]\n\n"]);
        let failed = sent(Err(ProxyError::Ended)).await;
        assert_eq!(failed, [event(&ProxyError::Ended.object())]);
    }

    #[tokio::test]
    async fn an_error_before_the_first_comment_has_its_status() {
        let pending = Box::pin(async { Err(ProxyError::Turns(2)) });
        let error = respond(pending, INTERVAL, |_| Vec::new()).await.unwrap_err();
        assert_eq!(error, ProxyError::Turns(2));
    }
}
