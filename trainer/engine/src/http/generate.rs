//! `/generate`, in one piece or as server-sent events, and the health check that generates. A client that goes away aborts its request.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream};
use rljob_protocol::sglang::{GenerateRequest, GenerateResponse, SamplingParams};
use serde::Serialize;

use super::answers::{error_body, generate_error, parse};
use crate::engine::{Engine, Pending};
use crate::request::GenerateError;

/// How long a health check may take.
const HEALTH_LIMIT: Duration = Duration::from_secs(20);

/// Generates.
pub async fn generate(State(engine): State<Engine>, body: Bytes) -> Response {
    let request: GenerateRequest = match parse(&body) {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let streams = request.stream;
    match engine.generate(request).await {
        Ok(pending) if streams => event_stream(pending),
        Ok(pending) => match answer(pending).await {
            Ok(response) => Json(response).into_response(),
            Err(error) => generate_error(&error),
        },
        Err(error) => generate_error(&error),
    }
}

async fn answer(pending: Pending) -> Result<GenerateResponse, GenerateError> {
    pending.done.await.unwrap_or_else(|_| Err(ended()))
}

fn ended() -> GenerateError {
    GenerateError::Internal("the scheduler has ended".to_owned())
}

/// Events `data: …`, each the whole answer so far; the last two are the answer and `[DONE]`.
fn event_stream(pending: Pending) -> Response {
    ([("content-type", "text/event-stream; charset=utf-8")], Body::from_stream(events(pending))).into_response()
}

/// Where a stream is.
enum Stage {
    Running(Pending),
    Answered,
    Ended,
}

fn events(pending: Pending) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Stage::Running(pending), |stage| async move {
        match stage {
            Stage::Running(pending) => {
                let (event, stage) = next_event(pending).await;
                Some((Ok(event), stage))
            }
            Stage::Answered => Some((Ok(Bytes::from_static(b"data: [DONE]\n\n")), Stage::Ended)),
            Stage::Ended => None,
        }
    })
}

/// The next partial answer, or the answer. One that is ready goes before a partial one.
async fn next_event(mut pending: Pending) -> (Bytes, Stage) {
    let partial = async {
        let newest = pending.partial.as_mut()?;
        newest.changed().await.ok()?;
        newest.borrow_and_update().clone()
    };
    tokio::select! {
        biased;
        answer = &mut pending.done => (answer_event(answer.unwrap_or_else(|_| Err(ended()))), Stage::Answered),
        Some(partial) = partial => (event(&partial), Stage::Running(pending)),
        // Nothing partial will come any more: the answer is on its way.
        else => (answer_event(answer(pending).await), Stage::Answered),
    }
}

fn answer_event(answer: Result<GenerateResponse, GenerateError>) -> Bytes {
    match answer {
        Ok(response) => event(&response),
        Err(error) => event(&error_body(&error.to_string())),
    }
}

fn event<T: Serialize>(content: &T) -> Bytes {
    let json = serde_json::to_string(content).unwrap_or_else(|error| serde_json::json!({"error": {"message": error.to_string()}}).to_string());
    format!("data: {json}\n\n").into()
}

/// 200 if one token can be generated within 20 s; a paused engine cannot.
pub async fn health_generate(State(engine): State<Engine>) -> StatusCode {
    let sampling_params = SamplingParams {
        max_new_tokens: 1,
        temperature: 0.0,
        top_p: 1.0,
        top_k: -1,
        stop_token_ids: Vec::new(),
        ignore_eos: true,
        skip_special_tokens: true,
        sampling_seed: None,
    };
    let request = GenerateRequest { rid: "HEALTH_CHECK".to_owned(), input_ids: vec![0], sampling_params, return_logprob: false, stream: false };
    let generated = async { answer(engine.generate(request).await?).await };
    match tokio::time::timeout(HEALTH_LIMIT, generated).await {
        Ok(Ok(response)) if response.meta_info.completion_tokens == 1 => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}
