//! `/v1/completions`.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use futures::future::try_join_all;
use serde_json::{Value, json};

use super::error_response;
use super::logprobs;
use super::request::Body;
use super::usage::Usage;
use crate::engine::Engine;
use crate::generation::{FinishReason, Generation};
use crate::http::input::off_thread;
use crate::http::neutral::strip_openai;
use crate::http::responses::parse_stripped;
use crate::http::stream::{Update, error_value, events, final_response, merged};
use crate::request::GenerateError;

pub async fn completions(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse_stripped::<Body>(&body, strip_openai) {
        Ok(body) => completed(&engine, body).await.unwrap_or_else(|error| error_response(&error)),
        Err(response) => *response,
    }
}

async fn completed(engine: &Engine, body: Body) -> Result<Response, GenerateError> {
    let tokenized = body.clone();
    let requests = off_thread(engine, move |engine| tokenized.completions(engine)).await?;
    let pending = engine.generate_all(requests).await?;
    if !body.streams() {
        let generations = try_join_all(pending.into_iter().map(final_response)).await?;
        return Ok(Json(whole(&body, &generations)).into_response());
    }
    let mut chunks = Chunks {
        includes_usage: body.includes_usage(),
        body,
        sent: BTreeMap::new(),
        usage: Usage::default(),
        id: String::new(),
    };
    let updates = merged(pending).map(Some).chain(futures::stream::once(async { None }));
    Ok(events(updates.filter_map(move |update| std::future::ready(chunks.next(update)))))
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn whole(body: &Body, generations: &[Generation]) -> Value {
    let mut usage = Usage::default();
    let choice = |(index, generation): (usize, &Generation)| {
        usage.set(index, generation);
        let reason = generation.meta_info.finish_reason.as_ref();
        json!({
            "index": index, "text": generation.text, "logprobs": logprobs::lists(generation, 0),
            "finish_reason": reason.map(FinishReason::kind),
            "matched_stop": reason.map(FinishReason::matched)
        })
    };
    let choices: Vec<Value> = generations.iter().enumerate().map(choice).collect();
    let first = generations.first().map(|generation| &generation.meta_info);
    json!({
        "id": first.map(|meta| &meta.id), "object": "text_completion",
        "created": now(), "model": body.model(), "choices": choices,
        "usage": usage.value(body.n()),
        "metadata": {
            "weight_version": first.map(|meta| &meta.weight_version)
        }
    })
}

/// Stream state: the sent part of each choice.
struct Chunks {
    body: Body,
    includes_usage: bool,
    /// Bytes of text and number of tokens sent, by choice.
    sent: BTreeMap<usize, (usize, usize)>,
    usage: Usage,
    id: String,
}

impl Chunks {
    /// Returns the chunk of an update; at the end, the usage.
    fn next(&mut self, update: Option<(usize, Update)>) -> Option<Value> {
        match update {
            Some((index, Ok(generation))) => Some(self.chunk(index, &generation)),
            Some((_, Err(error))) => Some(error_value(&error.to_string())),
            None => self.includes_usage.then(|| {
                let usage = self.usage.value(self.body.n());
                json!({"id": self.id, "object": "text_completion", "created": now(),
                    "model": self.body.model(), "choices": [], "usage": usage})
            }),
        }
    }

    fn chunk(&mut self, index: usize, generation: &Generation) -> Value {
        self.usage.set(index, generation);
        generation.meta_info.id.clone_into(&mut self.id);
        let (text, tokens) = self.sent.get(&index).copied().unwrap_or_default();
        self.sent.insert(index, (generation.text.len(), generation.output_ids.len()));
        let reason = generation.meta_info.finish_reason.as_ref();
        let choice = json!({
            "index": index, "text": generation.text.get(text..).unwrap_or_default(),
            "logprobs": logprobs::lists(generation, tokens),
            "finish_reason": reason.map(FinishReason::kind),
            "matched_stop": reason.map(FinishReason::matched)
        });
        json!({"id": self.id, "object": "text_completion", "created": now(),
            "model": self.body.model(), "choices": [choice], "usage": null})
    }
}
