//! Completions of a streamed request while they are sampled: publishes the text that is certain.
//!
//! ```text
//!  tokens ─▶ settled characters ─▶ those before what may be a stop string or a call ─▶ published
//! ```
//!
//! The rest of a completion is published with its result.

use std::convert::Infallible;
use std::future::pending;

use tokio::sync::watch;

use super::choice::token_logprobs;
use crate::engines::live::LiveTokens;
use crate::proxy::answer::Completed;
use crate::proxy::request::Details;
use crate::text::{Detokenizer, TextError, TextTokenizer, ToolCallFormat, end_before};

/// Most tokens of a character.
const CHARACTER: usize = 4;

/// How the text of a request's completions is read.
#[derive(Clone, Debug)]
pub struct Reading {
    pub tokenizer: TextTokenizer,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Format of the calls, if they are parsed.
    pub format: Option<ToolCallFormat>,
    pub details: Details,
}

/// A choice while it is sampled.
#[derive(Debug)]
pub struct PartialChoice<'p> {
    reading: Reading,
    /// Completions of the request, and the index of this one.
    partial: &'p watch::Sender<Completed>,
    index: usize,
    detokenizer: Detokenizer,
    /// Number of tokens that are read, and that are needed for more text.
    read: usize,
    waits_for: usize,
    /// Bytes of the text that are published, and the number of tokens.
    published: (usize, usize),
}

impl<'p> PartialChoice<'p> {
    pub fn new(reading: Reading, partial: &'p watch::Sender<Completed>, index: usize) -> Self {
        let detokenizer = Detokenizer::new(&[], true);
        Self { reading, partial, index, detokenizer, read: 0, waits_for: 0, published: (0, 0) }
    }

    /// Publishes what is certain until the future is dropped, or the request has no reader.
    pub async fn publish(mut self, mut live: watch::Receiver<LiveTokens>) -> Infallible {
        while live.changed().await.is_ok() && !self.partial.is_closed() {
            let published = self.take(&live.borrow_and_update());
            if published.is_err() {
                // The whole completion has the same error.
                break;
            }
        }
        pending().await
    }

    /// Reads new tokens and publishes what is certain.
    fn take(&mut self, live: &LiveTokens) -> Result<(), TextError> {
        let Reading { tokenizer, format, .. } = &self.reading;
        if live.ids.len() < self.waits_for {
            return Ok(());
        }
        let start = format.and_then(|format| tokenizer.call_start(format));
        let is_text = |id: &&i64| start != Some(**id);
        let new = live.ids.get(self.read..).unwrap_or_default();
        let text: Vec<i64> = new.iter().take_while(is_text).copied().collect();
        if text.is_empty() {
            return Ok(());
        }
        self.detokenizer.push(tokenizer, &text)?;
        self.read = self.read.saturating_add(text.len());
        // The text of bytes that never make a character is read less and less often.
        let unsettled = self.read.saturating_sub(self.detokenizer.settled().1);
        let wait = if unsettled > CHARACTER { unsettled } else { 0 };
        self.waits_for = self.read.saturating_add(wait);
        self.publish_text(live)
    }

    fn publish_text(&mut self, live: &LiveTokens) -> Result<(), TextError> {
        let Reading { tokenizer, details, .. } = &self.reading;
        let (text, tokens) = self.detokenizer.settled();
        let (sent, from) = self.published;
        let end = self.certain(text, sent);
        let Some(new) = text.get(sent..end).filter(|new| !new.is_empty()) else {
            return Ok(());
        };
        // Tokens follow when all of their text is certain.
        let to = if end == text.len() { tokens } else { from };
        let ids = live.ids.get(from..to).unwrap_or_default();
        let logprobs = live.logprobs.get(from..to).unwrap_or_default();
        let texts =
            details.logprobs.then(|| token_logprobs(tokenizer, ids, logprobs)).transpose()?;
        self.partial.send_modify(|completed| {
            if let Some(choice) = completed.choices.get_mut(self.index) {
                choice.text.push_str(new);
                choice.tokens = to;
                choice.logprobs.iter_mut().zip(texts).for_each(|(own, texts)| own.extend(texts));
                choice.token_ids.iter_mut().for_each(|own| own.extend(ids));
            }
        });
        self.published = (end, to);
        Ok(())
    }

    /// End of the text that is part of the answer, whatever follows. The text before `sent` is.
    fn certain(&self, text: &str, sent: usize) -> usize {
        let Reading { stop, format, .. } = &self.reading;
        let content = format.map_or(text.len(), |format| format.content_end(text, sent));
        end_before(text, sent, stop.iter().map(String::as_str)).min(content).max(sent)
    }
}

#[cfg(test)]
mod tests;
