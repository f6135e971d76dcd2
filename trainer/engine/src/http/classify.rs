//! `/classify`: scores of a sequence classifier for one sequence or many, each computed alone.

use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use rljob_text::TextTokenizer;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{InputIds, OneOrMany, REQUESTS, off_thread, prompts};
use super::responses::{generate_error, parse};
use crate::engine::Engine;
use crate::generation::FinishReason;
use crate::request::GenerateError;

/// Fields that this engine does not support are errors; SGLang supports more.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassifyInput {
    text: Option<OneOrMany<String>>,
    input_ids: Option<InputIds>,
}

pub async fn classify(State(engine): State<Engine>, body: Bytes) -> Response {
    let input: ClassifyInput = match parse(&body) {
        Ok(input) => input,
        Err(response) => return *response,
    };
    respond(&engine, input).await.unwrap_or_else(|error| generate_error(&error))
}

async fn respond(engine: &Engine, input: ClassifyInput) -> Result<Response, GenerateError> {
    let arrival = Instant::now();
    let tokenized = off_thread(engine, move |engine| input.sequences(engine.tokenizer.as_ref()));
    let (sequences, is_list) = tokenized.await?;
    let scores = engine.classify_all(&sequences).await?;
    let (version, seconds) = (engine.info().weight_version, arrival.elapsed().as_secs_f64());
    let classified = sequences.iter().zip(scores);
    let mut responses: Vec<Value> = classified
        .map(|(sequence, score)| {
            json!({"embedding": [score], "meta_info": {
                "id": engine.new_rid(), "finish_reason": FinishReason::Length(0),
                "prompt_tokens": sequence.len(), "weight_version": version, "num_retractions": 0,
                "e2e_latency": seconds,
            }})
        })
        .collect();
    Ok(match responses.pop() {
        Some(only) if !is_list => Json(only).into_response(),
        last => {
            responses.extend(last);
            Json(responses).into_response()
        }
    })
}

impl ClassifyInput {
    fn sequences(
        &self,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<(Vec<Vec<i64>>, bool), GenerateError> {
        if self.input_ids.is_none() && self.text.is_none() {
            let message = "At least one of text, input_ids, or image should be provided";
            return Err(GenerateError::Invalid(message.to_owned()));
        }
        let (sequences, is_list) = prompts(self.input_ids.as_ref(), self.text.as_ref(), tokenizer)?;
        if sequences.is_empty() || sequences.len() > REQUESTS {
            return Err(GenerateError::Invalid(format!(
                "A request must have 1 to {REQUESTS} sequences, got {}.",
                sequences.len()
            )));
        }
        Ok((sequences, is_list))
    }
}
