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
use super::logprobs;
use super::refused;
use super::request::Body;
use super::usage::Usage;
use crate::answer::{Answer, Finish};
use crate::engine::Engine;
use crate::http::answers::parse;
use crate::http::stream::{Update, answer, error_value, events, merged};
use crate::request::GenerateError;

/// Answers a conversation.
pub async fn chat_completions(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse::<Body>(&body) {
        Ok(body) => answered(&engine, body).await.unwrap_or_else(|error| refused(&error)),
        Err(response) => *response,
    }
}

async fn answered(engine: &Engine, body: Body) -> Result<Response, GenerateError> {
    let pending = engine.generate_all(body.chat(engine)?).await?;
    if !body.streams() {
        let answers = try_join_all(pending.into_iter().map(answer)).await?;
        return Ok(Json(whole(&body, &answers)).into_response());
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

fn whole(body: &Body, answers: &[Answer]) -> Value {
    let mut usage = Usage::default();
    let choice = |(index, answer): (usize, &Answer)| {
        usage.set(index, answer);
        let content = Some(&answer.text).filter(|text| !text.is_empty());
        let reason = answer.meta_info.finish_reason.as_ref();
        json!({
            "index": index, "message": {"role": "assistant", "content": content, "reasoning_content": null, "tool_calls": null},
            "logprobs": logprobs::objects(answer, 0), "finish_reason": reason.map(Finish::kind), "matched_stop": reason.map(Finish::matched)
        })
    };
    let choices: Vec<Value> = answers.iter().enumerate().map(choice).collect();
    json!({
        "id": answers.first().map(|answer| &answer.meta_info.id), "object": "chat.completion", "created": now(), "model": body.model(), "choices": choices,
        "usage": usage.value(body.n()), "metadata": {"weight_version": answers.first().map(|answer| &answer.meta_info.weight_version)}
    })
}

/// The stream's state: how much of each choice has been sent, and which have ended.
struct Chunks {
    body: Body,
    /// Bytes of text and tokens sent, by choice.
    sent: BTreeMap<usize, (usize, usize)>,
    usage: Usage,
    id: String,
    ended: Vec<(usize, Finish)>,
}

impl Chunks {
    /// The chunks of an update: a choice's role before its first text; at the end, why each choice
    /// ended, and the tokens used.
    fn next(&mut self, update: Option<(usize, Update)>) -> Vec<Value> {
        match update {
            Some((index, Ok(answer))) => self.of_answer(index, &answer),
            Some((_, Err(error))) => vec![error_value(&error.to_string())],
            None => self.last(),
        }
    }

    fn of_answer(&mut self, index: usize, answer: &Answer) -> Vec<Value> {
        self.usage.set(index, answer);
        answer.meta_info.id.clone_into(&mut self.id);
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
        let delta = answer.text.get(text..).unwrap_or_default();
        if !delta.is_empty() {
            chunks.push(self.chunk(
                index,
                &json!({"reasoning_content": null, "content": delta}),
                &logprobs::objects(answer, tokens),
                None,
            ));
        }
        self.sent.insert(index, (answer.text.len(), answer.output_ids.len()));
        self.ended.extend(answer.meta_info.finish_reason.clone().map(|reason| (index, reason)));
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
            chunks.push(json!({"id": self.id, "object": "chat.completion.chunk", "created": now(), "model": self.body.model(), "choices": [], "usage": usage}));
        }
        chunks
    }

    fn chunk(
        &self,
        index: usize,
        delta: &Value,
        logprobs: &Value,
        reason: Option<&Finish>,
    ) -> Value {
        let (kind, matched) = (reason.map(Finish::kind), reason.map(Finish::matched));
        let choice = json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": kind, "matched_stop": matched});
        json!({"id": self.id, "object": "chat.completion.chunk", "created": now(), "model": self.body.model(), "choices": [choice]})
    }
}
