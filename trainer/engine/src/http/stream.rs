//! Response streams: partial responses of several requests in one stream, and server-sent events.
//! Dropping a stream aborts its unfinished requests.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use serde_json::Value;

use crate::engine::Pending;
use crate::generation::Generation;
use crate::request::GenerateError;

/// A partial or final response, or an error.
pub type Update = Result<Generation, GenerateError>;

/// Waits for the final response.
pub async fn final_response(pending: Pending) -> Update {
    pending.done.await.unwrap_or_else(|_| Err(ended()))
}

fn ended() -> GenerateError {
    GenerateError::Internal("the scheduler has exited".to_owned())
}

/// Partial and final responses of all requests, with the index of the request.
pub fn merged(pending: Vec<Pending>) -> BoxStream<'static, (usize, Update)> {
    let each = pending
        .into_iter()
        .enumerate()
        .map(|(index, pending)| updates(pending).map(move |update| (index, update)).boxed());
    stream::select_all(each).boxed()
}

fn updates(pending: Pending) -> impl Stream<Item = Update> {
    stream::unfold(Some(pending), |pending| async move { Some(next(pending?).await) })
}

/// Waits for the next partial or final response; a final one has priority.
async fn next(mut pending: Pending) -> (Update, Option<Pending>) {
    let partial = async {
        let newest = pending.partial.as_mut()?;
        newest.changed().await.ok()?;
        newest.borrow_and_update().clone()
    };
    tokio::select! {
        biased;
        result = &mut pending.done => (result.unwrap_or_else(|_| Err(ended())), None),
        Some(partial) = partial => (Ok(partial), Some(pending)),
        // The partial channel is closed; the final response follows.
        else => (final_response(pending).await, None),
    }
}

/// Events `data: …`, ended by `[DONE]`.
pub fn events(content: impl Stream<Item = Value> + Send + 'static) -> Response {
    let done = stream::once(async { Bytes::from_static(b"data: [DONE]\n\n") });
    let events = content
        .map(|value| Bytes::from(format!("data: {value}\n\n")))
        .chain(done)
        .map(Ok::<Bytes, Infallible>);
    ([("content-type", "text/event-stream; charset=utf-8")], Body::from_stream(events))
        .into_response()
}

/// Serializes a response; an error value if that fails.
pub fn json(content: &impl serde::Serialize) -> Value {
    serde_json::to_value(content).unwrap_or_else(|error| error_value(&error.to_string()))
}

/// `{"error": {"message": …}}`.
pub fn error_value(message: &str) -> Value {
    serde_json::json!({"error": {"message": message}})
}
