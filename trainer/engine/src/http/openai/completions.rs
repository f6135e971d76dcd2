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

use super::logprobs;
use super::refused;
use super::request::Body;
use super::usage::Usage;
use crate::answer::{Answer, Finish};
use crate::engine::Engine;
use crate::http::answers::parse;
use crate::http::stream::{Update, answer, error_value, events, merged};
use crate::request::GenerateError;

/// Completes prompts.
pub async fn completions(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse::<Body>(&body) {
        Ok(body) => completed(&engine, body).await.unwrap_or_else(|error| refused(&error)),
        Err(response) => *response,
    }
}

async fn completed(engine: &Engine, body: Body) -> Result<Response, GenerateError> {
    let pending = engine.generate_all(body.completions(engine)?).await?;
    if !body.streams() {
        let answers = try_join_all(pending.into_iter().map(answer)).await?;
        return Ok(Json(whole(&body, &answers)).into_response());
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

fn whole(body: &Body, answers: &[Answer]) -> Value {
    let mut usage = Usage::default();
    let choice = |(index, answer): (usize, &Answer)| {
        usage.set(index, answer);
        let reason = answer.meta_info.finish_reason.as_ref();
        json!({
            "index": index, "text": answer.text, "logprobs": logprobs::lists(answer, 0), "finish_reason": reason.map(Finish::kind),
            "matched_stop": reason.map(Finish::matched)
        })
    };
    let choices: Vec<Value> = answers.iter().enumerate().map(choice).collect();
    json!({
        "id": answers.first().map(|answer| &answer.meta_info.id), "object": "text_completion", "created": now(), "model": body.model(), "choices": choices,
        "usage": usage.value(body.n()), "metadata": {"weight_version": answers.first().map(|answer| &answer.meta_info.weight_version)}
    })
}

/// The stream's state: how much of each choice has been sent.
struct Chunks {
    body: Body,
    includes_usage: bool,
    /// Bytes of text and tokens sent, by choice.
    sent: BTreeMap<usize, (usize, usize)>,
    usage: Usage,
    id: String,
}

impl Chunks {
    /// The chunk of an update; at the end, the tokens used.
    fn next(&mut self, update: Option<(usize, Update)>) -> Option<Value> {
        match update {
            Some((index, Ok(answer))) => Some(self.chunk(index, &answer)),
            Some((_, Err(error))) => Some(error_value(&error.to_string())),
            None => self.includes_usage.then(|| {
                let usage = self.usage.value(self.body.n());
                json!({"id": self.id, "object": "text_completion", "created": now(), "model": self.body.model(), "choices": [], "usage": usage})
            }),
        }
    }

    fn chunk(&mut self, index: usize, answer: &Answer) -> Value {
        self.usage.set(index, answer);
        answer.meta_info.id.clone_into(&mut self.id);
        let (text, tokens) = self.sent.get(&index).copied().unwrap_or_default();
        self.sent.insert(index, (answer.text.len(), answer.output_ids.len()));
        let reason = answer.meta_info.finish_reason.as_ref();
        let choice = json!({
            "index": index, "text": answer.text.get(text..).unwrap_or_default(), "logprobs": logprobs::lists(answer, tokens),
            "finish_reason": reason.map(Finish::kind), "matched_stop": reason.map(Finish::matched)
        });
        json!({"id": self.id, "object": "text_completion", "created": now(), "model": self.body.model(), "choices": [choice], "usage": null})
    }
}
