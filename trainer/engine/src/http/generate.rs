//! `/generate`, as one response or server-sent events, and the generating health check. A
//! disconnected client aborts its request.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use futures::future::try_join_all;

use super::control::HEALTH_LIMIT;
use super::increments::Increments;
use super::input::{GenerateInput, off_thread};
use super::neutral::strip_generate;
use super::responses::{generate_error, parse_stripped};
use super::stream::{Update, error_value, events, final_response, json, merged};
use crate::engine::Engine;
use crate::request::{GenerateError, Request, Sampling};

pub async fn generate(State(engine): State<Engine>, body: Bytes) -> Response {
    let input: GenerateInput = match parse_stripped(&body, strip_generate) {
        Ok(input) => input,
        Err(response) => return *response,
    };
    respond(&engine, input).await.unwrap_or_else(|error| generate_error(&error))
}

async fn respond(engine: &Engine, input: GenerateInput) -> Result<Response, GenerateError> {
    let streams = input.stream;
    let requested = off_thread(engine, move |engine| input.requests(engine)).await?;
    let is_list = requested.is_list;
    let pending = engine.generate_all(requested.requests).await?;
    if streams {
        let mut increments = engine.incremental_streams.then(Increments::default);
        return Ok(events(merged(pending).filter_map(move |(index, update)| {
            let update = increment(&mut increments, index, update);
            std::future::ready(update.map(|update| event(is_list.then_some(index), update)))
        })));
    }
    let mut generations = try_join_all(pending.into_iter().map(final_response)).await?;
    match generations.pop() {
        Some(only) if !is_list => Ok(Json(only).into_response()),
        last => {
            generations.extend(last);
            Ok(Json(generations).into_response())
        }
    }
}

/// The part of an update to send, if any.
fn increment(increments: &mut Option<Increments>, index: usize, update: Update) -> Option<Update> {
    match (increments, update) {
        (Some(increments), Ok(generation)) => increments.next(index, generation).map(Ok),
        (_, update) => Some(update),
    }
}

fn event(index: Option<usize>, update: Update) -> serde_json::Value {
    match update {
        Ok(mut generation) => {
            generation.index = index;
            json(&generation)
        }
        Err(error) => error_value(&error.to_string()),
    }
}

/// Returns 200 if one token is generated, or one classified, within 20 s; a paused engine that
/// generates returns 503.
pub async fn health_generate(State(engine): State<Engine>) -> StatusCode {
    let is_healthy = async {
        if engine.info().is_generation {
            generates(&engine).await
        } else {
            engine.classify_all(&[vec![0]]).await.is_ok()
        }
    };
    match tokio::time::timeout(HEALTH_LIMIT, is_healthy).await {
        Ok(true) => StatusCode::OK,
        Ok(false) | Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn generates(engine: &Engine) -> bool {
    let sampling = Sampling {
        max_new_tokens: Some(1),
        temperature: 0.0,
        ignore_eos: true,
        ..Sampling::default()
    };
    let request = Request {
        rid: format!("HEALTH_CHECK_{}", engine.new_rid()),
        input_ids: vec![0],
        sampling,
        logprobs: None,
        stream: false,
    };
    let Ok(pending) = engine.generate(request).await else { return false };
    final_response(pending).await.is_ok_and(|generation| generation.output_ids.len() == 1)
}
