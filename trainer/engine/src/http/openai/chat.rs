//! `/v1/chat/completions`.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use futures::future::try_join_all;
use futures::stream;
use serde_json::{Value, json};

use super::completions::now;
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

pub async fn chat_completions(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse_stripped::<Body>(&body, strip_openai) {
        Ok(body) => respond(&engine, body).await.unwrap_or_else(|error| error_response(&error)),
        Err(response) => *response,
    }
}

async fn respond(engine: &Engine, body: Body) -> Result<Response, GenerateError> {
    let tokenized = body.clone();
    let requests = off_thread(engine, move |engine| tokenized.chat(engine)).await?;
    let pending = engine.generate_all(requests).await?;
    if !body.streams() {
        let generations = try_join_all(pending.into_iter().map(final_response)).await?;
        return Ok(Json(whole(&body, &generations)).into_response());
    }
    let mut chunks = Chunks {
        body,
        sent: BTreeMap::new(),
        usage: Usage::default(),
        id: String::new(),
        ended: Vec::new(),
    };
    let updates = merged(pending).map(Some).chain(stream::once(async { None }));
    Ok(events(updates.flat_map(move |update| stream::iter(chunks.next(update)))))
}

fn whole(body: &Body, generations: &[Generation]) -> Value {
    let mut usage = Usage::default();
    let choice = |(index, generation): (usize, &Generation)| {
        usage.set(index, generation);
        let content = Some(&generation.text).filter(|text| !text.is_empty());
        let reason = generation.meta_info.finish_reason.as_ref();
        json!({
            "index": index, "message": {"role": "assistant", "content": content,
            "reasoning_content": null, "tool_calls": null},
            "logprobs": logprobs::objects(generation, 0),
            "finish_reason": reason.map(FinishReason::kind),
            "matched_stop": reason.map(FinishReason::matched)
        })
    };
    let choices: Vec<Value> = generations.iter().enumerate().map(choice).collect();
    let first = generations.first().map(|generation| &generation.meta_info);
    json!({
        "id": first.map(|meta| &meta.id), "object": "chat.completion",
        "created": now(), "model": body.model(), "choices": choices,
        "usage": usage.value(body.n()),
        "metadata": {
            "weight_version": first.map(|meta| &meta.weight_version)
        }
    })
}

/// Stream state: the sent part of each choice, and the finished choices.
struct Chunks {
    body: Body,
    /// Bytes of text and number of tokens sent, by choice.
    sent: BTreeMap<usize, (usize, usize)>,
    usage: Usage,
    id: String,
    ended: Vec<(usize, FinishReason)>,
}

impl Chunks {
    /// Returns the chunks of an update: a role before the first text of a choice; at the end, the
    /// finish reasons and the usage.
    fn next(&mut self, update: Option<(usize, Update)>) -> Vec<Value> {
        match update {
            Some((index, Ok(generation))) => self.generation_chunks(index, &generation),
            Some((_, Err(error))) => vec![error_value(&error.to_string())],
            None => self.last(),
        }
    }

    fn generation_chunks(&mut self, index: usize, generation: &Generation) -> Vec<Value> {
        self.usage.set(index, generation);
        generation.meta_info.id.clone_into(&mut self.id);
        let mut chunks = Vec::new();
        let sent = self.sent.get(&index).copied();
        if sent.is_none() {
            chunks.push(self.chunk(
                index,
                &json!({"reasoning_content": null, "role": "assistant", "content": ""}),
                &Value::Null,
                None,
            ));
        }
        let (text, tokens) = sent.unwrap_or_default();
        let delta = generation.text.get(text..).unwrap_or_default();
        if !delta.is_empty() {
            chunks.push(self.chunk(
                index,
                &json!({"reasoning_content": null, "content": delta}),
                &logprobs::objects(generation, tokens),
                None,
            ));
        }
        self.sent.insert(index, (generation.text.len(), generation.output_ids.len()));
        self.ended.extend(generation.meta_info.finish_reason.clone().map(|reason| (index, reason)));
        chunks
    }

    fn last(&mut self) -> Vec<Value> {
        let ended = std::mem::take(&mut self.ended);
        let mut chunks: Vec<Value> = ended
            .iter()
            .map(|(index, reason)| {
                self.chunk(*index, &json!({"reasoning_content": null}), &Value::Null, Some(reason))
            })
            .collect();
        if self.body.includes_usage() {
            let usage = self.usage.value(self.body.n());
            chunks.push(json!({"id": self.id, "object": "chat.completion.chunk", "created": now(),
                "model": self.body.model(), "choices": [], "usage": usage}));
        }
        chunks
    }

    fn chunk(
        &self,
        index: usize,
        delta: &Value,
        logprobs: &Value,
        reason: Option<&FinishReason>,
    ) -> Value {
        let (kind, matched) = (reason.map(FinishReason::kind), reason.map(FinishReason::matched));
        let choice = json!({"index": index, "delta": delta, "logprobs": logprobs,
            "finish_reason": kind, "matched_stop": matched});
        json!({"id": self.id, "object": "chat.completion.chunk", "created": now(),
            "model": self.body.model(), "choices": [choice]})
    }
}
