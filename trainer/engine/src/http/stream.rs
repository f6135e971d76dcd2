//! Answers as they come: those of several requests in one stream, and server-sent events. Dropping
//! the stream aborts what is not answered.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use serde_json::Value;

use crate::answer::Answer;
use crate::engine::Pending;
use crate::request::GenerateError;

/// An answer so far, or the last one, or why there is none.
pub type Update = Result<Answer, GenerateError>;

/// Waits for the one answer.
pub async fn answer(pending: Pending) -> Update {
    pending.done.await.unwrap_or_else(|_| Err(ended()))
}

/// The scheduler's thread is gone.
fn ended() -> GenerateError {
    GenerateError::Internal("the scheduler has ended".to_owned())
}

/// Answers so far, then the answer, of all requests; each with the request's index.
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

/// The next answer so far, or the answer. One that is ready goes before one so far.
async fn next(mut pending: Pending) -> (Update, Option<Pending>) {
    let partial = async {
        let newest = pending.partial.as_mut()?;
        newest.changed().await.ok()?;
        newest.borrow_and_update().clone()
    };
    tokio::select! {
        biased;
        answer = &mut pending.done => (answer.unwrap_or_else(|_| Err(ended())), None),
        Some(partial) = partial => (Ok(partial), Some(pending)),
        // Nothing partial will come any more: the answer is on its way.
        else => (answer(pending).await, None),
    }
}

/// Events `data: …`, the last one `[DONE]`.
pub fn events(content: impl Stream<Item = Value> + Send + 'static) -> Response {
    let done = stream::once(async { Bytes::from_static(b"data: [DONE]\n\n") });
    let events = content
        .map(|value| Bytes::from(format!("data: {value}\n\n")))
        .chain(done)
        .map(Ok::<Bytes, Infallible>);
    ([("content-type", "text/event-stream; charset=utf-8")], Body::from_stream(events))
        .into_response()
}

/// JSON of what cannot fail to be JSON; an error in its place if it does.
pub fn json(content: &impl serde::Serialize) -> Value {
    serde_json::to_value(content).unwrap_or_else(|error| error_value(&error.to_string()))
}

/// `{"error": {"message": …}}`.
pub fn error_value(message: &str) -> Value {
    serde_json::json!({"error": {"message": message}})
}
