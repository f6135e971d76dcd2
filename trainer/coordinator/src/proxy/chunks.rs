//! Streams of `/v1/chat/completions` and `/v1/completions`: chunks with what is new in each choice.
//! Pure.

use axum::response::sse::Event;
use serde_json::Value;

use super::answer::Completed;
use super::part::{Part, Sent};
use super::request::CompletionRequest;
use super::stream::{self, Encoder};

/// Name of the chunks, and the choices of the chunks of a part.
#[derive(Clone, Copy)]
pub struct Shape {
    pub object: &'static str,
    pub part: fn(&Completed, u32, &Part) -> Vec<Value>,
}

/// A stream of chunks.
pub struct Chunks {
    shape: Shape,
    request: CompletionRequest,
    /// In seconds.
    created: u64,
    sent: Vec<Sent>,
}

impl Chunks {
    pub fn new(shape: Shape, request: CompletionRequest, created: u64) -> Self {
        Self { shape, request, created, sent: Vec::new() }
    }

    /// The chunks with what is new.
    pub fn next(&mut self, completed: &Completed) -> Vec<Value> {
        let Self { shape, request, created, sent } = self;
        sent.resize_with(completed.choices.len(), Sent::default);
        let choices = (0_u32..).zip(completed.choices.iter().zip(sent));
        let parts = choices.filter_map(|(index, (choice, sent))| Some((index, sent.part(choice)?)));
        let choices = parts.flat_map(|(index, part)| (shape.part)(completed, index, &part));
        let chunk = |choices: &[Value], usage: &Value| {
            completed.object(shape.object, &request.model, *created, choices, usage)
        };
        let mut chunks: Vec<Value> = choices.map(|choice| chunk(&[choice], &Value::Null)).collect();
        if completed.is_whole() && request.stream_usage {
            chunks.push(chunk(&[], &completed.usage()));
        }
        chunks
    }
}

impl Encoder for Chunks {
    fn events(&mut self, completed: &Completed) -> Vec<Event> {
        stream::chunks(&self.next(completed), completed.is_whole())
    }
}

#[cfg(test)]
mod tests;
